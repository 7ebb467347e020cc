package cudaipc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// counts is what most tests compare of the Stats.
type counts struct {
	Opens, Closes           uint64
	InUse, Claimed, Idle    int
	Detached, Zombies, Live int
}

func countsOf(c *Cache) counts {
	s := c.Stats()
	return counts{s.Opens, s.Closes, s.InUse, s.Claimed, s.Idle, s.Detached, s.Zombies, s.Live}
}

func requireCounts(tb testing.TB, c *Cache, want counts) {
	tb.Helper()
	require.NoError(tb, c.CheckInvariants())
	require.Empty(tb, cmp.Diff(want, countsOf(c)))
}

func TestMapReleaseFreesUnused(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, 64*kib)

	m := mustMap(t, c, k, MapOptions{})
	require.NoError(t, d.mapped(m.Ptr(), k))
	require.Equal(t, uint64(64*kib), m.Size())
	require.Equal(t, fakeContext(0), m.Context())
	requireCounts(t, c, counts{Opens: 1, InUse: 1, Live: 1})

	require.NoError(t, m.Release(FreeUnused))
	requireCounts(t, c, counts{Opens: 1, Closes: 1})
	require.Zero(t, m.Ptr())
	require.False(t, m.Held())
	require.NoError(t, m.Release(FreeUnused), "released twice")
	requireCounts(t, c, counts{Opens: 1, Closes: 1})
}

func TestRetainLeavesIdleAndHits(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, 64*kib)
	for range 3 {
		require.NoError(t, mustMap(t, c, k, MapOptions{}).Release(Retain))
		requireCounts(t, c, counts{Opens: 1, Idle: 1, Live: 1})
	}
	require.EqualValues(t, 2, c.Stats().Hits)
	// What a Retain user left idle is closed by the next FreeUnused user.
	require.NoError(t, mustMap(t, c, k, MapOptions{}).Release(FreeUnused))
	requireCounts(t, c, counts{Opens: 1, Closes: 1})
}

func TestMapIntoHeldMapping(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	m := mustMap(t, c, d.export(7, 0x1000, kib), MapOptions{})
	err := c.MapInto(t.Context(), m, d.export(7, 0x9000, kib), MapOptions{})
	require.ErrorIs(t, err, ErrBusy)
	require.NoError(t, m.Release(FreeUnused))
}

// P1: a key that never mapped has nothing to release, whatever else is cached.
func TestP1UnpackedNeverMapped(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	never := d.export(7, 0x1000, kib)
	destroy := func() {
		var cl Claim
		var m Mapping
		require.False(t, cl.PinInto(&m))
		m.ClaimInto(&cl)
		require.False(t, cl.Held())
		require.NoError(t, m.Release(FreeUnused))
		require.NoError(t, cl.Release(FreeUnused))
		n, err := c.CloseIdle(never)
		require.NoError(t, err)
		require.Zero(t, n)
	}
	destroy()
	requireCounts(t, c, counts{})

	other := mustMap(t, c, d.export(7, 0x9000, kib), MapOptions{})
	require.NoError(t, mustMap(t, c, d.export(7, 0x20000, kib), MapOptions{}).Release(Retain))
	destroy()
	requireCounts(t, c, counts{Opens: 2, InUse: 1, Idle: 1, Live: 2})
	require.NoError(t, other.Release(FreeUnused))
}

// P1b: a FreeUnused key that never mapped closes its own allocation's idle
// entries, and nothing else.
func TestP1bCloseIdle(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, kib)
	for dev := range cuda.Device(2) {
		require.NoError(t, mustMap(t, c, k, MapOptions{Device: dev}).Release(Retain))
	}
	held := mustMap(t, c, k, MapOptions{Device: 2})
	var cl Claim
	m := mustMap(t, c, k, MapOptions{Device: 3})
	m.ClaimInto(&cl)
	require.NoError(t, m.Release(FreeUnused))
	requireCounts(t, c, counts{Opens: 4, InUse: 1, Claimed: 1, Idle: 2, Live: 4})

	other := *k
	other.BufferID += 100 // same address, another allocation
	n, err := c.CloseIdle(&other)
	require.NoError(t, err)
	require.Zero(t, n)
	other = *k
	other.Identity.Nonce[3]++
	n, err = c.CloseIdle(&other)
	require.NoError(t, err)
	require.Zero(t, n)

	n, err = c.CloseIdle(k)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	requireCounts(t, c, counts{Opens: 4, Closes: 2, InUse: 1, Claimed: 1, Live: 2})
	require.NoError(t, d.mapped(held.Ptr(), k))
	require.NoError(t, held.Release(FreeUnused))
	require.NoError(t, cl.Release(FreeUnused))
}

