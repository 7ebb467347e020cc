package softgpu_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
)

func mustOpenNode(t *testing.T, cfg softgpu.Config) *softgpu.Driver {
	t.Helper()
	d, err := softgpu.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d
}

func TestNodeRefused(t *testing.T) {
	parent := mustParent(t)
	make := func(name string, mode os.FileMode) string {
		path := filepath.Join(parent, name)
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	damaged := make("damaged", 0o700)
	require.NoError(t, os.WriteFile(filepath.Join(damaged, "node"), []byte("SGPUNOD1"), 0o600))
	noise := make("noise", 0o700)
	require.NoError(t, os.WriteFile(filepath.Join(noise, "node"), fmt.Append(nil, [100]byte{7}), 0o600))
	file := filepath.Join(parent, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	link := filepath.Join(parent, "link")
	require.NoError(t, os.Symlink(make("target", 0o700), link))
	live := filepath.Join(parent, "live")
	mustOpenNode(t, softgpu.Config{Node: live, Devices: 2, Memory: 64 << 20})

	for _, tt := range []struct {
		name string
		cfg  softgpu.Config
		want string
	}{
		{"open to others", softgpu.Config{Node: make("open", 0o755)}, "mode 0755"},
		{"a file", softgpu.Config{Node: file}, "not a directory"},
		{"a link", softgpu.Config{Node: link}, "not a directory"},
		{"half a header", softgpu.Config{Node: damaged}, "damaged"},
		{"another header", softgpu.Config{Node: noise}, "not a node file"},
		{"no parent", softgpu.Config{Node: filepath.Join(parent, "a", "b")}, "no such file"},
		{"other devices", softgpu.Config{Node: live, Devices: 3}, "has 2 devices"},
		{"other memory", softgpu.Config{Node: live, Memory: 1 << 30}, "67108864"},
		{"other cost", softgpu.Config{Node: live, ContextCost: 1}, "costs"},
		{"no such device", softgpu.Config{Node: live, Visible: []int{2}}, "device 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := softgpu.Open(tt.cfg)
			require.ErrorIs(t, err, cuda.ErrNoDriver)
			require.ErrorContains(t, err, tt.want)
		})
	}
	for name, cfg := range map[string]softgpu.Config{
		"devices":  {Devices: -1},
		"too many": {Devices: 17},
		"memory":   {Memory: 1 << 62},
		"delay":    {CopyDelay: softgpu.Delay{Min: -1}},
		"mode":     {OpenMode: 9},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := softgpu.Open(cfg)
			require.Error(t, err)
			require.NotErrorIs(t, err, cuda.ErrNoDriver)
		})
	}
}

// TestNodeOfAnother needs root, to make a directory somebody else's.
func TestNodeOfAnother(t *testing.T) {
	if uid := os.Geteuid(); uid != 0 {
		t.Skipf("found user %d, need root", uid)
	}
	path := filepath.Join(mustParent(t), "theirs")
	require.NoError(t, os.Mkdir(path, 0o700))
	require.NoError(t, os.Chown(path, 12345, 12345))
	_, err := softgpu.Open(softgpu.Config{Node: path})
	require.ErrorContains(t, err, "belongs to user 12345")
}

// TestNodeInPlace: a directory that was there before stays, empty.
func TestNodeInPlace(t *testing.T) {
	path := filepath.Join(mustParent(t), "mine")
	require.NoError(t, os.Mkdir(path, 0o700))
	for range 2 {
		d, err := softgpu.Open(softgpu.Config{Node: path})
		require.NoError(t, err)
		require.NoError(t, d.Close())
		entries, err := os.ReadDir(path)
		require.NoError(t, err)
		require.Empty(t, entries)
	}
}

// TestP14ManyOpenAndLeave: processes that join and leave a node all the time
// always find one that works, and the last one leaves nothing.
func TestP14ManyOpenAndLeave(t *testing.T) {
	path := filepath.Join(mustParent(t), "busy")
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for range cap(errs) {
		wg.Go(func() {
			for range 20 {
				if err := joinAndLeave(path); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	_, err := os.Lstat(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Empty(t, entries)
}

func joinAndLeave(path string) error {
	d, err := softgpu.Open(softgpu.Config{Node: path, Devices: 1, Memory: 8 << 20, NoContextCost: true})
	if err != nil {
		return err
	}
	ctx, err := d.DevicePrimaryCtxRetain(0)
	if err != nil {
		return err
	}
	// The device is small: another process may have it all.
	if _, err := d.MemAlloc(ctx, 1<<20); err != nil {
		if free, _, infoErr := d.MemGetInfo(ctx); infoErr != nil || free > 8<<20 {
			return fmt.Errorf("%w, %d free, %w", err, free, infoErr)
		}
	}
	return d.Close()
}

func TestVisibleDevices(t *testing.T) {
	path := filepath.Join(mustParent(t), "node")
	all := mustOpenNode(t, softgpu.Config{Node: path, Devices: 2})
	some := mustOpenNode(t, softgpu.Config{Node: path, Visible: []int{1}})
	swapped := mustOpenNode(t, softgpu.Config{Node: path, Visible: []int{1, 0}})
	uuid := func(d *softgpu.Driver, dev cuda.Device) cuda.UUID {
		u, err := d.DeviceGetUuid(dev)
		require.NoError(t, err)
		return u
	}
	n, err := some.DeviceGetCount()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, uuid(all, 1), uuid(some, 0))
	require.Equal(t, uuid(all, 1), uuid(swapped, 0))
	require.Equal(t, uuid(all, 0), uuid(swapped, 1))
	a, err := all.DeviceFileInode(1)
	require.NoError(t, err)
	b, err := some.DeviceFileInode(0)
	require.NoError(t, err)
	require.Equal(t, a, b)

	// S20: memory of a device that is hidden here can still be opened.
	octx, ictx := mustPrimary(t, all), mustPrimary(t, some)
	ptr := mustAlloc(t, all, octx, 2<<20)
	write(t, all, octx, ptr, []byte("hidden"))
	there := mustOpen(t, some, ictx, mustHandle(t, all, octx, ptr))
	require.Equal(t, "hidden", string(read(t, some, ictx, there, 6)))
	mustClose(t, some, ictx, there)
	mustFree(t, all, octx, ptr)
}
