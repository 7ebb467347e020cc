package softgpu

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/gpurma/gpurma/cuda"
)

// handle is what a legacy IPC handle says: an allocation in a process's table.
type handle struct {
	node   [16]byte
	table  uint64
	alloc  uint64
	slot   uint32
	device uint32 // of the node
	va     uint64 // the owner's address
}

const handleMagic = "SGPUIPC1"

func (h handle) encode() cuda.IpcMemHandle { return seal(handleMagic, h, h.va) }

func decodeHandle(in cuda.IpcMemHandle) (h handle, ok bool) {
	h, h.va, ok = unseal(handleMagic, in)
	return h, ok
}

// poolPointer is what the description of a pool's allocation says.
type poolPointer struct {
	handle
	pool poolName
}

const poolPointerMagic = "SGPUPTR1"

// encode has the pool's number in the place of the address: the pool is of the
// same table.
func (p poolPointer) encode() cuda.MemPoolPtrExportData {
	return seal(poolPointerMagic, p.handle, p.pool.number)
}

func decodePoolPointer(in cuda.MemPoolPtrExportData) (p poolPointer, ok bool) {
	p.handle, p.pool.number, ok = unseal(poolPointerMagic, in)
	p.pool.table = p.handle.table
	return p, ok
}

// seal writes a handle with one more number and a checksum.
func seal(magic string, h handle, number uint64) (out [64]byte) {
	copy(out[:], magic)
	copy(out[8:], h.node[:])
	binary.LittleEndian.PutUint64(out[24:], h.table)
	binary.LittleEndian.PutUint64(out[32:], h.alloc)
	binary.LittleEndian.PutUint32(out[40:], h.slot)
	binary.LittleEndian.PutUint32(out[44:], h.device)
	binary.LittleEndian.PutUint64(out[48:], number)
	binary.LittleEndian.PutUint32(out[60:], crc32.ChecksumIEEE(out[:60]))
	return out
}

func unseal(magic string, in [64]byte) (h handle, number uint64, ok bool) {
	if string(in[:8]) != magic || binary.LittleEndian.Uint32(in[60:]) != crc32.ChecksumIEEE(in[:60]) {
		return h, 0, false
	}
	copy(h.node[:], in[8:])
	h.table = binary.LittleEndian.Uint64(in[24:])
	h.alloc = binary.LittleEndian.Uint64(in[32:])
	h.slot = binary.LittleEndian.Uint32(in[40:])
	h.device = binary.LittleEndian.Uint32(in[44:])
	return h, binary.LittleEndian.Uint64(in[48:]), true
}
