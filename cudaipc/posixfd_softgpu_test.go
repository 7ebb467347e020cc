package cudaipc

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

// vmm makes VMM memory that may be exported as types says.
func (s *side) vmm(size uint64, types cuda.HandleType) (p cuda.DevicePtr, free func()) {
	s.tb.Helper()
	prop := cuda.AllocationProp{HandleTypes: types}
	gran, err := s.MemGetAllocationGranularity(prop)
	require.NoError(s.tb, err)
	size = (size + gran - 1) / gran * gran
	h, err := s.MemCreate(s.ctx, size, prop)
	require.NoError(s.tb, err)
	p, err = s.MemAddressReserve(s.ctx, size, 0)
	require.NoError(s.tb, err)
	require.NoError(s.tb, s.MemMap(s.ctx, p, size, 0, h))
	require.NoError(s.tb, s.MemRelease(s.ctx, h))
	require.NoError(s.tb, s.MemSetAccess(s.ctx, p, size, 0, cuda.AccessReadWrite))
	return p, func() {
		require.NoError(s.tb, s.MemUnmap(s.ctx, p, size))
		require.NoError(s.tb, s.MemAddressFree(s.ctx, p, size))
	}
}

// VMM memory by its descriptor, taken by pidfd or fetched by the layer above;
// the owner may drop all it has (F11).
func TestPosixFD(t *testing.T) {
	for _, socket := range []bool{false, true} {
		t.Run(fmt.Sprintf("fetched %t", socket), func(t *testing.T) {
			owner, importer, c := pair(t)
			before, fds := owner.freeBytes(), openFDs()
			p, free := owner.vmm(4*mib, cuda.HandleTypePosixFD)
			owner.write(p.Add(100), 0x3c, 4096)
			r := owner.register(p.Add(100), 4096)
			k := r.Key()
			require.Equal(t, KindPosixFD, k.Kind())
			var opts MapOptions
			if socket {
				opts.FetchFD = func(_ context.Context, key *Key) (int, error) {
					return takeFD(key.Identity, importer.id, fdOf(key))
				}
			}
			m := mustMap(t, c, &k, opts)
			require.Equal(t, KindPosixFD, m.Kind())
			require.Equal(t, bytes.Repeat([]byte{0x3c}, 4096), importer.read(m.Ptr().Add(k.Offset), 4096))
			s := c.Stats()
			require.EqualValues(t, 1, s.FDOpens)
			require.Equal(t, socket, s.FDFetched == 1)

			require.NoError(t, r.Close())
			free()
			require.Equal(t, before-4*mib, owner.freeBytes())
			require.Equal(t, bytes.Repeat([]byte{0x3c}, 4096), importer.read(m.Ptr().Add(k.Offset), 4096))
			require.NoError(t, m.Release(FreeUnused))
			require.Equal(t, before, owner.freeBytes())
			require.Equal(t, fds, openFDs())

			_, err := c.Map(t.Context(), &k, opts)
			require.ErrorIs(t, err, ErrUnreachable, "the registration has ended")
		})
	}
}

// S29 on the emulator: whichever step fails, nothing is left, the error names the step, and a
// failing undo does not skip the others.
func TestS29OnSoftgpu(t *testing.T) {
	owner, importer, c := pair(t)
	before := owner.freeBytes()
	p, free := owner.vmm(4*mib, cuda.HandleTypePosixFD)
	r := owner.register(p, 4*mib)
	k := r.Key()
	with := owner.freeBytes()
	fail := func(calls ...string) {
		importer.SetHook(func(call string) cuda.Result {
			for _, name := range calls {
				if call == name {
					return cuda.ErrorUnknown
				}
			}
			return cuda.Success
		})
	}
	fds := openFDs()
	for call, step := range map[string]string{
		"cuMemImportFromShareableHandle": "import descriptor",
		"cuMemAddressReserve":            "reserve addresses",
		"cuMemMap":                       "map memory",
		"cuMemSetAccess":                 "set access",
	} {
		t.Run(step, func(t *testing.T) {
			fail(call)
			_, err := c.Map(t.Context(), &k, MapOptions{})
			require.ErrorIs(t, err, cuda.ErrorUnknown)
			require.ErrorContains(t, err, step)
			require.Zero(t, c.Stats().Live)
			require.Equal(t, fds, openFDs())
		})
	}
	for call, step := range map[string]string{
		"cuMemUnmap":       "unmap memory",
		"cuMemAddressFree": "free addresses",
		"cuMemRelease":     "release memory",
	} {
		t.Run(step, func(t *testing.T) {
			for _, from := range []string{"", "cuMemSetAccess"} { // at the close, and at the undo
				fail(call, from)
				m, err := c.Map(t.Context(), &k, MapOptions{})
				if from == "" {
					require.NoError(t, err)
					err = m.Release(FreeUnused)
				}
				require.ErrorContains(t, err, step)
				require.Equal(t, 1, c.Stats().Zombies)
				fail()
				_, err = c.EvictIdle(0)
				require.NoError(t, err, "what was left is undone")
				require.Zero(t, c.Stats().Live)
			}
		})
	}
	require.Equal(t, with, owner.freeBytes())
	require.NoError(t, r.Close())
	free()
	require.Equal(t, before, owner.freeBytes())
	require.Equal(t, fds-1, openFDs(), "the exported one is closed too")
}

// A key that says more than the memory has does not get a mapping.
func TestLyingDescriptorKey(t *testing.T) {
	owner, _, c := pair(t)
	p, free := owner.vmm(4*mib, cuda.HandleTypePosixFD)
	r := owner.register(p, 4*mib)
	for _, length := range []uint64{8 * mib, 4*mib + 1, 1 << 60} {
		k := r.Key()
		k.Length = length
		_, err := c.Map(t.Context(), &k, MapOptions{})
		require.Error(t, err)
		require.Zero(t, c.Stats().Live)
	}
	require.NoError(t, r.Close())
	free()
}
