package softgpu

import "github.com/gpurma/gpurma/cuda"

// PointerGetAttribute asks about the allocation or mapping that ptr lies in.
func (d *Driver) PointerGetAttribute(attr cuda.PointerAttribute, ptr cuda.DevicePtr) (uint64, error) {
	const call = "cuPointerGetAttribute"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	a := d.pages.find(ptr)
	if a == nil {
		if attr == cuda.PointerAttributeMapped && d.reserved(uint64(ptr)/BlockSize, 1) {
			return 0, nil
		}
		return 0, failed(call, cuda.ErrorInvalidValue)
	}
	v, err := a.attribute(attr)
	if attr == cuda.PointerAttributeIsLegacyIpcCapable && d.cfg.NoLegacyIPC {
		v = 0
	}
	return v, failed(call, err)
}

func (a *allocation) attribute(attr cuda.PointerAttribute) (uint64, error) {
	switch attr {
	case cuda.PointerAttributeContext:
		if a.ctx == nil {
			return 0, nil
		}
		return uint64(a.ctx.id), nil
	case cuda.PointerAttributeMemoryType:
		return uint64(cuda.MemoryTypeDevice), nil
	case cuda.PointerAttributeSyncMemops:
		return flag(a.syncMemops.Load()), nil
	case cuda.PointerAttributeBufferID:
		return a.bufferID, nil
	case cuda.PointerAttributeIsManaged:
		return flag(a.kind == managed), nil
	case cuda.PointerAttributeDeviceOrdinal:
		return uint64(a.device), nil
	case cuda.PointerAttributeIsLegacyIpcCapable:
		return flag(a.kind == native), nil
	case cuda.PointerAttributeRangeStart:
		return uint64(a.base), nil
	case cuda.PointerAttributeRangeSize:
		return a.size, nil
	case cuda.PointerAttributeMapped:
		return 1, nil
	case cuda.PointerAttributeAllowedHandleTypes:
		if a.mem != nil {
			return uint64(a.mem.types), nil
		}
		if a.pool != nil {
			return uint64(a.pool.types), nil
		}
		return uint64(cuda.HandleTypeNone), nil
	}
	return 0, cuda.ErrorInvalidValue
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// PointerSetAttribute sets SYNC_MEMOPS, the only attribute that can be set.
func (d *Driver) PointerSetAttribute(attr cuda.PointerAttribute, ptr cuda.DevicePtr, value uint64) error {
	const call = "cuPointerSetAttribute"
	if err := d.enter(call); err != nil {
		return err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	a := d.pages.find(ptr)
	if a == nil || attr != cuda.PointerAttributeSyncMemops {
		return failed(call, cuda.ErrorInvalidValue)
	}
	a.syncMemops.Store(value != 0)
	return nil
}
