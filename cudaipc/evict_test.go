package cudaipc

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

// exportMany makes n allocations of one peer, apart from each other.
func exportMany(d *fakeDriver, peer uint32, n int, length uint64) []*Key {
	keys := make([]*Key, n)
	for i := range keys {
		keys[i] = d.export(peer, cuda.DevicePtr(0x1000_0000+2*uint64(i)*length), length)
	}
	return keys
}

func open1(tb testing.TB, c *Cache, k *Key) bool {
	tb.Helper()
	before := c.Stats().Opens
	require.NoError(tb, mustMap(tb, c, k, MapOptions{}).Release(Retain))
	return c.Stats().Opens > before
}

// The one unused longest goes first, and a use saves it.
func TestLimitEvictsOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock makes the stamps differ
		d := newFake()
		c := mustCache(t, d, CacheOptions{MaxRegions: 4})
		keys := exportMany(d, 7, 6, kib)
		for _, k := range keys[:4] {
			open1(t, c, k)
			time.Sleep(time.Second)
		}
		require.False(t, open1(t, c, keys[0]))
		time.Sleep(time.Second)
		require.True(t, open1(t, c, keys[4])) // ends keys[1]
		time.Sleep(time.Second)
		require.False(t, open1(t, c, keys[2]))
		time.Sleep(time.Second)
		require.True(t, open1(t, c, keys[5])) // ends keys[3]
		for _, k := range []*Key{keys[0], keys[2], keys[4], keys[5]} {
			require.False(t, open1(t, c, k))
		}
		requireCounts(t, c, counts{Opens: 6, Closes: 2, Idle: 4, Live: 4})
		require.EqualValues(t, 2, c.Stats().EvictedLimit)
	})
}

func TestLimitBytesOverAllPeers(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{MaxBytes: 10 * kib})
	for peer := range uint32(4) {
		for _, k := range exportMany(d, peer, 8, kib) {
			open1(t, c, k)
		}
	}
	s := c.Stats()
	require.EqualValues(t, 10*kib, s.Bytes)
	require.Equal(t, 10, s.Live)
	require.True(t, open1(t, c, d.export(9, 0x9000_0000, 10*kib)), "takes all the room")
	requireCounts(t, c, counts{Opens: 33, Closes: 32, Idle: 1, Live: 1})
}

func TestSetLimitsBothWays(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	keys := exportMany(d, 7, 10, kib)
	for _, k := range keys {
		open1(t, c, k)
	}
	held := mustMap(t, c, keys[9], MapOptions{})
	require.NoError(t, c.SetLimits(3, 0))
	requireCounts(t, c, counts{Opens: 10, Closes: 7, InUse: 1, Idle: 2, Live: 3})
	require.NoError(t, c.SetLimits(8, 0))
	for _, k := range keys {
		open1(t, c, k)
	}
	require.Equal(t, 8, c.Stats().Live)
	require.Error(t, c.SetLimits(-1, 0))
	require.NoError(t, held.Release(FreeUnused))
}

// A limit may close what only claims hold; the key's next use maps again.
func TestLimitEvictsClaimed(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{MaxRegions: 4})
	keys := exportMany(d, 7, 32, kib)
	claims := make([]Claim, len(keys))
	for i, k := range keys {
		m := mustMap(t, c, k, MapOptions{})
		m.ClaimInto(&claims[i])
		require.NoError(t, m.Release(FreeUnused))
	}
	requireCounts(t, c, counts{Opens: 32, Closes: 28, Claimed: 4, Live: 4})
	for i := range claims {
		require.NoError(t, claims[i].Release(FreeUnused))
	}
	requireCounts(t, c, counts{Opens: 32, Closes: 32})
}

// S13: nothing is closed under a use, and the limit holds when idle.
func TestS13EvictionUnderLoad(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{MaxRegions: 4})
	keys := exportMany(d, 7, 32, kib)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 13))
			var m Mapping
			for range 500 {
				k := keys[rnd.IntN(len(keys))]
				if err := c.MapInto(t.Context(), &m, k, MapOptions{}); err != nil {
					t.Error(err)
					return
				}
				if err := d.mapped(m.Ptr(), k); err != nil {
					t.Error(err)
				}
				if err := m.Release(Policy(rnd.IntN(2))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.CheckInvariants())
	s := c.Stats()
	require.LessOrEqual(t, s.Live, 4)
	require.EqualValues(t, 16*500, s.Hits+s.Misses+s.Shared)
}

