package cudaipc

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
)

// side is one process of a softgpu node: a driver, a primary context and an
// identity of its own.
type side struct {
	*softgpu.Driver
	tb  testing.TB
	id  Identity
	ctx cuda.Context
}

func newSide(tb testing.TB, d *softgpu.Driver, nonce byte) *side {
	tb.Helper()
	id, err := Self()
	require.NoError(tb, err)
	id.Nonce[0] ^= nonce
	ctx, err := d.DevicePrimaryCtxRetain(0)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, d.DevicePrimaryCtxRelease(0)) })
	return &side{Driver: d, tb: tb, id: id, ctx: ctx}
}

// pair is the fixture of SCENARIOS.md: an owner and an importer of one node.
func pair(tb testing.TB) (owner, importer *side, c *Cache) {
	tb.Helper()
	d := softgputest.New(tb)
	owner = newSide(tb, d, 1)
	importer = newSide(tb, softgputest.Attach(tb, d.NodePath()), 2)
	return owner, importer, mustCache(tb, importer.Driver, CacheOptions{Identity: &importer.id})
}

func (s *side) alloc(size uint64) cuda.DevicePtr {
	s.tb.Helper()
	p, err := s.MemAlloc(s.ctx, size)
	require.NoError(s.tb, err)
	return p
}

func (s *side) free(p cuda.DevicePtr) {
	s.tb.Helper()
	require.NoError(s.tb, s.MemFree(s.ctx, p))
}

func (s *side) freeBytes() uint64 {
	s.tb.Helper()
	n, _, err := s.MemGetInfo(s.ctx)
	require.NoError(s.tb, err)
	return n
}

func (s *side) register(p cuda.DevicePtr, size uint64) *Registration {
	s.tb.Helper()
	r, err := Register(s.Driver, s.ctx, p, size, RegisterOptions{Identity: &s.id})
	require.NoError(s.tb, err)
	return r
}

// exported allocates, registers and lets go of the registration: a legacy key
// needs nothing of it.
func (s *side) exported(size uint64) (cuda.DevicePtr, *Key) {
	s.tb.Helper()
	p := s.alloc(size)
	r := s.register(p, size)
	k := r.Key()
	require.NoError(s.tb, r.Close())
	return p, &k
}

func (s *side) write(p cuda.DevicePtr, pattern byte, n int) {
	s.tb.Helper()
	require.NoError(s.tb, s.MemcpyHtoD(s.ctx, p, bytes.Repeat([]byte{pattern}, n)))
	require.NoError(s.tb, s.CtxSynchronize(s.ctx))
}

func (s *side) read(p cuda.DevicePtr, n int) []byte {
	s.tb.Helper()
	b := make([]byte, n)
	require.NoError(s.tb, s.MemcpyDtoH(s.ctx, b, p))
	return b
}

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

// The main job: map, read, write, release; then the owner's memory is back to
// the byte (F1, F4).
func TestOwnerGetsItsMemoryBack(t *testing.T) {
	owner, importer, c := pair(t)
	before := owner.freeBytes()
	p := owner.alloc(64 * mib)
	owner.write(p, 0xa5, 4096)
	r := owner.register(p, 64*mib)
	require.Equal(t, KindLegacy, r.Kind())
	require.Empty(t, r.Reason())
	packed, err := r.AppendKey(nil)
	require.NoError(t, err)
	k, err := ParseKey(packed)
	require.NoError(t, err)

	m := mustMap(t, c, &k, MapOptions{})
	require.Equal(t, KindLegacy, m.Kind())
	require.Equal(t, uint64(64*mib), m.Size())
	require.Equal(t, bytes.Repeat([]byte{0xa5}, 4096), importer.read(m.Ptr(), 4096))
	importer.write(m.Ptr().Add(64*mib-8), 0x5a, 8)
	require.Equal(t, bytes.Repeat([]byte{0x5a}, 8), owner.read(p.Add(64*mib-8), 8))

	require.NoError(t, r.Close())
	owner.free(p)
	require.Equal(t, before-64*mib, owner.freeBytes(), "F1: still mapped, so still missing")
	require.NoError(t, m.Release(FreeUnused))
	require.Equal(t, before, owner.freeBytes())
}

