package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

func TestMapRefusesBeforeTheDriver(t *testing.T) {
	d := newFake()
	good := d.export(7, 0x1000, kib)
	for name, tc := range map[string]struct {
		change func(k *Key, o *MapOptions)
		want   error
	}{
		"no length":             {func(k *Key, o *MapOptions) { k.Length = 0 }, ErrInvalidKey},
		"range past the end":    {func(k *Key, o *MapOptions) { k.Offset = 1 }, ErrInvalidKey},
		"short handle":          {func(k *Key, o *MapOptions) { k.Handles[0].Data = k.Handles[0].Data[:10] }, ErrInvalidKey},
		"no handle":             {func(k *Key, o *MapOptions) { k.Handles = nil }, ErrNotShareable},
		"another host (S04)":    {func(k *Key, o *MapOptions) { k.Identity.System[0]++ }, ErrUnreachable},
		"another pid namespace": {func(k *Key, o *MapOptions) { k.Identity.PIDNS++ }, ErrUnreachable},
		"a kind of the future":  {func(k *Key, o *MapOptions) { k.Handles = []Handle{{Kind: KindFabric}} }, ErrUnreachable},
		"no such device":        {func(k *Key, o *MapOptions) { o.Device = -1 }, cuda.ErrorInvalidDevice},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustCache(t, d, CacheOptions{})
			k, opts := good.clone(), MapOptions{}
			tc.change(&k, &opts)
			_, err := c.Map(t.Context(), &k, opts)
			require.ErrorIs(t, err, tc.want)
			require.Zero(t, c.Stats().Opens)
		})
	}
}

// The sentinel says what the driver's answer means, and the answer is kept.
func TestOpenErrors(t *testing.T) {
	for result, want := range map[cuda.Result]error{
		cuda.ErrorInvalidValue:          ErrStale,       // F9
		cuda.ErrorInvalidHandle:         ErrUnreachable, // F20, F25
		cuda.ErrorInvalidContext:        ErrUnreachable, // F8
		cuda.ErrorInvalidDevice:         ErrUnreachable,
		cuda.ErrorPeerAccessUnsupported: ErrUnreachable,
		cuda.ErrorNotPermitted:          ErrStale, // F9, other memory at the address
		cuda.ErrorNotSupported:          ErrUnreachable,
		cuda.ErrorAlreadyMapped:         ErrAlreadyMapped,
		cuda.ErrorOutOfMemory:           cuda.ErrorOutOfMemory,
	} {
		t.Run(result.Error(), func(t *testing.T) {
			d := newFake()
			c := mustCache(t, d, CacheOptions{})
			k := d.export(7, 0x1000, kib)
			d.unexport(k, result)
			_, err := c.Map(t.Context(), k, MapOptions{})
			require.ErrorIs(t, err, want)
			require.ErrorIs(t, err, result)
			require.ErrorContains(t, err, "pid 7")
			require.EqualValues(t, 1, c.Stats().OpenFailures)
		})
	}
}

// A key that says more than the allocation has is found out, and closed.
func TestLyingKey(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	honest := d.export(7, 0x1000, kib)
	lie := *honest
	lie.Length, lie.UserLength = kib+1, kib+1
	_, err := c.Map(t.Context(), &lie, MapOptions{})
	require.ErrorIs(t, err, ErrInvalidKey)
	requireCounts(t, c, counts{Opens: 1, Closes: 1})

	// Nor does it harm, or profit from, an honest key's mapping.
	m := mustMap(t, c, honest, MapOptions{})
	_, err = c.Map(t.Context(), &lie, MapOptions{})
	require.ErrorIs(t, err, ErrInvalidKey)
	requireCounts(t, c, counts{Opens: 3, Closes: 2, InUse: 1, Live: 1})
	require.NoError(t, m.Release(FreeUnused))
}

// A hit needs the identity of exporter and allocation to the last part, and not
// only the address (S04: equal pids on other hosts, in other namespaces, reused).
func TestHitNeedsIdentity(t *testing.T) {
	for name, change := range map[string]func(k *Key){
		"nonce":         func(k *Key) { k.Identity.Nonce[15]++ },
		"start time":    func(k *Key) { k.Identity.Start++ },
		"pid":           func(k *Key) { k.Identity.PID++ },
		"pid namespace": func(k *Key) { k.Identity.PIDNS = 0 },
		"buffer id":     func(k *Key) { k.BufferID += 1000 },
		"device":        func(k *Key) { k.Device[0]++ },
		"base":          func(k *Key) { k.Base += 64 },
		"length":        func(k *Key) { k.Length--; k.UserLength-- },
		"handle":        func(k *Key) {},
		"more handles":  func(k *Key) { k.Handles = append(k.Handles, Handle{Kind: KindFabric}) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newFake()
			c := mustCache(t, d, CacheOptions{})
			k := d.export(7, 0x1000, kib)
			other := k.clone()
			if name == "handle" {
				other = *d.export(7, 0x1000, kib)
				other.BufferID = k.BufferID
			}
			change(&other)
			a, b := mustMap(t, c, k, MapOptions{}), mustMap(t, c, &other, MapOptions{})
			require.NoError(t, d.mapped(a.Ptr(), k))
			require.NoError(t, d.mapped(b.Ptr(), &other))
			require.EqualValues(t, 2, c.Stats().Opens)
			require.Zero(t, c.Stats().Hits)
			require.NoError(t, a.Release(FreeUnused))
			require.NoError(t, b.Release(FreeUnused))
		})
	}
	t.Run("and nothing else", func(t *testing.T) {
		d := newFake()
		c := mustCache(t, d, CacheOptions{})
		k := d.export(7, 0x1000, kib)
		other := k.clone()
		other.Slot, other.Generation, other.Offset, other.UserLength = 9, 9, 1, 1
		a, b := mustMap(t, c, k, MapOptions{}), mustMap(t, c, &other, MapOptions{})
		require.EqualValues(t, 1, c.Stats().Hits)
		require.NoError(t, a.Release(FreeUnused))
		require.NoError(t, b.Release(FreeUnused))
	})
}

