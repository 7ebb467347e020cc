package libcuda

// #include "shim.h"
import "C"

import "github.com/gpurma/gpurma/cuda"

// MemAlloc may wait: an allocation synchronises where the driver has to map.
func (d *driver) MemAlloc(ctx cuda.Context, size uint64) (cuda.DevicePtr, error) {
	beginBlocking()
	defer endBlocking()
	v := C.lc_mem_alloc(d.api, C.uintptr_t(ctx), C.uint64_t(size))
	return cuda.DevicePtr(v.value), d.result("cuMemAlloc", v.code)
}

func (d *driver) MemAllocManaged(ctx cuda.Context, size uint64, flags uint32) (cuda.DevicePtr, error) {
	beginBlocking()
	defer endBlocking()
	v := C.lc_mem_alloc_managed(d.api, C.uintptr_t(ctx), C.uint64_t(size), C.uint32_t(flags))
	return cuda.DevicePtr(v.value), d.result("cuMemAllocManaged", v.code)
}

func (d *driver) MemFree(ctx cuda.Context, ptr cuda.DevicePtr) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuMemFree", C.lc_mem_free(d.api, C.uintptr_t(ctx), C.uint64_t(ptr)))
}

func (d *driver) MemGetInfo(ctx cuda.Context) (free, total uint64, err error) {
	p := C.lc_mem_info(d.api, C.uintptr_t(ctx))
	return uint64(p.first), uint64(p.second), d.result("cuMemGetInfo", p.code)
}

func (d *driver) MemGetAddressRange(ctx cuda.Context, ptr cuda.DevicePtr) (base cuda.DevicePtr, size uint64, err error) {
	p := C.lc_mem_range(d.api, C.uintptr_t(ctx), C.uint64_t(ptr))
	return cuda.DevicePtr(p.first), uint64(p.second), d.result("cuMemGetAddressRange", p.code)
}
