package cudaipc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

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

// S07: the exporter's address belongs to another allocation now.
func TestS07AddressReuse(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	for name, b := range map[string]struct{ base, length uint64 }{
		"same":   {0x100000, 64 * kib},
		"grown":  {0x100000, 512 * kib},
		"shrunk": {0x100000, kib},
		"across": {0x100000 - 32*kib, 64 * kib},
		"inside": {0x100000 + 16*kib, 16 * kib},
	} {
		t.Run("idle, "+name, func(t *testing.T) {
			old := d.export(7, 0x100000, 64*kib)
			require.NoError(t, mustMap(t, c, old, MapOptions{}).Release(Retain))
			d.unexport(old, cuda.ErrorInvalidValue)
			now := d.export(7, cuda.DevicePtr(b.base), b.length)
			m := mustMap(t, c, now, MapOptions{})
			require.NoError(t, d.mapped(m.Ptr(), now))
			s := c.Stats()
			require.Equal(t, []int{1, 1}, []int{s.Live, s.Regions})
			_, err := c.Map(t.Context(), old, MapOptions{})
			require.ErrorIs(t, err, ErrStale)
			require.ErrorIs(t, err, cuda.ErrorInvalidValue)
			require.NoError(t, m.Release(FreeUnused))
		})
		t.Run("pinned, "+name, func(t *testing.T) {
			old := d.export(7, 0x100000, 64*kib)
			pinned := mustMap(t, c, old, MapOptions{})
			onOther := mustMap(t, c, old, MapOptions{Device: 1})
			var cl Claim
			pinned.ClaimInto(&cl)
			now := d.export(7, cuda.DevicePtr(b.base), b.length)
			m := mustMap(t, c, now, MapOptions{})
			require.NoError(t, c.CheckInvariants())
			require.Equal(t, 2, c.Stats().Detached)
			require.NoError(t, d.mapped(pinned.Ptr(), old), "not closed under its pin")
			require.NoError(t, d.mapped(m.Ptr(), now))
			var again Mapping
			require.False(t, cl.PinInto(&again), "no new use of it")
			require.NoError(t, pinned.Release(Retain)) // stale: closed whatever the policy
			require.NoError(t, onOther.Release(Retain))
			require.Equal(t, 1, c.Stats().Live)
			require.NoError(t, cl.Release(FreeUnused))
			require.NoError(t, m.Release(FreeUnused))
		})
	}
	neighbour := d.export(7, 0x100000+64*kib, kib)
	old := d.export(7, 0x100000, 64*kib)
	otherPeer := d.export(8, 0x100000, 64*kib)
	for _, k := range []*Key{neighbour, otherPeer, old} {
		require.NoError(t, mustMap(t, c, k, MapOptions{}).Release(Retain))
	}
	require.Equal(t, 3, c.Stats().Idle, "neither a neighbour nor another exporter is stale")
}

// S08: one handle, many owners.
func TestS08OneOpenManyOwners(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, kib)
	var ms [100]Mapping
	for i := range ms {
		require.NoError(t, c.MapInto(t.Context(), &ms[i], k, MapOptions{}))
	}
	requireCounts(t, c, counts{Opens: 1, InUse: 1, Live: 1})
	for i := range ms {
		require.Equal(t, 0, int(c.Stats().Closes))
		require.NoError(t, ms[i].Release(FreeUnused))
	}
	requireCounts(t, c, counts{Opens: 1, Closes: 1})
}