func TestMappingContext(t *testing.T) {
	const user, userOf1 = cuda.Context(1000), cuda.Context(1001)
	for name, tc := range map[string]struct {
		active bool
		hint   cuda.Context
		want   cuda.Context
	}{
		"active primary":             {true, user, fakeContext(0)},
		"user context":               {false, user, user},
		"user context, other device": {false, userOf1, fakeContext(0)},
		"nothing: primary made":      {false, 0, fakeContext(0)},
	} {
		t.Run(name, func(t *testing.T) {
			d := newFake()
			if tc.active {
				_, err := d.DevicePrimaryCtxRetain(0)
				require.NoError(t, err)
			}
			c := mustCache(t, d, CacheOptions{})
			keys := exportMany(d, 7, 2, kib)
			a := mustMap(t, c, keys[0], MapOptions{Context: tc.hint})
			require.Equal(t, tc.want, a.Context())
			// Chosen once: a later hint changes nothing.
			b := mustMap(t, c, keys[1], MapOptions{Context: 1000})
			require.Equal(t, tc.want, b.Context())
			require.NoError(t, a.Release(FreeUnused))
			require.NoError(t, b.Release(FreeUnused))
			if tc.active {
				require.NoError(t, d.DevicePrimaryCtxRelease(0))
			}
		})
	}
}

// When the mapping context was destroyed, its entries are gone and the next
// open chooses anew.
func TestMappingContextDestroyed(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	keys := exportMany(d, 7, 2, kib)
	require.NoError(t, mustMap(t, c, keys[0], MapOptions{Context: 1000}).Release(Retain))
	failed := false
	d.hook = func(call string) error {
		if call == "cuIpcOpenMemHandle" && !failed {
			failed = true
			return cuda.Err(call, cuda.ErrorContextIsDestroyed)
		}
		return nil
	}
	m := mustMap(t, c, keys[1], MapOptions{})
	require.Equal(t, fakeContext(0), m.Context())
	require.Equal(t, 1, c.Stats().Live)
	require.NoError(t, m.Release(FreeUnused))
}

// P10: when the context went first, tear-down is quiet.
func TestP10ContextGoneFirst(t *testing.T) {
	for _, result := range []cuda.Result{cuda.ErrorContextIsDestroyed, cuda.ErrorDeinitialized, cuda.ErrorInvalidContext} {
		d := newFake()
		c, err := NewCache(d, CacheOptions{})
		require.NoError(t, err)
		for _, k := range exportMany(d, 7, 3, kib) {
			open1(t, c, k)
		}
		d.hook = func(call string) error { return cuda.Err(call, result) }
		require.NoError(t, c.Close())
		require.Zero(t, c.Stats().Zombies)
	}
}

func TestHitsDoNotAllocate(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, kib)
	var cl Claim
	var m Mapping
	require.NoError(t, c.MapInto(t.Context(), &m, k, MapOptions{}))
	m.ClaimInto(&cl)
	require.NoError(t, m.Release(FreeUnused))
	d.hook = func(call string) error { t.Errorf("%s on the hit path", call); return nil }
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := c.MapInto(ctx, &m, k, MapOptions{}); err != nil {
			t.Error(err)
		}
		_ = m.Release(FreeUnused)
		if !cl.PinInto(&m) {
			t.Error("not pinned")
		}
		_ = m.Release(FreeUnused)
	}))
	d.hook = nil
	require.NoError(t, cl.Release(FreeUnused))
}

// A hit takes no lock: it is served while the cache's lock is held.
func TestHitsTakeNoLock(t *testing.T) {
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, kib)
	var cl Claim
	m := mustMap(t, c, k, MapOptions{})
	m.ClaimInto(&cl)
	c.mu.Lock()
	for range 2 {
		again, err := c.Map(t.Context(), k, MapOptions{})
		require.NoError(t, err)
		require.NoError(t, again.Release(FreeUnused))
		require.True(t, cl.PinInto(again))
		require.NoError(t, again.Release(FreeUnused))
	}
	c.mu.Unlock()
	require.NoError(t, m.Release(FreeUnused))
	require.NoError(t, cl.Release(FreeUnused))
}
