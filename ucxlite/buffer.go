package ucxlite

import (
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// Buffer is the local side of an operation. The zero Buffer is empty.
type Buffer struct {
	ptr  cuda.DevicePtr
	host []byte
	n    uint64
}

// DeviceBuffer names n bytes of memory that the driver knows: from MemAlloc, a
// pool, VMM, managed, or a mapping. The memory must stay until the operation
// is complete.
func DeviceBuffer(ptr cuda.DevicePtr, n uint64) Buffer { return Buffer{ptr: ptr, n: n} }

// HostBuffer names Go memory. It stays pinned until the operation is complete,
// and must not be touched (for a put: not be written) before.
func HostBuffer(b []byte) Buffer { return Buffer{host: b, n: uint64(len(b))} }

// Len is the buffer's length in bytes.
func (b Buffer) Len() uint64 { return b.n }

func (b Buffer) onHost() bool { return b.host != nil }

func (b Buffer) String() string {
	if b.onHost() {
		return fmt.Sprintf("host[%d]", b.n)
	}
	return fmt.Sprintf("device[%s, +%d)", b.ptr, b.n)
}

func (b Buffer) check() error {
	switch {
	case b.n == 0 || b.onHost():
		return nil
	case b.ptr == 0:
		return fmt.Errorf("%w: buffer at address 0", ErrInvalidParam)
	case uint64(b.ptr)+b.n < uint64(b.ptr):
		return fmt.Errorf("%w: buffer %s overflows", ErrInvalidParam, b)
	}
	return nil
}