// P3: what is in flight holds the mapping beyond its key; the last one closes.
func TestP3DestroyWithWorkInFlight(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, kib)
	var key Claim
	m := mustMap(t, c, k, MapOptions{})
	m.ClaimInto(&key)
	var op, list Mapping
	require.True(t, key.PinInto(&op))
	require.True(t, key.PinInto(&list))
	require.False(t, key.PinInto(&list), "it holds something")
	require.NoError(t, m.Release(FreeUnused))

	require.NoError(t, key.Release(FreeUnused)) // destroy
	require.NoError(t, key.Release(FreeUnused))
	require.NoError(t, d.mapped(op.Ptr(), k))
	requireCounts(t, c, counts{Opens: 1, InUse: 1, Live: 1})
	require.NoError(t, op.Release(FreeUnused))
	require.NoError(t, d.mapped(list.Ptr(), k))
	require.NoError(t, list.Release(FreeUnused))
	requireCounts(t, c, counts{Opens: 1, Closes: 1})
}

// A FreeUnused pin does not close what a live key claims; the key's end does.
func TestClaimOutlivesPins(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, kib)
	var cl Claim
	m := mustMap(t, c, k, MapOptions{})
	m.ClaimInto(&cl)
	m.ClaimInto(&cl) // a claim counts once
	require.NoError(t, m.Release(FreeUnused))
	requireCounts(t, c, counts{Opens: 1, Claimed: 1, Live: 1})
	require.True(t, cl.PinInto(m))
	require.NoError(t, m.Release(FreeUnused))
	require.NoError(t, cl.Release(Retain))
	requireCounts(t, c, counts{Opens: 1, Idle: 1, Live: 1})
}

// An entry closed under its claim is mapped again, and the claim follows.
func TestClaimClosedUnder(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, kib)
	var cl Claim
	m := mustMap(t, c, k, MapOptions{})
	m.ClaimInto(&cl)
	require.NoError(t, m.Release(FreeUnused))
	n, busy, err := c.EvictPeer(k.Identity)
	require.NoError(t, err)
	require.Equal(t, []int{1, 0}, []int{n, busy})

	require.True(t, cl.Held())
	require.False(t, cl.PinInto(m))
	require.NoError(t, c.MapInto(t.Context(), m, k, MapOptions{}))
	m.ClaimInto(&cl)
	require.NoError(t, m.Release(FreeUnused))
	requireCounts(t, c, counts{Opens: 2, Closes: 1, Claimed: 1, Live: 1})
	require.NoError(t, cl.Release(FreeUnused))
	requireCounts(t, c, counts{Opens: 2, Closes: 2})
}

// P5, for the cache: one allocation on two devices is two entries.
func TestP5TwoDevices(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, kib)
	a, b := mustMap(t, c, k, MapOptions{}), mustMap(t, c, k, MapOptions{Device: 1})
	require.Equal(t, fakeContext(1), b.Context())
	require.NoError(t, a.Release(FreeUnused))
	requireCounts(t, c, counts{Opens: 2, Closes: 1, InUse: 1, Live: 1})
	require.NoError(t, b.Release(FreeUnused))
}

// S15: whoever releases, on whatever thread, a mapping is closed in the context
// that opened it: the fake refuses another.
func TestS15CloseInItsContext(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, kib)
	for dev := range cuda.Device(2) {
		m := mustMap(t, c, k, MapOptions{Device: dev})
		require.Equal(t, fakeContext(dev), m.Context())
		closed := make(chan error)
		go func() { closed <- m.Release(FreeUnused) }()
		require.NoError(t, <-closed)
	}
	requireCounts(t, c, counts{Opens: 2, Closes: 2})
}

// P6: of two keys with different policies, the last release decides.
func TestP6MixedPolicies(t *testing.T) {
	for _, last := range []Policy{FreeUnused, Retain} {
		t.Run("last "+last.String(), func(t *testing.T) {
			d := newFake()
			c := mustCache(t, d, CacheOptions{})
			k := d.export(7, 0x1000, kib)
			var keys [2]Claim
			for i := range keys {
				m := mustMap(t, c, k, MapOptions{})
				m.ClaimInto(&keys[i])
				require.NoError(t, m.Release(Policy(i)))
			}
			require.NoError(t, keys[1-last].Release(1-last))
			requireCounts(t, c, counts{Opens: 1, Claimed: 1, Live: 1})
			require.NoError(t, keys[last].Release(last))
			if last == Retain {
				requireCounts(t, c, counts{Opens: 1, Idle: 1, Live: 1})
			} else {
				requireCounts(t, c, counts{Opens: 1, Closes: 1})
			}
		})
	}
}

// S28: several ranges of one allocation share one entry.
func TestS28SeveralKeysOneAllocation(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x100000, mib)
	var ms [3]Mapping
	for i, off := range []uint64{0, 511, mib - 1} {
		r := k.clone()
		r.Offset, r.UserLength, r.Slot = off, 1, uint32(i)
		require.NoError(t, c.MapInto(t.Context(), &ms[i], &r, MapOptions{}))
	}
	require.Equal(t, ms[0].Ptr(), ms[2].Ptr())
	for i := range ms {
		requireCounts(t, c, counts{Opens: 1, InUse: 1, Live: 1})
		require.NoError(t, ms[i].Release(FreeUnused))
	}
	requireCounts(t, c, counts{Opens: 1, Closes: 1})
}
