package drivertest

import "github.com/gpurma/gpurma/cuda"

func testPointerAttributes(f *fixture) {
	const size = 3 * block
	ptr := f.alloc(size)
	f.NotZero(f.attribute(cuda.PointerAttributeBufferID, ptr))
	for attr, want := range map[cuda.PointerAttribute]uint64{
		cuda.PointerAttributeContext:            uint64(f.ctx),
		cuda.PointerAttributeMemoryType:         uint64(cuda.MemoryTypeDevice),
		cuda.PointerAttributeIsManaged:          0,
		cuda.PointerAttributeDeviceOrdinal:      uint64(f.dev),
		cuda.PointerAttributeIsLegacyIpcCapable: 1,
		cuda.PointerAttributeRangeStart:         uint64(ptr),
		cuda.PointerAttributeRangeSize:          size,
		cuda.PointerAttributeMapped:             1,
		cuda.PointerAttributeAllowedHandleTypes: 0,
	} {
		for _, off := range []uint64{0, 4097, size - 1} {
			f.Equal(want, f.attribute(attr, ptr.Add(off)), "attribute %d at offset %d", attr, off)
		}
	}
	_, err := f.drv.PointerGetAttribute(1<<20, ptr)
	f.refused(cuda.ErrorInvalidValue, err, "unknown attribute")
	f.free(ptr)
	for name, gone := range map[string]cuda.DevicePtr{"freed": ptr, "unknown": unknownPtr, "no": 0} {
		_, err := f.drv.PointerGetAttribute(cuda.PointerAttributeBufferID, gone)
		f.refused(cuda.ErrorInvalidValue, err, "%s pointer", name)
	}
}

func testIPCRefused(f *fixture) {
	p, base := f.pair()
	f.refused(cuda.ErrorInvalidValue, f.drv.IpcCloseMemHandle(f.ctx, unknownPtr), "close of an unknown pointer")
	ours := f.alloc(block)
	f.refused(cuda.ErrorInvalidValue, f.drv.IpcCloseMemHandle(f.ctx, ours), "close of own memory")
	_, err := f.drv.IpcGetMemHandle(f.ctx, unknownPtr)
	f.refused(cuda.ErrorInvalidValue, err, "handle of an unknown pointer")
	f.free(ours)
	_, err = f.drv.IpcGetMemHandle(f.ctx, ours)
	f.refused(cuda.ErrorInvalidValue, err, "handle of a freed pointer")

	_, err = f.tryOpen(cuda.IpcMemHandle{})
	f.refusedSomehow("open of a handle of zeros", err)
	var junk cuda.IpcMemHandle
	pattern(junk[:], 1, 0)
	_, err = f.tryOpen(junk)
	f.refusedSomehow("open of a handle of noise", err)

	theirs := p.alloc(block)
	h, err := p.export(theirs)
	f.NoError(err)
	for _, flags := range []uint32{0, 2} { // other flags beside the one that must be there are ignored
		_, err = f.drv.IpcOpenMemHandle(f.ctx, h, flags)
		f.refused(cuda.ErrorInvalidValue, err, "flags %#x", flags)
	}
	ptr := f.openHandle(h)
	f.refused(cuda.ErrorInvalidValue, f.drv.IpcCloseMemHandle(f.ctx, ptr.Add(4096)), "close of an interior pointer")
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, ptr))
	f.NoError(p.free(theirs))
	f.missing(base, 0, "in the end")
}

// testIPCOtherDevice: a handle opens in a context of another device that can
// reach the memory's own.
func testIPCOtherDevice(f *fixture) {
	count, err := f.drv.DeviceGetCount()
	f.NoError(err)
	if count < 2 {
		f.t.Skipf("found %d device, need 2", count)
	}
	other := f.dev + 1
	can, err := f.drv.DeviceCanAccessPeer(other, f.dev)
	f.NoError(err)
	if !can {
		f.t.Skipf("found device %d unable to reach device %d, need peer access", other, f.dev)
	}
	p, base := f.pair()
	ctx, err := f.drv.DevicePrimaryCtxRetain(other)
	f.NoError(err)
	size := f.opts.Size
	theirs := p.alloc(size)
	p.fill(theirs, size, 1)
	h, err := p.export(theirs)
	f.NoError(err)
	before, _, err := f.drv.MemGetInfo(ctx)
	f.NoError(err)
	ptr, err := f.drv.IpcOpenMemHandle(ctx, h, cuda.IpcMemLazyEnablePeerAccess)
	f.NoError(err)
	after, _, err := f.drv.MemGetInfo(ctx)
	f.NoError(err)
	f.observed("open on device %d took %d bytes there; ordinal of the pointer: %d", other,
		int64(before)-int64(after), f.attribute(cuda.PointerAttributeDeviceOrdinal, ptr))
	f.NoError(verify(f.drv, ctx, ptr, size, 1))
	f.NoError(fill(f.drv, ctx, ptr, size, 2))
	f.NoError(p.verify(theirs, size, 2))
	f.NoError(p.free(theirs))
	f.missing(base, size, "held open by the other device's context")
	f.NoError(verify(f.drv, ctx, ptr, size, 2))
	f.NoError(f.drv.IpcCloseMemHandle(ctx, ptr))
	f.missing(base, 0, "in the end")
	f.NoError(f.drv.DevicePrimaryCtxRelease(other))
}
