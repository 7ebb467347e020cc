package softgpu_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
)

// TestS09KilledAtAnyInstant: a process that is killed in the middle of its
// calls leaves nothing but what a survivor has open, and that until it is
// closed.
func TestS09KilledAtAnyInstant(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	d := softgputest.New(t, noDelay)
	ctx := mustPrimary(t, d)
	mine := mustAlloc(t, d, ctx, 8<<20)
	write(t, d, ctx, mine, bytes.Repeat([]byte{0x11}, 8<<20))
	h := mustHandle(t, d, ctx, mine)
	base := freeBytes(t, d, ctx)
	want := bytes.Repeat([]byte{childValue}, childSize)
	for range rounds {
		c := startChild(t, d, h)
		theirs := mustOpen(t, d, ctx, c.handle)
		c.killAfter(t, random.IntN(200))

		require.Equal(t, base-childSize, freeBytes(t, d, ctx), "all but what is open here came back")
		require.True(t, bytes.Equal(want, read(t, d, ctx, theirs, childSize)), "bytes of a dead owner")
		again := mustOpen(t, d, ctx, c.handle)
		require.Equal(t, theirs, again)
		mustClose(t, d, ctx, theirs)
		mustClose(t, d, ctx, theirs)
		require.Equal(t, base, freeBytes(t, d, ctx))
		_, err := open(d, ctx, c.handle)
		require.ErrorIs(t, err, cuda.ErrorInvalidHandle)
	}
	require.True(t, bytes.Equal(bytes.Repeat([]byte{0x11}, 8<<20), read(t, d, ctx, mine, 8<<20)), "nobody took blocks in use")
	require.Empty(t, holders(t, d.NodePath(), 1), "files of the dead")
	mustFree(t, d, ctx, mine)
}

// holders returns the table and ticket files beyond the first n.
func holders(t *testing.T, node string, n int) []string {
	t.Helper()
	tables, err := filepath.Glob(filepath.Join(node, "table-*"))
	require.NoError(t, err)
	tickets, err := filepath.Glob(filepath.Join(node, "ticket-*"))
	require.NoError(t, err)
	return append(tables[min(n, len(tables)):], tickets...)
}

// TestStaleNodeSwept: a node whose processes were all killed goes when the next
// node is opened beside it; its memory is not handed on.
func TestStaleNodeSwept(t *testing.T) {
	parent := mustParent(t)
	stale := filepath.Join(parent, "stale")
	d, err := softgpu.Open(softgpu.Config{Node: stale})
	require.NoError(t, err)
	ctx, err := d.DevicePrimaryCtxRetain(0)
	require.NoError(t, err)
	c := startChild(t, d, mustHandle(t, d, ctx, mustAlloc(t, d, ctx, 2<<20)))
	require.NoError(t, d.Close())
	require.DirExists(t, stale, "a process lives there")

	fresh := func(name string) {
		t.Helper()
		d, err := softgpu.Open(softgpu.Config{Node: filepath.Join(parent, name)})
		require.NoError(t, err)
		require.NoError(t, d.Close())
	}
	fresh("other")
	require.DirExists(t, stale, "a process lives there still")
	c.killAfter(t, 1)
	fresh("other")
	_, err = os.Lstat(stale)
	require.ErrorIs(t, err, fs.ErrNotExist)
	entries, err := os.ReadDir(parent)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// TestStaleNodeRevived: a node whose processes were all killed serves the next
// one, with all memory free, when that one opens it itself.
func TestStaleNodeRevived(t *testing.T) {
	d := softgputest.New(t, noDelay)
	ctx := mustPrimary(t, d)
	base := freeBytes(t, d, ctx)
	c := startChild(t, d, mustHandle(t, d, ctx, mustAlloc(t, d, ctx, 2<<20)))
	c.killAfter(t, 20)
	next := softgputest.Attach(t, d.NodePath(), noDelay)
	require.Empty(t, holders(t, d.NodePath(), 2), "dropped by the one that joined")
	nctx := mustPrimary(t, next)
	require.Equal(t, base-softgpu.DefaultContextCost-(2<<20), freeBytes(t, next, nctx))
}

func mustParent(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp(softgpu.DefaultParent(), "softgpu-parent-")
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(parent); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("remove %s: %v", parent, err)
		}
	})
	return parent
}
