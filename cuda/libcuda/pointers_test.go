//go:build cgo

package libcuda_test

import (
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPointerAttributes: the driver writes values of one, four and eight bytes;
// each comes back as the number that it is.
func TestPointerAttributes(t *testing.T) {
	f := openFake(t, fakeOptions{})
	primary, err := f.DevicePrimaryCtxRetain(0)
	require.NoError(t, err)
	const hostAddress = 0x4057 // the fake's
	minusTwo := -2
	for _, c := range []struct {
		attr cuda.PointerAttribute
		ptr  cuda.DevicePtr
		want uint64
	}{
		{cuda.PointerAttributeContext, 1, uint64(primary)},
		{cuda.PointerAttributeContext, hostAddress, 0},
		{cuda.PointerAttributeMemoryType, 1, uint64(cuda.MemoryTypeDevice)},
		{cuda.PointerAttributeMemoryType, hostAddress, uint64(cuda.MemoryTypeHost)},
		{cuda.PointerAttributeSyncMemops, 1, 1},
		{cuda.PointerAttributeBufferID, 1, 0xfedcba9876543210},
		{cuda.PointerAttributeIsManaged, 1, 0},
		{cuda.PointerAttributeDeviceOrdinal, 1, 1},
		{cuda.PointerAttributeDeviceOrdinal, hostAddress, uint64(minusTwo)},
		{cuda.PointerAttributeIsLegacyIpcCapable, 1, 1},
		{cuda.PointerAttributeRangeStart, 0x7f1234567000, 0x7f1234567000},
		{cuda.PointerAttributeRangeSize, 1, 5 << 30},
		{cuda.PointerAttributeMapped, 1, 1},
		{cuda.PointerAttributeAllowedHandleTypes, 1, 9},
	} {
		got, err := f.PointerGetAttribute(c.attr, c.ptr)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "attribute %d of %v", c.attr, c.ptr)
	}

	_, err = f.PointerGetAttribute(cuda.PointerAttributeBufferID, 0)
	require.ErrorIs(t, err, cuda.ErrorInvalidValue)
	_, err = f.PointerGetAttribute(5, 1) // P2P_TOKENS, a struct
	require.ErrorIs(t, err, cuda.ErrorInvalidValue)
	require.ErrorContains(t, err, "unknown attribute")
}

// TestSyncMemops is set in the context that owns the memory, or as the thread
// stands where none does.
func TestSyncMemops(t *testing.T) {
	f := openFake(t, fakeOptions{})
	primary, err := f.DevicePrimaryCtxRetain(0)
	require.NoError(t, err)
	for ptr, owner := range map[cuda.DevicePtr]cuda.Context{1: primary, 0x4057: 0} {
		onThread(t, f, nil, func() {
			require.NoError(t, f.PointerSetAttribute(cuda.PointerAttributeSyncMemops, ptr, 1))
			require.Equal(t, owner, f.report().calls["cuPointerSetAttribute"].context)
		})
	}
	require.ErrorIs(t, f.PointerSetAttribute(cuda.PointerAttributeSyncMemops, 0, 1), cuda.ErrorInvalidValue)
	require.ErrorIs(t, f.PointerSetAttribute(cuda.PointerAttributeSyncMemops, 1, 2), cuda.ErrorInvalidValue)
	require.ErrorIs(t, f.PointerSetAttribute(cuda.PointerAttributeBufferID, 1, 1), cuda.ErrorInvalidValue)
}

// TestExportedDescriptorClosesOnExec: a child process must not keep the memory.
func TestExportedDescriptorClosesOnExec(t *testing.T) {
	f := openFake(t, fakeOptions{})
	fd, err := f.MemExportPosixFD(f.ctx, fakeHandle)
	require.NoError(t, err)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	require.NoError(t, unix.Close(fd))

	fd, err = f.MemExportPosixFD(f.ctx, 1)
	require.ErrorIs(t, err, cuda.ErrorInvalidValue)
	require.Equal(t, -1, fd)
}