// S08, S07 on a driver that allows one open of a range.
func TestS08SingleOpenDriver(t *testing.T) {
	d := newFake()
	d.single = true
	c := mustCache(t, d, CacheOptions{})

	t.Run("opened by somebody else", func(t *testing.T) {
		k := d.export(7, 0x1000, kib)
		ptr, err := d.IpcOpenMemHandle(0, cuda.IpcMemHandle(k.Handles[0].Data), 0)
		require.NoError(t, err)
		_, err = c.Map(t.Context(), k, MapOptions{})
		require.ErrorIs(t, err, ErrAlreadyMapped)
		require.ErrorIs(t, err, cuda.ErrorAlreadyMapped)
		require.ErrorContains(t, err, "0x1000")
		require.ErrorContains(t, err, "pid 7")
		require.NoError(t, mustMap(t, c, d.export(8, 0x1000, kib), MapOptions{}).Release(FreeUnused), "other peers go on")
		require.NoError(t, d.IpcCloseMemHandle(0, ptr))
	})
	t.Run("idle and claimed stale entries make room", func(t *testing.T) {
		var cl Claim
		m := mustMap(t, c, d.export(7, 0x1000, kib), MapOptions{})
		m.ClaimInto(&cl)
		require.NoError(t, m.Release(Retain))
		require.NoError(t, mustMap(t, c, d.export(7, 0x3000, kib), MapOptions{}).Release(Retain))
		now := d.export(7, 0x1000, 64*kib)
		m = mustMap(t, c, now, MapOptions{})
		require.NoError(t, d.mapped(m.Ptr(), now))
		require.Equal(t, 1, c.Stats().Live)
		require.NoError(t, m.Release(FreeUnused))
		require.NoError(t, cl.Release(FreeUnused))
	})
	t.Run("a pinned one is busy", func(t *testing.T) {
		old := d.export(7, 0x1000, kib)
		pinned := mustMap(t, c, old, MapOptions{})
		_, err := c.Map(t.Context(), d.export(7, 0x1000, 64*kib), MapOptions{})
		for _, want := range []error{ErrBusy, ErrStale, ErrAlreadyMapped} {
			require.ErrorIs(t, err, want)
		}
		require.NoError(t, d.mapped(pinned.Ptr(), old))
		require.NoError(t, pinned.Release(FreeUnused))
	})
}

// S10: one peer's idle mappings are closed, what is in use counts as busy.
func TestS10EvictPeer(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	var keys [2][]*Key
	for p := range keys {
		for i := range 5 {
			k := d.export(uint32(p), cuda.DevicePtr(0x10000*(i+1)), kib)
			keys[p] = append(keys[p], k)
			require.NoError(t, mustMap(t, c, k, MapOptions{}).Release(Retain))
		}
	}
	slow := mustMap(t, c, keys[1][0], MapOptions{})
	evict := func(p int) []int {
		n, busy, err := c.EvictPeer(keys[p][0].Identity)
		require.NoError(t, err)
		return []int{n, busy}
	}
	require.Equal(t, []int{5, 0}, evict(0))
	require.Equal(t, 5, c.Stats().Live)
	require.Equal(t, []int{4, 1}, evict(1))
	require.NoError(t, slow.Release(Retain))
	require.Equal(t, []int{1, 0}, evict(1))
	require.Equal(t, []int{0, 0}, evict(1))
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

// S25: all who need an allocation at once share one open; opens of different
// allocations overlap. No clock: every open waits until 64 are inside.
func TestS25FirstUseRace(t *testing.T) {
	const n = 64
	d := newFake()
	var inside atomic.Int32
	all := make(chan struct{})
	d.hook = func(call string) error {
		if call == "cuIpcOpenMemHandle" {
			if inside.Add(1) == n {
				close(all)
			}
			<-all
		}
		return nil
	}
	c := mustCache(t, d, CacheOptions{})
	shared := d.export(7, 0x1000, kib)
	keys := []*Key{}
	for i := range n - 1 {
		keys = append(keys, d.export(7, cuda.DevicePtr(0x10000*(i+1)), kib))
	}
	var wg sync.WaitGroup
	for i := range 2 * n {
		k := shared
		if i%2 == 0 && i/2 < len(keys) {
			k = keys[i/2]
		}
		wg.Go(func() {
			m, err := c.Map(t.Context(), k, MapOptions{})
			if err == nil {
				err = errors.Join(d.mapped(m.Ptr(), k), m.Release(Retain))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	requireCounts(t, c, counts{Opens: n, Idle: n, Live: n})
	require.Equal(t, n, d.maxInside)
}

// S25: waiters share the error too, and it is not kept.
func TestS25SharedError(t *testing.T) {
	d := newFake()
	k := d.export(7, 0x1000, kib)
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		calls := 0
		d.hook = func(call string) error {
			if call == "cuIpcOpenMemHandle" {
				calls++
				<-gate
				return cuda.Err(call, cuda.ErrorInvalidHandle)
			}
			return nil
		}
		c := mustCache(t, d, CacheOptions{})
		errs := make(chan error, 8)
		for range cap(errs) {
			go func() {
				_, err := c.Map(t.Context(), k, MapOptions{})
				errs <- err
			}()
		}
		synctest.Wait() // all are waiting
		require.EqualValues(t, 7, c.Stats().Shared)
		close(gate)
		for range cap(errs) {
			err := <-errs
			require.ErrorIs(t, err, ErrUnreachable)
			require.ErrorIs(t, err, cuda.ErrorInvalidHandle)
		}
		require.Equal(t, 1, calls)
		d.hook = nil
		require.NoError(t, mustMap(t, c, k, MapOptions{}).Release(FreeUnused))
		requireCounts(t, c, counts{Opens: 1, Closes: 1})
	})
}

// The one who started an open may leave; those who wait get it. When all leave,
// the mapping is closed on arrival.
func TestCancelDoesNotCancelTheOpen(t *testing.T) {
	for _, stays := range []bool{true, false} {
		t.Run(fmt.Sprintf("somebody stays %t", stays), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newFake()
				k := d.export(7, 0x1000, kib)
				gate := make(chan struct{})
				d.hook = func(call string) error {
					if call == "cuIpcOpenMemHandle" {
						<-gate
					}
					return nil
				}
				c := mustCache(t, d, CacheOptions{})
				ctx, cancel := context.WithCancel(t.Context())
				left, got := make(chan error), make(chan *Mapping)
				go func() {
					_, err := c.Map(ctx, k, MapOptions{})
					left <- err
				}()
				synctest.Wait()
				if stays {
					go func() {
						m, err := c.Map(t.Context(), k, MapOptions{})
						if err != nil {
							t.Error(err)
						}
						got <- m
					}()
					synctest.Wait()
				}
				cancel()
				require.ErrorIs(t, <-left, context.Canceled)
				require.Equal(t, 1, c.Stats().Opening)
				close(gate)
				if stays {
					m := <-got
					require.NoError(t, d.mapped(m.Ptr(), k))
					require.NoError(t, m.Release(FreeUnused))
				}
				synctest.Wait()
				requireCounts(t, c, counts{Opens: 1, Closes: 1})
			})
		})
	}
}

