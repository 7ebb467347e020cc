package libcuda

// #include "shim.h"
import "C"

import (
	"syscall"

	"github.com/gpurma/gpurma/cuda"
)

func (d *driver) MemGetAllocationGranularity(prop cuda.AllocationProp) (uint64, error) {
	v := C.lc_vmm_granularity(d.api, C.int32_t(prop.Device), C.uint32_t(prop.HandleTypes))
	return uint64(v.value), d.result("cuMemGetAllocationGranularity", v.code)
}

func (d *driver) MemCreate(ctx cuda.Context, size uint64, prop cuda.AllocationProp) (cuda.MemHandle, error) {
	beginBlocking()
	defer endBlocking()
	v := C.lc_vmm_create(d.api, C.uintptr_t(ctx), C.uint64_t(size), C.int32_t(prop.Device), C.uint32_t(prop.HandleTypes))
	return cuda.MemHandle(v.value), d.result("cuMemCreate", v.code)
}

func (d *driver) MemRelease(ctx cuda.Context, handle cuda.MemHandle) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuMemRelease", C.lc_vmm_release(d.api, C.uintptr_t(ctx), C.uint64_t(handle)))
}

func (d *driver) MemAddressReserve(ctx cuda.Context, size, alignment uint64) (cuda.DevicePtr, error) {
	v := C.lc_vmm_reserve(d.api, C.uintptr_t(ctx), C.uint64_t(size), C.uint64_t(alignment))
	return cuda.DevicePtr(v.value), d.result("cuMemAddressReserve", v.code)
}

func (d *driver) MemAddressFree(ctx cuda.Context, ptr cuda.DevicePtr, size uint64) error {
	return d.result("cuMemAddressFree",
		C.lc_vmm_address_free(d.api, C.uintptr_t(ctx), C.uint64_t(ptr), C.uint64_t(size)))
}

func (d *driver) MemMap(ctx cuda.Context, ptr cuda.DevicePtr, size, offset uint64, handle cuda.MemHandle) error {
	return d.result("cuMemMap",
		C.lc_vmm_map(d.api, C.uintptr_t(ctx), C.uint64_t(ptr), C.uint64_t(size), C.uint64_t(offset), C.uint64_t(handle)))
}

func (d *driver) MemUnmap(ctx cuda.Context, ptr cuda.DevicePtr, size uint64) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuMemUnmap", C.lc_vmm_unmap(d.api, C.uintptr_t(ctx), C.uint64_t(ptr), C.uint64_t(size)))
}

func (d *driver) MemSetAccess(ctx cuda.Context, ptr cuda.DevicePtr, size uint64, dev cuda.Device, flags cuda.AccessFlags) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuMemSetAccess",
		C.lc_vmm_set_access(d.api, C.uintptr_t(ctx), C.uint64_t(ptr), C.uint64_t(size), C.int32_t(dev), C.uint32_t(flags)))
}

func (d *driver) MemRetainAllocationHandle(ctx cuda.Context, ptr cuda.DevicePtr) (cuda.MemHandle, error) {
	v := C.lc_vmm_retain(d.api, C.uintptr_t(ctx), C.uint64_t(ptr))
	return cuda.MemHandle(v.value), d.result("cuMemRetainAllocationHandle", v.code)
}

// MemExportPosixFD makes the descriptor close on exec: one that a child process
// inherits would keep the memory taken. No fork may come between.
func (d *driver) MemExportPosixFD(ctx cuda.Context, handle cuda.MemHandle) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	v := C.lc_vmm_export_fd(d.api, C.uintptr_t(ctx), C.uint64_t(handle))
	if err := d.result("cuMemExportToShareableHandle", v.code); err != nil {
		return -1, err
	}
	fd := int(v.value)
	syscall.CloseOnExec(fd)
	return fd, nil
}

func (d *driver) MemImportPosixFD(ctx cuda.Context, fd int) (cuda.MemHandle, error) {
	beginBlocking()
	defer endBlocking()
	v := C.lc_vmm_import_fd(d.api, C.uintptr_t(ctx), C.int32_t(fd))
	return cuda.MemHandle(v.value), d.result("cuMemImportFromShareableHandle", v.code)
}
