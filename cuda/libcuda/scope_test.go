//go:build cgo

package libcuda_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/stretchr/testify/require"
)

// onThread runs fn on a locked thread whose stack of contexts is stack, bottom
// first, and requires the very same stack afterwards.
func onThread(t *testing.T, drv cuda.CurrentContext, stack []cuda.Context, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	for _, ctx := range stack {
		require.NoError(t, drv.CtxPushCurrent(ctx))
	}
	fn()
	var found []cuda.Context
	for {
		ctx, err := drv.CtxGetCurrent()
		require.NoError(t, err)
		if ctx == 0 {
			break
		}
		popped, err := drv.CtxPopCurrent()
		require.NoError(t, err)
		require.Equal(t, ctx, popped)
		found = append(found, ctx)
	}
	slices.Reverse(found)
	require.Equal(t, len(stack), len(found), "depth of the stack")
	require.Equal(t, append([]cuda.Context(nil), stack...), found)
	runtime.UnlockOSThread() // not deferred: a failed test's thread ends with it
}

// contextFixture is a fake driver with two contexts and the stacks that a
// thread may have when it makes a call in one of them.
type contextFixture struct {
	*fake
	ctx, other cuda.Context
	stacks     map[string][]cuda.Context
}

func newContextFixture(t *testing.T) *contextFixture {
	t.Helper()
	f := &contextFixture{fake: openFake(t, fakeOptions{})}
	var err error
	f.ctx, err = f.CtxCreate(1)
	require.NoError(t, err)
	f.other, err = f.CtxCreate(0)
	require.NoError(t, err)
	f.stacks = map[string][]cuda.Context{
		"empty":            nil,
		"another current":  {f.other},
		"the same current": {f.ctx},
		"the same below":   {f.ctx, f.other},
		"deep":             {f.other, f.ctx, f.other, f.ctx},
	}
	return f
}

// TestS15StackLeftAsFound: every call leaves the thread's stack as it was, when
// it succeeds, when the driver refuses it, and when the context is none.
func TestS15StackLeftAsFound(t *testing.T) {
	f := newContextFixture(t)
	o := newObjects(t, f, f.ctx)
	for name, stack := range f.stacks {
		t.Run(name, func(t *testing.T) {
			for _, c := range driverCalls {
				onThread(t, f, stack, func() { require.NoError(t, c.call(f, o), c.method) })

				f.command("fail %s 999 1", c.symbol)
				onThread(t, f, stack, func() { require.ErrorIs(t, c.call(f, o), cuda.ErrorUnknown, c.method) })

				if c.inContext {
					none := o
					none.ctx = 0
					onThread(t, f, stack, func() { require.ErrorIs(t, c.call(f, none), cuda.ErrorInvalidContext, c.method) })
				}
			}
		})
	}
	r := f.report()
	require.Equal(t, "0 ", r.violations)
	require.Zero(t, r.depths)
}

// TestS15PopFails: the stack is put right when the pop after a call fails,
// whether it took the context away or not, and the call's own result stands.
func TestS15PopFails(t *testing.T) {
	f := newContextFixture(t)
	ptr, err := f.MemAlloc(f.ctx, 64)
	require.NoError(t, err)
	for name, stack := range f.stacks {
		if name == "the same current" || name == "deep" {
			continue // nothing is pushed, so nothing is popped
		}
		for _, popped := range []string{"keep", "take"} {
			t.Run(name+", "+popped, func(t *testing.T) {
				f.command("pop %s 709", popped)
				onThread(t, f, stack, func() {
					require.NoError(t, f.MemsetD8(f.ctx, ptr, 1, 64))
				})
				f.command("fail cuMemsetD8_v2 1 1")
				f.command("pop %s 709", popped)
				onThread(t, f, stack, func() {
					require.ErrorIs(t, f.MemsetD8(f.ctx, ptr, 1, 64), cuda.ErrorInvalidValue)
				})
				// A new context is current until it is popped.
				f.command("pop %s 709", popped)
				onThread(t, f, stack, func() {
					ctx, err := f.CtxCreate(0)
					require.NoError(t, err)
					require.NotZero(t, ctx)
				})
			})
		}
	}
	require.Zero(t, f.report().depths)
}

// TestS15DriverInRuins: where the stack cannot be put right, the call says so.
func TestS15DriverInRuins(t *testing.T) {
	f := newContextFixture(t)
	f.command("fail cuCtxSetCurrent 4 2")
	f.command("pop keep 4")
	runtime.LockOSThread() // and the thread ends with the test
	_, err := f.MemAlloc(f.ctx, 64)
	require.ErrorIs(t, err, cuda.ErrorDeinitialized)
}

// TestS15PushFails: a context that cannot be entered is the call's error, and
// the call is not made.
func TestS15PushFails(t *testing.T) {
	f := newContextFixture(t)
	require.NoError(t, f.CtxDestroy(f.ctx))
	for name, stack := range map[string][]cuda.Context{"empty": nil, "another current": {f.other}} {
		f.command("reset")
		onThread(t, f, stack, func() {
			_, err := f.MemAlloc(f.ctx, 64)
			require.ErrorIs(t, err, cuda.ErrorContextIsDestroyed, name)
		})
		require.Zero(t, f.report().calls["cuMemAlloc_v2"].count, name)
	}
}

// TestCurrentUnknown: a thread whose current context cannot be told, because it
// was destroyed elsewhere, can still work in another one.
func TestCurrentUnknown(t *testing.T) {
	f := newContextFixture(t)
	f.command("fail cuCtxGetCurrent 709 1")
	onThread(t, f, nil, func() {
		_, err := f.MemAlloc(f.ctx, 64)
		require.NoError(t, err)
	})
}

// TestDestroyOfCurrent: as in CUDA, destroying what is current pops it.
func TestDestroyOfCurrent(t *testing.T) {
	f := newContextFixture(t)
	onThread(t, f, []cuda.Context{f.other}, func() {
		require.NoError(t, f.CtxPushCurrent(f.ctx))
		require.NoError(t, f.CtxDestroy(f.ctx))
	})
}

// TestCurrentContext: the thread's own stack, by its own calls.
func TestCurrentContext(t *testing.T) {
	f := newContextFixture(t)
	onThread(t, f, nil, func() {
		_, err := f.CtxPopCurrent()
		require.ErrorIs(t, err, cuda.ErrorInvalidContext)
		require.NoError(t, f.CtxSetCurrent(f.ctx))
		require.NoError(t, f.CtxPushCurrent(f.other))
		current, err := f.CtxGetCurrent()
		require.NoError(t, err)
		require.Equal(t, f.other, current)
		popped, err := f.CtxPopCurrent()
		require.NoError(t, err)
		require.Equal(t, f.other, popped)
		require.NoError(t, f.CtxSetCurrent(0))
	})
}