// The function that fetches a descriptor runs detached as well.
func TestCancelDoesNotReachFetchFD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustCache(t, newFake(), CacheOptions{})
		k := &Key{Identity: fakePeer(7), Base: 0x1000, Length: kib, Handles: []Handle{{KindPosixFD, make([]byte, 4)}}}
		noFD := errors.New("no descriptor")
		gate := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		opts := MapOptions{FetchFD: func(ctx context.Context, got *Key) (int, error) {
			<-gate
			return -1, errors.Join(noFD, ctx.Err())
		}}
		errs := make(chan error)
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				_, err := c.Map(ctx, k, opts)
				errs <- err
			}()
			synctest.Wait()
		}
		cancel()
		require.ErrorIs(t, <-errs, context.Canceled)
		close(gate)
		err := <-errs
		require.ErrorIs(t, err, noFD)
		require.ErrorIs(t, err, ErrUnreachable)
		require.NotErrorIs(t, err, context.Canceled)
	})
}

// A Map that meets a closing entry waits for it and opens anew.
func TestMapMeetsClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFake()
		d.single = true
		k := d.export(7, 0x1000, kib)
		c := mustCache(t, d, CacheOptions{})
		m := mustMap(t, c, k, MapOptions{})
		gate := make(chan struct{})
		d.hook = func(call string) error {
			if call == "cuIpcCloseMemHandle" {
				<-gate
			}
			return nil
		}
		done := make(chan error, 1)
		go func() { done <- m.Release(FreeUnused) }()
		synctest.Wait()

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.Map(ctx, k, MapOptions{})
		require.ErrorIs(t, err, context.Canceled)
		got := make(chan *Mapping)
		go func() { got <- mustMap(t, c, k, MapOptions{}) }()
		synctest.Wait()
		require.Equal(t, 1, c.Stats().Closing)
		require.NoError(t, c.CheckInvariants())
		close(gate)
		require.NoError(t, <-done)
		again := <-got
		require.NoError(t, d.mapped(again.Ptr(), k))
		require.NoError(t, again.Release(FreeUnused))
		requireCounts(t, c, counts{Opens: 2, Closes: 2})
	})
}
