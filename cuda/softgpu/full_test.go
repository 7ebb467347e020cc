package softgpu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// smallDisk is a file system with room for so many bytes.
type smallDisk struct {
	realDisk
	room     uint64
	reserved uint64
	fail     error // of the next reservation
}

func (d *smallDisk) available(*deviceFile) (uint64, bool, error) {
	return d.room - d.reserved, true, nil
}

func (d *smallDisk) reserve(f *deviceFile, off, n int64) error {
	if d.fail != nil {
		return d.fail
	}
	d.reserved += uint64(n)
	return d.realDisk.reserve(f, off, n)
}

func (d *smallDisk) punch(f *deviceFile, off, n int64) error {
	var before, after unix.Stat_t
	stat := func(st *unix.Stat_t) error {
		return onFD(f.f, func(fd uintptr) error { return unix.Fstat(int(fd), st) })
	}
	if err := stat(&before); err != nil {
		return err
	}
	if err := d.realDisk.punch(f, off, n); err != nil {
		return err
	}
	if err := stat(&after); err != nil {
		return err
	}
	d.reserved -= uint64(before.Blocks-after.Blocks) * 512
	return nil
}

// TestShortFileSystem: where the file system could run short memory is stored
// when it is allocated, and what cannot be stored is not handed out.
func TestShortFileSystem(t *testing.T) {
	d, ctx := openPlain(t, DefaultParent())
	disk := &smallDisk{room: 64 << 20}
	d.node.disk = disk

	sparse, err := d.MemAlloc(ctx, 8<<20)
	require.NoError(t, err)
	require.Zero(t, disk.reserved, "plenty of room")
	stored, err := d.MemAlloc(ctx, 32<<20)
	require.NoError(t, err)
	require.EqualValues(t, 32<<20, disk.reserved)
	_, err = d.MemAlloc(ctx, 26<<20)
	require.ErrorIs(t, err, cuda.ErrorOutOfMemory, "24 MiB besides the 8 that are promised")
	rest, err := d.MemAlloc(ctx, 24<<20)
	require.NoError(t, err)
	require.NoError(t, d.MemFree(ctx, stored))
	require.EqualValues(t, 24<<20, disk.reserved, "given back")

	disk.fail = unix.ENOSPC
	free, _, err := d.MemGetInfo(ctx)
	require.NoError(t, err)
	_, err = d.MemAlloc(ctx, 16<<20)
	require.ErrorIs(t, err, cuda.ErrorOutOfMemory)
	require.ErrorContains(t, err, "is full")
	after, _, err := d.MemGetInfo(ctx)
	require.NoError(t, err)
	require.Equal(t, free, after, "nothing kept of a refused allocation")
	require.NoError(t, d.MemFree(ctx, sparse))
	require.NoError(t, d.MemFree(ctx, rest))
}

// TestFullFileSystem needs root, to mount a small one. Its last part takes the
// room away from under the emulator: the copy fails, the process lives.
func TestFullFileSystem(t *testing.T) {
	if uid := os.Geteuid(); uid != 0 {
		t.Skipf("found user %d, need root to mount a tmpfs", uid)
	}
	dir := t.TempDir()
	if err := unix.Mount("softgpu-test", dir, "tmpfs", 0, "size=64m,mode=0700"); err != nil {
		t.Skipf("found mount of a tmpfs refused (%v), need it allowed", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	d, ctx := openPlain(t, dir)

	var all []cuda.DevicePtr
	for {
		ptr, err := d.MemAlloc(ctx, 6<<20)
		if err != nil {
			require.ErrorIs(t, err, cuda.ErrorOutOfMemory)
			break
		}
		all = append(all, ptr)
	}
	require.GreaterOrEqual(t, len(all), 9)
	for _, ptr := range all {
		require.NoError(t, d.MemsetD8(ctx, ptr, 0xee, 6<<20))
	}
	require.NoError(t, d.CtxSynchronize(ctx), "all that was handed out can be written")
	for _, ptr := range all {
		require.NoError(t, d.MemFree(ctx, ptr))
	}

	ptr, err := d.MemAlloc(ctx, 12<<20)
	require.NoError(t, err, "little enough to be left sparse")
	hog, err := os.Create(filepath.Join(dir, "hog"))
	require.NoError(t, err)
	require.NoError(t, unix.Fallocate(int(hog.Fd()), 0, 0, 62<<20))
	require.NoError(t, d.MemsetD8(ctx, ptr, 1, 12<<20))
	require.ErrorIs(t, d.CtxSynchronize(ctx), cuda.ErrorIllegalAddress)
	require.NoError(t, hog.Close())
	require.NoError(t, os.Remove(hog.Name()))
}

func openPlain(t *testing.T, parent string) (*Driver, cuda.Context) {
	t.Helper()
	node, err := os.MkdirTemp(parent, "softgpu-test-")
	require.NoError(t, err)
	d, err := Open(Config{Node: node})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.Close())
		require.NoError(t, os.Remove(node))
	})
	ctx, err := d.DevicePrimaryCtxRetain(0)
	require.NoError(t, err)
	return d, ctx
}
