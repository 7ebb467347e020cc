package drivertest

import "github.com/gpurma/gpurma/cuda"

func testPrimaryContext(f *fixture) {
	active, err := f.drv.DevicePrimaryCtxGetState(f.dev)
	f.NoError(err)
	f.True(active, "retained")
	again, err := f.drv.DevicePrimaryCtxRetain(f.dev)
	f.NoError(err)
	f.Equal(f.ctx, again, "second retain")
	f.NoError(f.drv.DevicePrimaryCtxRelease(f.dev))
	dev, err := f.drv.CtxGetDevice(f.ctx)
	f.NoError(err, "one reference left")
	f.Equal(f.dev, dev)

	base := f.freeBytes()
	f.alloc(f.opts.Size)
	f.missing(base, f.opts.Size, "allocated")
	f.NoError(f.drv.DevicePrimaryCtxRelease(f.dev))
	active, err = f.drv.DevicePrimaryCtxGetState(f.dev)
	f.NoError(err)
	f.False(active, "released")
	f.refusedSomehow("release of a primary context that is not retained", f.drv.DevicePrimaryCtxRelease(f.dev))

	// The fixture's clean-up releases this one.
	f.ctx, err = f.drv.DevicePrimaryCtxRetain(f.dev)
	f.NoError(err)
	f.NoError(warmUp(f.drv, f.ctx, f.dev))
	f.missing(base, 0, "the context ended with its memory")
}

func testUserContext(f *fixture) {
	create := func() cuda.Context {
		ctx, err := f.drv.CtxCreate(f.dev)
		f.NoError(err)
		f.NotZero(ctx)
		f.NotEqual(f.ctx, ctx)
		return ctx
	}
	ctx := create()
	f.NoError(warmUp(f.drv, ctx, f.dev))
	f.NoError(f.drv.CtxDestroy(ctx))
	base := f.freeBytes()

	ctx, other := create(), create()
	f.NotEqual(ctx, other)
	dev, err := f.drv.CtxGetDevice(ctx)
	f.NoError(err)
	f.Equal(f.dev, dev)
	ptr, err := f.drv.MemAlloc(ctx, f.opts.Size)
	f.NoError(err)
	f.EqualValues(ctx, f.attribute(cuda.PointerAttributeContext, ptr))
	f.NoError(fill(f.drv, ctx, ptr, f.opts.Size, 1))
	f.NoError(verify(f.drv, other, ptr, f.opts.Size, 1), "copied by another context of the device")
	f.NoError(f.drv.CtxSynchronize(ctx))
	f.NoError(f.drv.CtxDestroy(other))
	f.NoError(verify(f.drv, ctx, ptr, f.opts.Size, 1), "after another context's end")
	f.NoError(f.drv.CtxDestroy(ctx))
	_, err = f.drv.PointerGetAttribute(cuda.PointerAttributeBufferID, ptr)
	f.refused(cuda.ErrorInvalidValue, err, "pointer of a destroyed context")
	f.missing(base, 0, "the contexts ended with their memory")
	f.refused(cuda.ErrorInvalidValue, f.drv.CtxDestroy(0), "destroy of no context")
}

// testContextArgument: no context is CUDA's "no context bound to the thread".
func testContextArgument(f *fixture) {
	ptr := f.alloc(block)
	for name, call := range contextCalls(f, 0, ptr) {
		f.refused(cuda.ErrorInvalidContext, call(), name)
	}
	f.free(ptr)
}

// contextCalls are calls that need a context and work, or are refused for
// their arguments, in any context of the device.
func contextCalls(f *fixture, ctx cuda.Context, ptr cuda.DevicePtr) map[string]func() error {
	return map[string]func() error{
		"CtxSynchronize": func() error { return f.drv.CtxSynchronize(ctx) },
		"CtxGetDevice":   func() error { _, err := f.drv.CtxGetDevice(ctx); return err },
		"MemAlloc": func() error {
			got, err := f.drv.MemAlloc(ctx, block)
			if err != nil {
				return err
			}
			return f.drv.MemFree(ctx, got)
		},
		"MemGetInfo":         func() error { _, _, err := f.drv.MemGetInfo(ctx); return err },
		"MemGetAddressRange": func() error { _, _, err := f.drv.MemGetAddressRange(ctx, ptr); return err },
		"MemsetD8":           func() error { return f.drv.MemsetD8(ctx, ptr, 1, 4096) },
		"MemcpyHtoD":         func() error { return f.drv.MemcpyHtoD(ctx, ptr, make([]byte, 64)) },
		"MemcpyDtoH":         func() error { return f.drv.MemcpyDtoH(ctx, make([]byte, 64), ptr) },
		"MemcpyDtoD":         func() error { return f.drv.MemcpyDtoD(ctx, ptr, ptr.Add(4096), 4096) },
		"StreamCreate": func() error {
			s, err := f.drv.StreamCreate(ctx, cuda.StreamDefault)
			if err != nil {
				return err
			}
			return f.drv.StreamDestroy(ctx, s)
		},
		"EventCreate": func() error {
			e, err := f.drv.EventCreate(ctx, cuda.EventDefault)
			if err != nil {
				return err
			}
			return f.drv.EventDestroy(ctx, e)
		},
		"IpcGetMemHandle": func() error { _, err := f.drv.IpcGetMemHandle(ctx, ptr); return err },
		"MemAllocManaged": func() error {
			got, err := f.drv.MemAllocManaged(ctx, block, cuda.MemAttachGlobal)
			if err != nil {
				return err
			}
			return f.drv.MemFree(ctx, got)
		},
	}
}
