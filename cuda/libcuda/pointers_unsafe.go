package libcuda

// #include "shim.h"
import "C"

import "github.com/gpurma/gpurma/cuda"

// attributeKind says how an attribute's number is read from the eight bytes
// that shim.c returns.
type attributeKind int

const (
	unknownAttribute attributeKind = iota
	numberAttribute
	signedAttribute // an int: an ordinal below zero stands for the host
	flagAttribute   // true is whatever is not 0
)

func kindOf(attr cuda.PointerAttribute) attributeKind {
	switch attr {
	case cuda.PointerAttributeContext, cuda.PointerAttributeMemoryType, cuda.PointerAttributeBufferID,
		cuda.PointerAttributeRangeStart, cuda.PointerAttributeRangeSize, cuda.PointerAttributeAllowedHandleTypes:
		return numberAttribute
	case cuda.PointerAttributeDeviceOrdinal:
		return signedAttribute
	case cuda.PointerAttributeSyncMemops, cuda.PointerAttributeIsManaged,
		cuda.PointerAttributeIsLegacyIpcCapable, cuda.PointerAttributeMapped:
		return flagAttribute
	}
	return unknownAttribute
}

// PointerGetAttribute refuses attributes that package cuda does not name: the
// driver would write a value of a size that is not known here.
func (d *driver) PointerGetAttribute(attr cuda.PointerAttribute, ptr cuda.DevicePtr) (uint64, error) {
	kind := kindOf(attr)
	if kind == unknownAttribute {
		return 0, &cuda.CallError{Call: "cuPointerGetAttribute", Result: cuda.ErrorInvalidValue, Detail: "unknown attribute"}
	}
	v := C.lc_pointer_attribute(d.api, C.int32_t(attr), C.uint64_t(ptr))
	if err := d.result("cuPointerGetAttribute", v.code); err != nil {
		return 0, err
	}
	switch kind {
	case flagAttribute:
		if v.value != 0 {
			return 1, nil
		}
		return 0, nil
	case signedAttribute:
		return uint64(int64(int32(v.value))), nil
	}
	return uint64(v.value), nil
}

func (d *driver) PointerSetAttribute(attr cuda.PointerAttribute, ptr cuda.DevicePtr, value uint64) error {
	if attr != cuda.PointerAttributeSyncMemops || value > 1 {
		return &cuda.CallError{Call: "cuPointerSetAttribute", Result: cuda.ErrorInvalidValue,
			Detail: "only SYNC_MEMOPS can be set, to 0 or 1"}
	}
	return d.result("cuPointerSetAttribute",
		C.lc_pointer_set_attribute(d.api, C.int32_t(attr), C.uint64_t(ptr), C.uint32_t(value)))
}