// S23: with everything busy a limit gives way, is counted, and holds again after
// the releases.
func TestS23EverythingBusy(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{MaxRegions: 2})
	keys := exportMany(d, 7, 3, kib)
	var ms [3]Mapping
	for i, k := range keys {
		require.NoError(t, c.MapInto(t.Context(), &ms[i], k, MapOptions{}))
	}
	require.EqualValues(t, 1, c.Stats().OverLimit)
	requireCounts(t, c, counts{Opens: 3, InUse: 3, Live: 3})
	require.NoError(t, ms[1].Release(Retain))
	requireCounts(t, c, counts{Opens: 3, Closes: 1, InUse: 2, Live: 2})
	require.NoError(t, ms[0].Release(Retain))
	require.NoError(t, ms[2].Release(Retain))
	requireCounts(t, c, counts{Opens: 3, Closes: 1, Idle: 2, Live: 2})
}

func TestEvictIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFake()
		c := mustCache(t, d, CacheOptions{})
		keys := exportMany(d, 7, 4, kib)
		held := mustMap(t, c, keys[0], MapOptions{})
		open1(t, c, keys[1])
		open1(t, c, keys[2])
		time.Sleep(time.Minute)
		open1(t, c, keys[1]) // used again
		open1(t, c, keys[3])
		time.Sleep(time.Second)
		n, err := c.EvictIdle(30 * time.Second)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		n, err = c.EvictIdle(0)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		requireCounts(t, c, counts{Opens: 4, Closes: 3, InUse: 1, Live: 1})
		require.NoError(t, held.Release(FreeUnused))
	})
}

// A mapping that the driver will not close is kept, shown, and tried again.
func TestFailedCloseIsKept(t *testing.T) {
	for name, retry := range map[string]func(c *Cache, k *Key) error{
		"EvictIdle": func(c *Cache, k *Key) error { _, err := c.EvictIdle(0); return err },
		"EvictPeer": func(c *Cache, k *Key) error { _, _, err := c.EvictPeer(k.Identity); return err },
		"Close":     func(c *Cache, k *Key) error { return c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			d := newFake()
			c := mustCache(t, d, CacheOptions{})
			k := d.export(7, 0x1000, kib)
			m := mustMap(t, c, k, MapOptions{})
			d.hook = func(call string) error {
				if call == "cuIpcCloseMemHandle" {
					return cuda.Err(call, cuda.ErrorUnknown)
				}
				return nil
			}
			require.ErrorIs(t, m.Release(FreeUnused), cuda.ErrorUnknown)
			requireCounts(t, c, counts{Opens: 1, Zombies: 1, Live: 1})
			require.ErrorIs(t, retry(c, k), cuda.ErrorUnknown)
			requireCounts(t, c, counts{Opens: 1, Zombies: 1, Live: 1})
			d.hook = nil
			if name != "Close" { // it does not stand in the way of a new mapping
				m = mustMap(t, c, k, MapOptions{})
				require.NoError(t, m.Release(FreeUnused))
				requireCounts(t, c, counts{Opens: 2, Closes: 1, Zombies: 1, Live: 1})
			}
			require.NoError(t, retry(c, k))
			require.Zero(t, c.Stats().Zombies)
		})
	}
}

func TestCloseWithMappingsInUse(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	keys := exportMany(d, 7, 3, kib)
	open1(t, c, keys[0])
	m := mustMap(t, c, keys[1], MapOptions{})
	var cl Claim
	m2 := mustMap(t, c, keys[2], MapOptions{})
	m2.ClaimInto(&cl)
	require.NoError(t, m2.Release(Retain))

	require.ErrorIs(t, c.Close(), ErrBusy)
	requireCounts(t, c, counts{Opens: 3, Closes: 2, InUse: 1, Live: 1})
	_, err := c.Map(t.Context(), keys[0], MapOptions{})
	require.ErrorIs(t, err, ErrClosed)
	require.False(t, cl.PinInto(m2))
	require.NoError(t, d.mapped(m.Ptr(), keys[1]))
	require.NoError(t, m.Release(Retain))
	requireCounts(t, c, counts{Opens: 3, Closes: 3})
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	require.NoError(t, cl.Release(FreeUnused))
}
