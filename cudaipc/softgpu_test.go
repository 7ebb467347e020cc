package cudaipc

import (
	"bytes"
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

	again := owner.alloc(mib)
	require.Equal(t, p, again)
	_, err = c.Map(t.Context(), k, MapOptions{})
	require.ErrorIs(t, err, ErrStale)
	require.ErrorIs(t, err, cuda.ErrorNotPermitted)
	owner.free(again)
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

// S08, S07 on a driver that allows one open: the cache's own idle mappings make
// room, a pinned one and somebody else's are typed errors.
func TestS08SingleOpenOnSoftgpu(t *testing.T) {
	owner, _, _ := pair(t)
	importer := newSide(t, softgputest.Attach(t, owner.NodePath(), func(cfg *softgpu.Config) { cfg.OpenMode = softgpu.OpenSingle }), 3)
	c := mustCache(t, importer.Driver, CacheOptions{Identity: &importer.id})

	p, a := owner.exported(8 * mib)
	require.NoError(t, mustMap(t, c, a, MapOptions{}).Release(Retain))
	owner.free(p)
	p, b := owner.exported(8 * mib)
	require.Equal(t, a.Base, b.Base, "softgpu gives a freed address out first")
	m := mustMap(t, c, b, MapOptions{})
	requireCounts(t, c, counts{Opens: 2, Closes: 1, InUse: 1, Live: 1})

	owner.free(p)
	p, last := owner.exported(8 * mib)
	require.Equal(t, a.Base, last.Base)
	_, err := c.Map(t.Context(), last, MapOptions{})
	require.ErrorIs(t, err, ErrAlreadyMapped)
	require.ErrorIs(t, err, ErrBusy)
	require.NoError(t, m.Release(FreeUnused))

	outside, err := importer.IpcOpenMemHandle(importer.ctx, cuda.IpcMemHandle(last.Handles[0].Data), cuda.IpcMemLazyEnablePeerAccess)
	require.NoError(t, err)
	_, err = c.Map(t.Context(), last, MapOptions{})
	require.ErrorIs(t, err, ErrAlreadyMapped)
	require.NotErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, last.Base.String())
	require.NoError(t, importer.IpcCloseMemHandle(importer.ctx, outside))
	require.NoError(t, mustMap(t, c, last, MapOptions{}).Release(FreeUnused))
	owner.free(p)
}

// P10: the driver was closed first; the tear-down above it is quiet.
func TestP10DriverClosedFirst(t *testing.T) {
	owner, _, _ := pair(t)
	d := softgputest.Attach(t, owner.NodePath())
	softgputest.Tolerate(d) // it is closed with a mapping open, on purpose
	id := owner.id
	id.Nonce[1]++
	c, err := NewCache(d, CacheOptions{Identity: &id})
	require.NoError(t, err)
	p, k := owner.exported(mib)
	require.NoError(t, mustMap(t, c, k, MapOptions{}).Release(Retain))
	require.NoError(t, d.Close())
	require.NoError(t, c.Close())
	require.Zero(t, c.Stats().Zombies)
	owner.free(p)
}

// S02 in short: sizes that grow and vary, both policies, a bound on the cache;
// the owner's memory is flat.
func TestS02FlatMemory(t *testing.T) {
	owner, importer, c := pair(t)
	require.NoError(t, c.SetLimits(8, 0))
	before := owner.freeBytes()
	for turn := range 200 {
		size := uint64(1+(turn*7)%40) * mib
		p, k := owner.exported(size)
		owner.write(p.Add(size-16), byte(turn), 16)
		m := mustMap(t, c, k, MapOptions{})
		require.Equal(t, bytes.Repeat([]byte{byte(turn)}, 16), importer.read(m.Ptr().Add(size-16), 16))
		require.NoError(t, m.Release(Policy(turn%2)))
		owner.free(p)
		require.LessOrEqual(t, c.Stats().Live, 8)
		require.NoError(t, c.CheckInvariants())
	}
	_, err := c.EvictIdle(0)
	require.NoError(t, err)
	require.Equal(t, before, owner.freeBytes())
}
