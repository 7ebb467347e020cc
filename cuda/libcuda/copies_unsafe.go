package libcuda

// #cgo noescape lc_copy_htod
// #cgo nocallback lc_copy_htod
// #cgo noescape lc_copy_dtoh
// #cgo nocallback lc_copy_dtoh
// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/gpurma/gpurma/cuda"
)

// bytesOf gives a host buffer to C. Only the synchronous copies are declared
// noescape above: the asynchronous ones go on using the buffer after they
// return, so it must not be on a stack.
func bytesOf(b []byte) (unsafe.Pointer, C.uint64_t) {
	return unsafe.Pointer(unsafe.SliceData(b)), C.uint64_t(len(b))
}

func (d *driver) MemsetD8(ctx cuda.Context, dst cuda.DevicePtr, value byte, n uint64) error {
	return d.result("cuMemsetD8",
		C.lc_memset(d.api, C.uintptr_t(ctx), C.uint64_t(dst), C.uint8_t(value), C.uint64_t(n)))
}

func (d *driver) MemcpyHtoD(ctx cuda.Context, dst cuda.DevicePtr, src []byte) error {
	beginBlocking()
	defer endBlocking()
	p, n := bytesOf(src)
	return d.result("cuMemcpyHtoD", C.lc_copy_htod(d.api, C.uintptr_t(ctx), C.uint64_t(dst), p, n))
}

func (d *driver) MemcpyDtoH(ctx cuda.Context, dst []byte, src cuda.DevicePtr) error {
	beginBlocking()
	defer endBlocking()
	p, n := bytesOf(dst)
	return d.result("cuMemcpyDtoH", C.lc_copy_dtoh(d.api, C.uintptr_t(ctx), p, C.uint64_t(src), n))
}

func (d *driver) MemcpyDtoD(ctx cuda.Context, dst, src cuda.DevicePtr, n uint64) error {
	return d.result("cuMemcpyDtoD",
		C.lc_copy_dtod(d.api, C.uintptr_t(ctx), C.uint64_t(dst), C.uint64_t(src), C.uint64_t(n)))
}

func (d *driver) MemsetD8Async(ctx cuda.Context, dst cuda.DevicePtr, value byte, n uint64, stream cuda.Stream) error {
	return d.result("cuMemsetD8Async",
		C.lc_memset_async(d.api, C.uintptr_t(ctx), C.uint64_t(dst), C.uint8_t(value), C.uint64_t(n), C.uintptr_t(stream)))
}

func (d *driver) MemcpyHtoDAsync(ctx cuda.Context, dst cuda.DevicePtr, src []byte, stream cuda.Stream) error {
	p, n := bytesOf(src)
	return d.result("cuMemcpyHtoDAsync",
		C.lc_copy_htod_async(d.api, C.uintptr_t(ctx), C.uint64_t(dst), p, n, C.uintptr_t(stream)))
}

func (d *driver) MemcpyDtoHAsync(ctx cuda.Context, dst []byte, src cuda.DevicePtr, stream cuda.Stream) error {
	p, n := bytesOf(dst)
	return d.result("cuMemcpyDtoHAsync",
		C.lc_copy_dtoh_async(d.api, C.uintptr_t(ctx), p, C.uint64_t(src), n, C.uintptr_t(stream)))
}

func (d *driver) MemcpyDtoDAsync(ctx cuda.Context, dst, src cuda.DevicePtr, n uint64, stream cuda.Stream) error {
	return d.result("cuMemcpyDtoDAsync",
		C.lc_copy_dtod_async(d.api, C.uintptr_t(ctx), C.uint64_t(dst), C.uint64_t(src), C.uint64_t(n), C.uintptr_t(stream)))
}
