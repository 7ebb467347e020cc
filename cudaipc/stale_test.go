package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

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
