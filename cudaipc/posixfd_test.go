package cudaipc

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// vmmDriver is a fakeDriver with the importer's VMM calls: it counts what is
// taken and refuses what the driver refuses.
type vmmDriver struct {
	*fakeDriver
	physical  uint64 // length of the memory behind any descriptor
	resources vmmResources
}

type vmmResources struct{ Handles, Ranges, Maps int }

const vmmBase, vmmGranularity = cuda.DevicePtr(0x6000_0000_0000), uint64(2 * mib)

func (d *vmmDriver) answer(call string, refuse bool) error {
	if err := d.call(call); err != nil {
		return err
	}
	if refuse {
		return cuda.Err(call, cuda.ErrorInvalidValue)
	}
	return nil
}

func (d *vmmDriver) MemImportPosixFD(_ cuda.Context, fd int) (cuda.MemHandle, error) {
	_, bad := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	err := d.answer("cuMemImportFromShareableHandle", bad != nil)
	if err == nil {
		d.resources.Handles++
	}
	return 1, err
}

func (d *vmmDriver) MemAddressReserve(_ cuda.Context, size, _ uint64) (cuda.DevicePtr, error) {
	err := d.answer("cuMemAddressReserve", size%vmmGranularity != 0)
	if err == nil {
		d.resources.Ranges++
	}
	return vmmBase, err
}

func (d *vmmDriver) MemMap(_ cuda.Context, _ cuda.DevicePtr, size, _ uint64, _ cuda.MemHandle) error {
	err := d.answer("cuMemMap", size > d.physical)
	if err == nil {
		d.resources.Maps++
	}
	return err
}

func (d *vmmDriver) MemSetAccess(cuda.Context, cuda.DevicePtr, uint64, cuda.Device, cuda.AccessFlags) error {
	return d.answer("cuMemSetAccess", false)
}

func (d *vmmDriver) MemUnmap(cuda.Context, cuda.DevicePtr, uint64) error {
	err := d.answer("cuMemUnmap", d.resources.Maps == 0)
	if err == nil {
		d.resources.Maps--
	}
	return err
}

func (d *vmmDriver) MemAddressFree(cuda.Context, cuda.DevicePtr, uint64) error {
	err := d.answer("cuMemAddressFree", d.resources.Maps > 0 || d.resources.Ranges == 0)
	if err == nil {
		d.resources.Ranges--
	}
	return err
}

func (d *vmmDriver) MemRelease(cuda.Context, cuda.MemHandle) error {
	err := d.answer("cuMemRelease", d.resources.Handles == 0)
	if err == nil {
		d.resources.Handles--
	}
	return err
}

func (d *vmmDriver) MemGetAddressRange(_ cuda.Context, p cuda.DevicePtr) (cuda.DevicePtr, uint64, error) {
	return vmmBase, d.physical, d.answer("cuMemGetAddressRange", d.resources.Maps == 0)
}

// fail makes the named calls fail from now on.
func (d *vmmDriver) fail(calls ...string) {
	d.hook = func(call string) error {
		for _, name := range calls {
			if call == name {
				return cuda.Err(call, cuda.ErrorUnknown)
			}
		}
		return nil
	}
}

// mustVMM is a driver, a cache, a key of 4 MiB and how to get a descriptor.
func mustVMM(tb testing.TB) (*vmmDriver, *Cache, *Key, MapOptions) {
	d := &vmmDriver{fakeDriver: newFake(), physical: 4 * mib}
	c := mustCache(tb, d, CacheOptions{})
	tb.Cleanup(func() { require.Empty(tb, cmp.Diff(vmmResources{}, d.resources)) })
	k := &Key{
		Identity: fakePeer(7), Base: 0x1000_0000, Length: 4 * mib, UserLength: 4 * mib, BufferID: 1,
		Handles: []Handle{{KindPosixFD, make([]byte, 4)}},
	}
	return d, c, k, MapOptions{FetchFD: func(context.Context, *Key) (int, error) {
		return unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
	}}
}

