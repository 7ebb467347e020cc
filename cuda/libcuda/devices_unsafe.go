package libcuda

// #cgo noescape lc_device_name
// #cgo nocallback lc_device_name
// #cgo noescape lc_device_uuid
// #cgo nocallback lc_device_uuid
// #include "shim.h"
import "C"

import (
	"strings"
	"unsafe"

	"github.com/gpurma/gpurma/cuda"
)

func (d *driver) DeviceGetCount() (int, error) {
	v := C.lc_device_count(d.api)
	return int(v.value), d.result("cuDeviceGetCount", v.code)
}

func (d *driver) DeviceGetName(dev cuda.Device) (string, error) {
	var name [256]byte
	r := C.lc_device_name(d.api, C.int32_t(dev), unsafe.Pointer(&name), C.int32_t(len(name)))
	if err := d.result("cuDeviceGetName", r); err != nil {
		return "", err
	}
	text, _, _ := strings.Cut(string(name[:]), "\x00")
	return text, nil
}

func (d *driver) DeviceGetUuid(dev cuda.Device) (cuda.UUID, error) {
	var uuid cuda.UUID
	r := C.lc_device_uuid(d.api, C.int32_t(dev), unsafe.Pointer(&uuid))
	return uuid, d.result("cuDeviceGetUuid", r)
}

func (d *driver) DeviceTotalMem(dev cuda.Device) (uint64, error) {
	v := C.lc_device_total_mem(d.api, C.int32_t(dev))
	return uint64(v.value), d.result("cuDeviceTotalMem", v.code)
}

func (d *driver) DeviceGetAttribute(attr cuda.DeviceAttribute, dev cuda.Device) (int, error) {
	v := C.lc_device_attribute(d.api, C.int32_t(attr), C.int32_t(dev))
	return int(v.value), d.result("cuDeviceGetAttribute", v.code)
}

func (d *driver) DeviceCanAccessPeer(dev, peer cuda.Device) (bool, error) {
	v := C.lc_device_can_access_peer(d.api, C.int32_t(dev), C.int32_t(peer))
	return v.value != 0, d.result("cuDeviceCanAccessPeer", v.code)
}
