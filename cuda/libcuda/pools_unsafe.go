package libcuda

// #cgo noescape lc_pool_export_pointer
// #cgo nocallback lc_pool_export_pointer
// #cgo noescape lc_pool_import_pointer
// #cgo nocallback lc_pool_import_pointer
// #include "shim.h"
import "C"

import (
	"syscall"
	"unsafe"

	"github.com/gpurma/gpurma/cuda"
)

func (d *driver) MemPoolCreate(ctx cuda.Context, prop cuda.MemPoolProp) (cuda.MemPool, error) {
	v := C.lc_pool_create(d.api, C.uintptr_t(ctx), C.int32_t(prop.Device), C.uint32_t(prop.HandleTypes))
	return cuda.MemPool(v.value), d.result("cuMemPoolCreate", v.code)
}

func (d *driver) MemPoolDestroy(ctx cuda.Context, pool cuda.MemPool) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuMemPoolDestroy", C.lc_pool_destroy(d.api, C.uintptr_t(ctx), C.uintptr_t(pool)))
}

func (d *driver) MemPoolTrimTo(ctx cuda.Context, pool cuda.MemPool, keep uint64) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuMemPoolTrimTo", C.lc_pool_trim(d.api, C.uintptr_t(ctx), C.uintptr_t(pool), C.uint64_t(keep)))
}

func (d *driver) MemPoolSetAccess(ctx cuda.Context, pool cuda.MemPool, dev cuda.Device, flags cuda.AccessFlags) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuMemPoolSetAccess",
		C.lc_pool_set_access(d.api, C.uintptr_t(ctx), C.uintptr_t(pool), C.int32_t(dev), C.uint32_t(flags)))
}

// MemPoolExportPosixFD makes the descriptor close on exec, as MemExportPosixFD
// does.
func (d *driver) MemPoolExportPosixFD(ctx cuda.Context, pool cuda.MemPool) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	v := C.lc_pool_export_fd(d.api, C.uintptr_t(ctx), C.uintptr_t(pool))
	if err := d.result("cuMemPoolExportToShareableHandle", v.code); err != nil {
		return -1, err
	}
	fd := int(v.value)
	syscall.CloseOnExec(fd)
	return fd, nil
}

func (d *driver) MemPoolImportPosixFD(ctx cuda.Context, fd int) (cuda.MemPool, error) {
	beginBlocking()
	defer endBlocking()
	v := C.lc_pool_import_fd(d.api, C.uintptr_t(ctx), C.int32_t(fd))
	return cuda.MemPool(v.value), d.result("cuMemPoolImportFromShareableHandle", v.code)
}

func (d *driver) MemPoolExportPointer(ctx cuda.Context, ptr cuda.DevicePtr) (data cuda.MemPoolPtrExportData, err error) {
	r := C.lc_pool_export_pointer(d.api, C.uintptr_t(ctx), C.uint64_t(ptr), unsafe.Pointer(&data))
	return data, d.result("cuMemPoolExportPointer", r)
}

func (d *driver) MemPoolImportPointer(ctx cuda.Context, pool cuda.MemPool, data cuda.MemPoolPtrExportData) (cuda.DevicePtr, error) {
	beginBlocking()
	defer endBlocking()
	v := C.lc_pool_import_pointer(d.api, C.uintptr_t(ctx), C.uintptr_t(pool), unsafe.Pointer(&data))
	return cuda.DevicePtr(v.value), d.result("cuMemPoolImportPointer", v.code)
}

func (d *driver) MemAllocFromPoolAsync(ctx cuda.Context, size uint64, pool cuda.MemPool, stream cuda.Stream) (cuda.DevicePtr, error) {
	beginBlocking()
	defer endBlocking()
	v := C.lc_pool_alloc(d.api, C.uintptr_t(ctx), C.uint64_t(size), C.uintptr_t(pool), C.uintptr_t(stream))
	return cuda.DevicePtr(v.value), d.result("cuMemAllocFromPoolAsync", v.code)
}

func (d *driver) MemFreeAsync(ctx cuda.Context, ptr cuda.DevicePtr, stream cuda.Stream) error {
	return d.result("cuMemFreeAsync", C.lc_free_async(d.api, C.uintptr_t(ctx), C.uint64_t(ptr), C.uintptr_t(stream)))
}
