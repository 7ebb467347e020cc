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

func (h handle) encode() (out cuda.IpcMemHandle) {
	copy(out[:], handleMagic)
	copy(out[8:], h.node[:])
	binary.LittleEndian.PutUint64(out[24:], h.table)
	binary.LittleEndian.PutUint64(out[32:], h.alloc)
	binary.LittleEndian.PutUint32(out[40:], h.slot)
	binary.LittleEndian.PutUint32(out[44:], h.device)
	binary.LittleEndian.PutUint64(out[48:], h.va)
	binary.LittleEndian.PutUint32(out[60:], crc32.ChecksumIEEE(out[:60]))
	return out
}

func decodeHandle(in cuda.IpcMemHandle) (h handle, ok bool) {
	if string(in[:8]) != handleMagic || binary.LittleEndian.Uint32(in[60:]) != crc32.ChecksumIEEE(in[:60]) {
		return h, false
	}
	copy(h.node[:], in[8:])
	h.table = binary.LittleEndian.Uint64(in[24:])
	h.alloc = binary.LittleEndian.Uint64(in[32:])
	h.slot = binary.LittleEndian.Uint32(in[40:])
	h.device = binary.LittleEndian.Uint32(in[44:])
	h.va = binary.LittleEndian.Uint64(in[48:])
	return h, true
}
