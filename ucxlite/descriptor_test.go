package ucxlite

import (
	"os"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/stretchr/testify/require"
)

func openDescriptors(tb testing.TB) int {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(tb, err)
	return len(entries)
}

// VMM memory: the descriptor comes by the control connection, named by slot and
// generation, and none is left over.
func TestS24DescriptorByTheSocket(t *testing.T) {
	owner, importer := mustPairOf(t)
	base := owner.free()
	ptr := owner.allocVMM(payload, cuda.HandleTypePosixFD)
	m, packed := owner.register(ptr, payload)
	require.Equal(t, cudaipc.KindPosixFD, m.Kind(), m.Reason())
	require.Equal(t, base-payload, owner.free())
	want := randomBytes(24, 4096)
	owner.write(ptr, want)
	e := importer.mustConnected(owner, EndpointOptions{})

	const rounds = 100
	var before int
	for i := range rounds {
		k := mustUnpack(t, e, packed, UnpackOptions{})
		require.Equal(t, want, importer.read(mustPtr(t, k, k.Address()), len(want)))
		require.NoError(t, k.Destroy())
		if i == 0 {
			before = openDescriptors(t)
		}
	}
	require.Equal(t, before, openDescriptors(t))
	stats := importer.c.Cache().Stats()
	require.EqualValues(t, rounds, stats.FDFetched)
	require.EqualValues(t, rounds, stats.Closes)

	// An operation may be the first use, too: it asks in the background.
	k := mustUnpack(t, e, packed, UnpackOptions{})
	got := importer.alloc(4096)
	r, err := e.Get(DeviceBuffer(got, 4096), k.Address(), k, OpOptions{})
	mustWait(t, r, err)
	require.Equal(t, want, importer.read(got, 4096))
	require.NoError(t, k.Destroy())

	// After the unmap there is no descriptor to ask for, and that speaks
	// against this key only.
	require.NoError(t, m.Unmap(testContext(t)))
	k = mustUnpack(t, e, packed, UnpackOptions{})
	_, err = k.Ptr(k.Address())
	require.ErrorIs(t, err, ErrStale)
	r, err = e.Get(DeviceBuffer(got, 4096), k.Address(), k, OpOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, r.Wait(testContext(t)), ErrStale)
	_, again := owner.register(ptr, payload)
	k = mustUnpack(t, e, again, UnpackOptions{})
	require.Contains(t, e.Explain(DeviceBuffer(got, 8), k), "ipc: mapped by its posix-fd")
	mustPtr(t, k, k.Address())
}
