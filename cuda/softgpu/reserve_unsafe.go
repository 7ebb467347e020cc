package softgpu

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// reserve takes a range of this process's addresses without access, so that
// nothing else lies there and a dereference faults.
func reserve(size uint64) (start uint64, mem []byte, err error) {
	mem, err = unix.Mmap(-1, 0, int(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return 0, nil, err
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), mem, nil
}
