package libcuda

// #cgo noescape lc_ipc_get
// #cgo nocallback lc_ipc_get
// #cgo noescape lc_ipc_open
// #cgo nocallback lc_ipc_open
// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/gpurma/gpurma/cuda"
)

func (d *driver) IpcGetMemHandle(ctx cuda.Context, ptr cuda.DevicePtr) (cuda.IpcMemHandle, error) {
	var handle cuda.IpcMemHandle
	r := C.lc_ipc_get(d.api, C.uintptr_t(ctx), C.uint64_t(ptr), unsafe.Pointer(&handle))
	return handle, d.result("cuIpcGetMemHandle", r)
}

func (d *driver) IpcOpenMemHandle(ctx cuda.Context, handle cuda.IpcMemHandle, flags uint32) (cuda.DevicePtr, error) {
	beginBlocking()
	defer endBlocking()
	v := C.lc_ipc_open(d.api, C.uintptr_t(ctx), unsafe.Pointer(&handle), C.uint32_t(flags))
	return cuda.DevicePtr(v.value), d.result("cuIpcOpenMemHandle", v.code)
}

func (d *driver) IpcCloseMemHandle(ctx cuda.Context, ptr cuda.DevicePtr) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuIpcCloseMemHandle", C.lc_ipc_close(d.api, C.uintptr_t(ctx), C.uint64_t(ptr)))
}