// S03: the kind is what the allocation allows; none has a reason and no error.
func TestS03RegisterKinds(t *testing.T) {
	owner, _, _ := pair(t)
	plain := owner.alloc(4096)
	managed, err := owner.MemAllocManaged(owner.ctx, 4096, cuda.MemAttachGlobal)
	require.NoError(t, err)
	fd, freeFD := owner.vmm(4*mib, cuda.HandleTypePosixFD)
	none, freeNone := owner.vmm(4*mib, cuda.HandleTypeNone)
	for _, tc := range []struct {
		name   string
		p      cuda.DevicePtr
		kind   Kind
		reason string
	}{
		{"plain", plain, KindLegacy, ""},
		{"managed", managed, KindNone, "managed"},
		{"VMM with a descriptor", fd, KindPosixFD, ""},
		{"VMM with none", none, KindNone, "no shareable handle type"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := owner.register(tc.p, 4096)
			require.Equal(t, tc.kind, r.Kind())
			require.Contains(t, r.Reason(), tc.reason)
			require.Equal(t, tc.reason == "", r.Reason() == "")
			k := r.Key()
			_, err := k.MarshalBinary()
			require.NoError(t, err, "a key of kind none is a key")
			require.NoError(t, r.Close())
		})
	}
	owner.free(plain)
	owner.free(managed)
	freeFD()
	freeNone()
}

func TestRegisterRefuses(t *testing.T) {
	owner, importer, c := pair(t)
	p := owner.alloc(4096)
	for name, r := range map[string]struct {
		p    cuda.DevicePtr
		size uint64
	}{
		"nothing":      {0, 1},
		"no bytes":     {p, 0},
		"overflow":     {p, ^uint64(0)},
		"past the end": {p, 4097},
		"unknown":      {p.Add(1 << 40), 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Register(owner.Driver, owner.ctx, r.p, r.size, RegisterOptions{})
			require.ErrorIs(t, err, cuda.ErrorInvalidValue)
		})
	}
	t.Run("imported memory is not ours to export (F19)", func(t *testing.T) {
		r := owner.register(p, 4096)
		k := r.Key()
		m := mustMap(t, c, &k, MapOptions{})
		again := importer.register(m.Ptr(), 16)
		require.Equal(t, KindNone, again.Kind())
		require.NotEmpty(t, again.Reason())
		require.NoError(t, again.Close())
		require.NoError(t, m.Release(FreeUnused))
		require.NoError(t, r.Close())
	})
	owner.free(p)
}

func TestRegistrationEnds(t *testing.T) {
	owner, _, _ := pair(t)
	p := owner.alloc(4096)
	r := owner.register(p, 4096)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	_, err := r.AppendKey(nil)
	require.ErrorIs(t, err, ErrReleased)
	var nothing *Registration
	require.NoError(t, nothing.Close())
	owner.free(p)
}

// One export per allocation however often it is registered, a new one for
// another allocation at the same address.
func TestOneExportPerAllocation(t *testing.T) {
	owner, _, _ := pair(t)
	calls := func() int { return int(owner.Counters().Calls["cuIpcGetMemHandle"]) }
	p := owner.alloc(mib)
	before := calls()
	var rs []*Registration
	for i := range uint64(10) {
		rs = append(rs, owner.register(p.Add(i*4096), 4096))
	}
	require.Equal(t, 1, calls()-before)
	require.Equal(t, rs[0].Key().Handles, rs[9].Key().Handles)
	require.EqualValues(t, 9*4096, rs[9].Key().Offset)

	owner.free(p) // under the registrations, which notice
	again := owner.alloc(mib)
	require.Equal(t, p, again, "softgpu gives a freed address out first")
	r := owner.register(again, 4096)
	require.NotEqual(t, rs[0].Key().Handles, r.Key().Handles)
	require.NotEqual(t, rs[0].Key().BufferID, r.Key().BufferID)
	for _, r := range append(rs, r) {
		require.NoError(t, r.Close())
	}
	owner.free(again)
	require.Empty(t, exports.byID)
}

func TestRegisterSetsSyncMemops(t *testing.T) {
	owner, _, _ := pair(t)
	for _, keep := range []bool{false, true} {
		p := owner.alloc(4096)
		r, err := Register(owner.Driver, owner.ctx, p, 4096, RegisterOptions{Identity: &owner.id, KeepMemopsAsync: keep})
		require.NoError(t, err)
		got, err := owner.PointerGetAttribute(cuda.PointerAttributeSyncMemops, p)
		require.NoError(t, err)
		require.Equal(t, keep, got == 0)
		require.NoError(t, r.Close())
		owner.free(p)
	}
}

// S07 with memory: the address is another allocation's, and nobody reads the
// wrong one.
func TestS07AddressReuseData(t *testing.T) {
	owner, importer, c := pair(t)
	before := owner.freeBytes()
	for _, pinned := range []bool{false, true} {
		p, a := owner.exported(8 * mib)
		owner.write(p, 0xa5, 4096)
		old := mustMap(t, c, a, MapOptions{})
		if !pinned {
			require.NoError(t, old.Release(Retain))
		}
		owner.free(p)
		again, b := owner.exported(8 * mib)
		require.Equal(t, p, again, "softgpu gives a freed address out first")
		owner.write(again, 0x5a, 4096)
		m := mustMap(t, c, b, MapOptions{})
		require.Equal(t, bytes.Repeat([]byte{0x5a}, 4096), importer.read(m.Ptr(), 4096))
		if pinned {
			require.Equal(t, bytes.Repeat([]byte{0xa5}, 4096), importer.read(old.Ptr(), 4096))
			require.NoError(t, old.Release(Retain))
		}
		_, err := c.Map(t.Context(), a, MapOptions{})
		require.ErrorIs(t, err, ErrStale)
		require.NoError(t, m.Release(FreeUnused))
		owner.free(again)
	}
	require.Equal(t, before, owner.freeBytes())
}

