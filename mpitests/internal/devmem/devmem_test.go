package devmem

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
)

// Each allocator gives memory that can be written and read, says by a trial
// whether it can be exported, and takes all of it back.
func TestAllocators(t *testing.T) {
	drv := softgputest.New(t)
	ctx, err := drv.DevicePrimaryCtxRetain(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, drv.DevicePrimaryCtxRelease(0)) })
	before, _, err := drv.MemGetInfo(ctx)
	require.NoError(t, err)
	exported := map[string]bool{"cuMemAlloc": true, "cuMemAllocManaged": false, "VMM": false, "VMM_PosixFD": true}
	require.Len(t, All(), len(exported))
	for _, a := range All() {
		b, err := a.Alloc(drv, ctx, 0, 3<<20+1)
		require.NoError(t, err, a.UCXName)
		require.EqualValues(t, 3<<20+1, b.Size)
		want := bytes.Repeat([]byte{0x5a}, 3<<20+1)
		require.NoError(t, drv.MemcpyHtoD(ctx, b.Ptr, want))
		got := make([]byte, len(want))
		require.NoError(t, drv.MemcpyDtoH(ctx, got, b.Ptr))
		require.True(t, bytes.Equal(want, got), a.UCXName)
		ok, err := b.Exportable()
		require.NoError(t, err, a.UCXName)
		require.Equal(t, exported[a.UCXName], ok, a.UCXName)
		require.NoError(t, b.Free())
		require.NoError(t, b.Free(), "again")
	}
	after, _, err := drv.MemGetInfo(ctx)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestP9Absent: what the device says it does not have is told from what it
// cannot give.
func TestP9Absent(t *testing.T) {
	drv := softgputest.New(t)
	ctx, err := drv.DevicePrimaryCtxRetain(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, drv.DevicePrimaryCtxRelease(0)) })
	none := without{drv}
	for _, a := range []Allocator{Managed, VMM, VMMPosixFD} {
		_, err := a.Alloc(none, ctx, 0, 8)
		require.ErrorIs(t, err, ErrAbsent, a.UCXName)
	}
	b, err := Alloc.Alloc(none, ctx, 0, 8)
	require.NoError(t, err)
	require.NoError(t, b.Free())
	for _, a := range All() {
		_, err := a.Alloc(drv, ctx, 0, 1<<50)
		require.ErrorIs(t, err, cuda.ErrorOutOfMemory, a.UCXName)
		require.NotErrorIs(t, err, ErrAbsent)
	}
}

// without is a driver whose devices have no attribute.
type without struct{ cuda.Driver }

func (without) DeviceGetAttribute(cuda.DeviceAttribute, cuda.Device) (int, error) { return 0, nil }
