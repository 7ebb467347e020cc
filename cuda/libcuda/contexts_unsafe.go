package libcuda

// #include "shim.h"
import "C"

import "github.com/gpurma/gpurma/cuda"

// Making a context takes the driver a tenth of a second or more, ending one
// waits for its work.

func (d *driver) DevicePrimaryCtxRetain(dev cuda.Device) (cuda.Context, error) {
	beginBlocking()
	defer endBlocking()
	v := C.lc_primary_retain(d.api, C.int32_t(dev))
	return cuda.Context(v.value), d.result("cuDevicePrimaryCtxRetain", v.code)
}

func (d *driver) DevicePrimaryCtxRelease(dev cuda.Device) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuDevicePrimaryCtxRelease", C.lc_primary_release(d.api, C.int32_t(dev)))
}

func (d *driver) DevicePrimaryCtxGetState(dev cuda.Device) (bool, error) {
	v := C.lc_primary_active(d.api, C.int32_t(dev))
	return v.value != 0, d.result("cuDevicePrimaryCtxGetState", v.code)
}

func (d *driver) CtxCreate(dev cuda.Device) (cuda.Context, error) {
	beginBlocking()
	defer endBlocking()
	v := C.lc_ctx_create(d.api, C.int32_t(dev))
	return cuda.Context(v.value), d.result("cuCtxCreate", v.code)
}

func (d *driver) CtxDestroy(ctx cuda.Context) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuCtxDestroy", C.lc_ctx_destroy(d.api, C.uintptr_t(ctx)))
}

func (d *driver) CtxSynchronize(ctx cuda.Context) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuCtxSynchronize", C.lc_ctx_synchronize(d.api, C.uintptr_t(ctx)))
}

func (d *driver) CtxGetDevice(ctx cuda.Context) (cuda.Device, error) {
	v := C.lc_ctx_device(d.api, C.uintptr_t(ctx))
	return cuda.Device(v.value), d.result("cuCtxGetDevice", v.code)
}

func (d *driver) CtxPushCurrent(ctx cuda.Context) error {
	return d.result("cuCtxPushCurrent", C.lc_ctx_push(d.api, C.uintptr_t(ctx)))
}

func (d *driver) CtxPopCurrent() (cuda.Context, error) {
	v := C.lc_ctx_pop(d.api)
	return cuda.Context(v.value), d.result("cuCtxPopCurrent", v.code)
}

func (d *driver) CtxGetCurrent() (cuda.Context, error) {
	v := C.lc_ctx_current(d.api)
	return cuda.Context(v.value), d.result("cuCtxGetCurrent", v.code)
}

func (d *driver) CtxSetCurrent(ctx cuda.Context) error {
	return d.result("cuCtxSetCurrent", C.lc_ctx_set(d.api, C.uintptr_t(ctx)))
}
