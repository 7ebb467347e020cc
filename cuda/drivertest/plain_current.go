package drivertest

import (
	"runtime"

	"github.com/gpurma/gpurma/cuda"
)

// testCurrentContextStack: push, pop, get and set on a thread of its own.
func testCurrentContextStack(f *fixture) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a := f.ctx
	b, err := f.drv.CtxCreate(f.dev)
	f.NoError(err)
	current := func(want cuda.Context, when string) {
		f.t.Helper()
		got, err := f.drv.CtxGetCurrent()
		f.NoError(err)
		f.Equal(want, got, when)
	}
	pop := func(want cuda.Context, when string) {
		f.t.Helper()
		got, err := f.drv.CtxPopCurrent()
		f.NoError(err)
		f.Equal(want, got, when)
	}

	current(0, "CtxCreate left nothing current")
	_, err = f.drv.CtxPopCurrent()
	f.refused(cuda.ErrorInvalidContext, err, "pop of an empty stack")
	f.NoError(f.drv.CtxPushCurrent(a))
	current(a, "one pushed")
	f.NoError(f.drv.CtxPushCurrent(b))
	current(b, "two pushed")
	f.NoError(f.drv.CtxPushCurrent(a))
	current(a, "the first one pushed again")
	pop(a, "third")
	f.NoError(f.drv.CtxSetCurrent(a))
	current(a, "top replaced")
	f.NoError(f.drv.CtxSetCurrent(b))
	current(b, "top replaced back")
	f.NoError(f.drv.CtxSetCurrent(0))
	current(a, "setting none pops the top")
	pop(a, "first")
	current(0, "empty")
	f.NoError(f.drv.CtxSetCurrent(0), "setting none on an empty stack")
	f.NoError(f.drv.CtxSetCurrent(b))
	current(b, "set on an empty stack")
	pop(b, "what was set")
	current(0, "in the end")
	f.NoError(f.drv.CtxDestroy(b))
}

// testCurrentContextUntouched: no call with a context argument changes the
// thread's current context, whether it succeeds or is refused.
func testCurrentContextUntouched(f *fixture) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	other, err := f.drv.CtxCreate(f.dev)
	f.NoError(err)
	ptr := f.alloc(block)
	check := func(want cuda.Context) {
		f.t.Helper()
		for _, ctx := range []cuda.Context{f.ctx, other, 0} {
			for name, call := range contextCalls(f, ctx, ptr) {
				err := call()
				f.Equal(ctx == 0, err != nil, "%s: %v", name, err)
				got, err := f.drv.CtxGetCurrent()
				f.NoError(err)
				f.Equal(want, got, "current context after %s", name)
			}
		}
		for name, call := range map[string]func() error{
			"MemAlloc of 0":          func() error { _, err := f.drv.MemAlloc(f.ctx, 0); return err },
			"MemFree of nothing":     func() error { return f.drv.MemFree(f.ctx, unknownPtr) },
			"open of own handle":     func() error { _, err := f.tryOpen(f.handle(ptr)); return err },
			"close of nothing":       func() error { return f.drv.IpcCloseMemHandle(f.ctx, unknownPtr) },
			"export of nothing":      func() error { _, err := f.drv.IpcGetMemHandle(f.ctx, unknownPtr); return err },
			"a primary context more": func() error { _, err := f.drv.DevicePrimaryCtxRetain(-1); return err },
			"a context more":         func() error { _, err := f.drv.CtxCreate(-1); return err },
		} {
			f.Error(call(), name)
			got, err := f.drv.CtxGetCurrent()
			f.NoError(err)
			f.Equal(want, got, "current context after %s", name)
		}
		third, err := f.drv.CtxCreate(f.dev)
		f.NoError(err)
		f.NoError(f.drv.CtxDestroy(third))
		got, err := f.drv.CtxGetCurrent()
		f.NoError(err)
		f.Equal(want, got, "current context after another one's life")
	}
	check(0)
	for _, ctx := range []cuda.Context{f.ctx, other} {
		f.NoError(f.drv.CtxPushCurrent(ctx))
		check(ctx)
		popped, err := f.drv.CtxPopCurrent()
		f.NoError(err)
		f.Equal(ctx, popped)
	}
	f.free(ptr)
	f.NoError(f.drv.CtxDestroy(other))
}