// S11: ranges inside an allocation share its mapping and keep their offset.
func TestS11PointersInside(t *testing.T) {
	owner, importer, c := pair(t)
	const size = 64 * mib
	p := owner.alloc(size)
	small := [2]cuda.DevicePtr{owner.alloc(10 * kib), owner.alloc(10 * kib)}
	type sub struct {
		base   cuda.DevicePtr
		off, n uint64
	}
	subs := []sub{{p, 0, 1}, {p, 1, 510}, {p, 511, 513}, {p, 64*kib + 3, 4096}, {p, size - 1, 1}, {small[0], 0, 10 * kib}, {small[1], 1, 10*kib - 1}}
	var ms [7]Mapping
	for i, s := range subs {
		owner.write(s.base.Add(s.off), byte(i+1), int(s.n))
	}
	for i, s := range subs {
		r := owner.register(s.base.Add(s.off), s.n)
		k := r.Key()
		require.Equal(t, s.base, k.Base)
		require.Equal(t, s.off, k.Offset)
		require.NoError(t, c.MapInto(t.Context(), &ms[i], &k, MapOptions{}))
		require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, int(s.n)), importer.read(ms[i].Ptr().Add(k.Offset), int(s.n)), "range %d", i)
		require.NoError(t, r.Close())
	}
	requireCounts(t, c, counts{Opens: 3, InUse: 3, Live: 3})
	for i := range ms {
		require.NoError(t, ms[i].Release(FreeUnused))
	}
	owner.free(p)
	owner.free(small[0])
	owner.free(small[1])
}

// S21, P2: this process's own memory is used as it is, with no open.
func TestS21SameProcess(t *testing.T) {
	owner, _, _ := pair(t)
	c := mustCache(t, owner.Driver, CacheOptions{Identity: &owner.id})
	p, k := owner.exported(mib)
	// P2: never mapped.
	n, err := c.CloseIdle(k)
	require.NoError(t, err)
	require.Zero(t, n)

	var cl Claim
	m := mustMap(t, c, k, MapOptions{Device: 1})
	require.Equal(t, p, m.Ptr())
	require.Equal(t, owner.ctx, m.Context())
	require.Equal(t, cuda.Device(0), m.Device(), "where the memory is")
	require.Equal(t, KindNone, m.Kind())
	m.ClaimInto(&cl)
	require.NoError(t, m.Release(FreeUnused))
	require.True(t, cl.PinInto(m))
	require.NoError(t, m.Release(FreeUnused))
	require.NoError(t, cl.Release(FreeUnused))
	require.EqualValues(t, 1, c.Stats().Local)
	require.Zero(t, c.Stats().Opens)
	require.Zero(t, owner.Counters().Calls["cuIpcOpenMemHandle"])

	owner.free(p)
	_, err = c.Map(t.Context(), k, MapOptions{})
	require.ErrorIs(t, err, ErrStale)
	again := owner.alloc(mib)
	require.Equal(t, p, again)
	_, err = c.Map(t.Context(), k, MapOptions{})
	require.ErrorIs(t, err, ErrStale)
	owner.free(again)
}

// F9: a handle whose allocation is gone.
func TestStaleKey(t *testing.T) {
	owner, _, c := pair(t)
	p, k := owner.exported(mib)
	owner.free(p)
	_, err := c.Map(t.Context(), k, MapOptions{})
	require.ErrorIs(t, err, ErrStale)
	require.ErrorIs(t, err, cuda.ErrorInvalidValue)
}

// P5: one allocation on two local devices; each mapping ends alone, and the
// memory is back after both.
func TestP5TwoDevicesMemory(t *testing.T) {
	owner, _, c := pair(t)
	before := owner.freeBytes()
	p, k := owner.exported(4 * mib)
	a := mustMap(t, c, k, MapOptions{Device: 0})
	b := mustMap(t, c, k, MapOptions{Device: 1})
	owner.free(p)
	require.NoError(t, a.Release(FreeUnused))
	require.Equal(t, before-4*mib, owner.freeBytes())
	require.NoError(t, b.Release(FreeUnused))
	require.Equal(t, before, owner.freeBytes())
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