func TestPosixFDMapAndClose(t *testing.T) {
	d, c, k, opts := mustVMM(t)
	fds := openFDs()
	m := mustMap(t, c, k, opts)
	require.Equal(t, fds, openFDs(), "the descriptor is not kept")
	require.Equal(t, vmmBase, m.Ptr())
	require.Equal(t, KindPosixFD, m.Kind())
	require.Empty(t, cmp.Diff(vmmResources{1, 1, 1}, d.resources))
	s := c.Stats()
	require.Equal(t, []uint64{1, 1, 1}, []uint64{s.Opens, s.FDOpens, s.FDFetched})
	require.NoError(t, m.Release(FreeUnused))
}

// S29: whichever step fails, nothing is left and the error names the step.
func TestS29ImportIsAllOrNothing(t *testing.T) {
	for call, step := range map[string]string{
		"cuMemImportFromShareableHandle": "import descriptor",
		"cuMemAddressReserve":            "reserve addresses",
		"cuMemMap":                       "map memory",
		"cuMemSetAccess":                 "set access",
		"cuMemGetAddressRange":           "check mapping",
	} {
		t.Run(step, func(t *testing.T) {
			d, c, k, opts := mustVMM(t)
			fds := openFDs()
			d.fail(call)
			_, err := c.Map(t.Context(), k, opts)
			require.ErrorIs(t, err, cuda.ErrorUnknown)
			require.ErrorContains(t, err, step)
			require.Empty(t, cmp.Diff(vmmResources{}, d.resources))
			require.Zero(t, c.Stats().Live)
			require.Equal(t, fds, openFDs())
		})
	}
}

// S29: an undo that fails does not skip the others, at a close and at a failed
// import alike; what is left is tried again.
func TestS29FailingUndo(t *testing.T) {
	for call, tc := range map[string]struct {
		step string
		left vmmResources
	}{
		"cuMemUnmap":       {"unmap memory", vmmResources{0, 1, 1}}, // a mapped range cannot be freed
		"cuMemAddressFree": {"free addresses", vmmResources{0, 1, 0}},
		"cuMemRelease":     {"release memory", vmmResources{1, 0, 0}},
	} {
		for _, at := range []string{"close", "import"} {
			t.Run(tc.step+" at "+at, func(t *testing.T) {
				d, c, k, opts := mustVMM(t)
				var err error
				if at == "close" {
					m := mustMap(t, c, k, opts)
					d.fail(call)
					err = m.Release(FreeUnused)
				} else {
					d.fail("cuMemSetAccess", call)
					_, err = c.Map(t.Context(), k, opts)
					require.ErrorContains(t, err, "set access")
				}
				require.ErrorIs(t, err, cuda.ErrorUnknown)
				require.ErrorContains(t, err, tc.step)
				require.Empty(t, cmp.Diff(tc.left, d.resources))
				require.Equal(t, 1, c.Stats().Zombies)
				require.NoError(t, c.CheckInvariants())

				d.fail()
				_, err = c.EvictIdle(0)
				require.NoError(t, err)
				require.Empty(t, cmp.Diff(vmmResources{}, d.resources))
				require.Zero(t, c.Stats().Live)
			})
		}
	}
}

// A key that says more than the memory behind the descriptor has.
func TestPosixFDLyingKey(t *testing.T) {
	_, c, k, opts := mustVMM(t)
	for _, length := range []uint64{8 * mib, 4*mib + 1} {
		lie := *k
		lie.Length = length
		_, err := c.Map(t.Context(), &lie, opts)
		require.ErrorIs(t, err, ErrInvalidKey)
		require.ErrorIs(t, err, cuda.ErrorInvalidValue)
	}
}

// A key with several handles falls back from one to the next.
func TestHandlesFallBack(t *testing.T) {
	_, c, k, opts := mustVMM(t)
	both := k.clone()
	both.Handles = append([]Handle{{KindFabric, []byte("no such thing here")}, {KindLegacy, make([]byte, 64)}}, k.Handles...)
	m := mustMap(t, c, &both, opts)
	require.Equal(t, KindPosixFD, m.Kind())
	require.NoError(t, m.Release(FreeUnused))

	both.Handles = both.Handles[:2]
	_, err := c.Map(t.Context(), &both, opts)
	require.ErrorIs(t, err, ErrUnreachable, "all reasons are told")
	require.ErrorContains(t, err, "fabric")
	require.ErrorIs(t, err, ErrStale)
}
