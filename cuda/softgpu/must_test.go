package softgpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
)

// mustPrimary retains the primary context of device 0 for the test.
func mustPrimary(tb testing.TB, d *softgpu.Driver) cuda.Context {
	tb.Helper()
	ctx, err := d.DevicePrimaryCtxRetain(0)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		if err := d.DevicePrimaryCtxRelease(0); err != nil {
			tb.Errorf("release primary context: %v", err)
		}
	})
	return ctx
}

// mustAlloc allocates memory that the test frees if it is still there.
func mustAlloc(tb testing.TB, d *softgpu.Driver, ctx cuda.Context, size uint64) cuda.DevicePtr {
	tb.Helper()
	ptr, err := d.MemAlloc(ctx, size)
	require.NoError(tb, err)
	return ptr
}

func mustFree(tb testing.TB, d *softgpu.Driver, ctx cuda.Context, ptr cuda.DevicePtr) {
	tb.Helper()
	require.NoError(tb, d.MemFree(ctx, ptr))
}

func mustHandle(tb testing.TB, d *softgpu.Driver, ctx cuda.Context, ptr cuda.DevicePtr) cuda.IpcMemHandle {
	tb.Helper()
	h, err := d.IpcGetMemHandle(ctx, ptr)
	require.NoError(tb, err)
	return h
}

func open(d *softgpu.Driver, ctx cuda.Context, h cuda.IpcMemHandle) (cuda.DevicePtr, error) {
	return d.IpcOpenMemHandle(ctx, h, cuda.IpcMemLazyEnablePeerAccess)
}

func mustOpen(tb testing.TB, d *softgpu.Driver, ctx cuda.Context, h cuda.IpcMemHandle) cuda.DevicePtr {
	tb.Helper()
	ptr, err := open(d, ctx, h)
	require.NoError(tb, err)
	return ptr
}

func mustClose(tb testing.TB, d *softgpu.Driver, ctx cuda.Context, ptr cuda.DevicePtr) {
	tb.Helper()
	require.NoError(tb, d.IpcCloseMemHandle(ctx, ptr))
}

// write and read move bytes and wait for them.
func write(tb testing.TB, d *softgpu.Driver, ctx cuda.Context, ptr cuda.DevicePtr, b []byte) {
	tb.Helper()
	require.NoError(tb, d.MemcpyHtoD(ctx, ptr, b))
	require.NoError(tb, d.CtxSynchronize(ctx))
}

func read(tb testing.TB, d *softgpu.Driver, ctx cuda.Context, ptr cuda.DevicePtr, n int) []byte {
	tb.Helper()
	b := make([]byte, n)
	require.NoError(tb, d.MemcpyDtoH(ctx, b, ptr))
	return b
}

func freeBytes(tb testing.TB, d *softgpu.Driver, ctx cuda.Context) uint64 {
	tb.Helper()
	free, _, err := d.MemGetInfo(ctx)
	require.NoError(tb, err)
	return free
}
