package ucxlite

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
	"github.com/stretchr/testify/require"
)

// A key that was only unpacked opens nothing and its destroy closes nothing:
// with an empty cache, with other mappings of the peer in it, and after list
// creations that were refused.
func TestP1UnpackedNeverMapped(t *testing.T) {
	owner, importer := mustPairOf(t)
	_, _, packed := owner.export(payload)
	_, _, other := owner.export(payload)
	e := importer.mustConnected(owner, EndpointOptions{})

	mustUnpack(t, e, packed, UnpackOptions{})
	require.NoError(t, mustUnpack(t, e, packed, UnpackOptions{}).Destroy())
	require.Zero(t, importer.opens())

	// The peer is reachable and in the cache, by another region.
	held := mustUnpack(t, e, other, UnpackOptions{})
	mustPtr(t, held, held.Address())
	opens := importer.opens()
	k := mustUnpack(t, e, packed, UnpackOptions{})
	for name, elems := range badLists(k) {
		w := importer.w
		if name == "another worker's" {
			w = mustWorker(t, importer.c)
		}
		l, err := w.TryRemoteMemList(elems)
		require.Nil(t, l, name)
		require.ErrorIs(t, err, ErrInvalidParam, name)
	}
	require.NoError(t, k.Destroy())
	require.NoError(t, k.Destroy())
	require.Equal(t, opens, importer.opens())
	require.Zero(t, importer.closes())
	_, err := k.Ptr(k.Address())
	require.ErrorIs(t, err, ErrDestroyed)
}

// badLists are lists that can never be right, by what is wrong with them.
func badLists(k *Rkey) map[string][]RemoteMemElem {
	a, n := k.Address(), k.Length()
	return map[string][]RemoteMemElem{
		"nil":              nil,
		"no elements":      {},
		"only gaps":        {{}, {}},
		"no key":           {{Address: a, Length: 8}},
		"length 0":         {{k, a, 0}},
		"before the start": {{k, a - 1, 8}},
		"past the end":     {{k, a + n - 7, 8}},
		"overflow":         {{k, a + 1, ^uint64(0)}},
		"second is bad":    {{k, a, 8}, {k, a, 0}},
		"another worker's": {{k, a, 8}},
	}
}

// The same, but a Retain user left the allocation's mapping idle: a FreeUnused
// key that never mapped closes exactly that.
func TestP1bOwnIdleEntry(t *testing.T) {
	owner, importer := mustPairOf(t)
	_, _, packed := owner.export(payload)
	_, _, busy := owner.export(payload)
	e := importer.mustConnected(owner, EndpointOptions{})

	retained := mustUnpack(t, e, packed, UnpackOptions{Policy: policy(Retain)})
	mustPtr(t, retained, retained.Address())
	require.NoError(t, retained.Destroy())
	mustUnpack(t, e, busy, UnpackOptions{Map: true}) // holds by its claim alone
	require.Zero(t, importer.closes())

	// Another allocation's key, and a Retain key: neither closes it.
	require.NoError(t, mustUnpack(t, e, busy, UnpackOptions{}).Destroy())
	require.NoError(t, mustUnpack(t, e, packed, UnpackOptions{Policy: policy(Retain)}).Destroy())
	require.Zero(t, importer.closes())

	require.NoError(t, mustUnpack(t, e, packed, UnpackOptions{}).Destroy())
	require.Equal(t, 1, importer.closes())
	require.Equal(t, 2, importer.opens())
}

// A key of this very process that was never used: the driver hears nothing.
func TestP2LocalKeyNeverMapped(t *testing.T) {
	owner, _ := mustPairOf(t)
	_, _, packed := owner.export(payload)
	e := owner.mustConnected(owner, EndpointOptions{})
	calls := owner.drv.Counters().Calls
	require.NoError(t, mustUnpack(t, e, packed, UnpackOptions{}).Destroy())
	require.Equal(t, calls, owner.drv.Counters().Calls)
}

// Put and get in flight, and a list, hold the mapping beyond their key; a
// pointer holds it, against an eviction too, as long as its key.
func TestP3DestroyWithWorkInFlight(t *testing.T) {
	owner, importer := mustPairOf(t)
	gate := importer.gateEvents()
	remote, _, packed := owner.export(payload)
	local := importer.alloc(payload)
	want := randomBytes(3, payload)
	owner.write(remote, want)
	e := importer.mustConnected(owner, EndpointOptions{})

	for _, get := range []bool{true, false} {
		closes := importer.closes()
		k := mustUnpack(t, e, packed, UnpackOptions{})
		gate.close()
		op := e.Put
		if get {
			op = e.Get
		}
		r, err := op(DeviceBuffer(local, payload), k.Address(), k, OpOptions{})
		require.NoError(t, err)
		require.NoError(t, k.Destroy())
		done, _ := r.Test()
		require.False(t, done)
		require.Equal(t, closes, importer.closes(), "closed under an operation")
		require.ErrorIs(t, e.Close(), ErrBusy)
		gate.open()
		mustWait(t, r, nil)
		require.Equal(t, closes+1, importer.closes(), "the last one closes it, before its Wait returns")
		require.Equal(t, -1, firstDifference(want, importer.read(local, payload)))
	}

	k := mustUnpack(t, e, packed, UnpackOptions{})
	l, err := importer.w.TryRemoteMemList([]RemoteMemElem{{k, k.Address(), 8}})
	require.NoError(t, err)
	closes := importer.closes()
	require.NoError(t, k.Destroy())
	require.Equal(t, closes, importer.closes())
	require.ErrorIs(t, importer.w.Close(), ErrBusy)
	require.NoError(t, l.Release())
	require.NoError(t, l.Release())
	require.Equal(t, closes+1, importer.closes())

	k = mustUnpack(t, e, packed, UnpackOptions{})
	p := mustPtr(t, k, k.Address())
	n, err := importer.c.Cache().EvictIdle(0)
	require.NoError(t, err)
	require.Zero(t, n, "closed under a pointer")
	require.Equal(t, -1, firstDifference(want, importer.read(p, payload)))
	require.NoError(t, k.Destroy())
	require.Equal(t, closes+2, importer.closes())
}

// Destroy before and after unmap and free at the owner, endpoint close, the
// list's release and the end of an operation: never a leak, memory back at the
// last.
func TestP4Order(t *testing.T) {
	owner, importer := mustPairOf(t)
	local := importer.alloc(payload)
	e := importer.mustConnected(owner, EndpointOptions{})
	warm := mustUnpack(t, e, second(owner.export(payload)), UnpackOptions{})
	mustPtr(t, warm, warm.Address())
	require.NoError(t, warm.Destroy())
	base := owner.free()

	for name, order := range map[string][]string{
		"destroy first":         {"destroy", "release", "wait", "unmap", "free"},
		"release first":         {"release", "wait", "destroy", "unmap", "free"},
		"destroy after unmap":   {"unmap", "destroy", "wait", "release", "free"},
		"destroy after free":    {"unmap", "free", "wait", "release", "destroy"},
		"release after free":    {"unmap", "free", "destroy", "wait", "release"},
		"wait after free":       {"unmap", "free", "destroy", "release", "wait"},
		"endpoint closed first": {"wait", "close", "destroy", "release", "unmap", "free"},
		"endpoint closed last":  {"unmap", "free", "release", "wait", "close", "destroy"},
	} {
		t.Run(name, func(t *testing.T) {
			remote, err := owner.drv.MemAlloc(owner.cu, payload)
			require.NoError(t, err)
			m, err := owner.c.MemMap(owner.cu, remote, payload, MemMapOptions{})
			require.NoError(t, err)
			packed, err := m.PackRkey()
			require.NoError(t, err)
			e := importer.mustConnected(owner, EndpointOptions{})
			k := mustUnpack(t, e, packed, UnpackOptions{})
			r, err := e.Put(DeviceBuffer(local, payload), k.Address(), k, OpOptions{})
			require.NoError(t, err) // it holds until somebody sees that it is done
			l, err := importer.w.TryRemoteMemList([]RemoteMemElem{{k, k.Address(), payload}})
			require.NoError(t, err)
			for _, step := range order {
				switch step {
				case "destroy":
					require.NoError(t, k.Destroy())
				case "release":
					require.NoError(t, l.Release())
				case "wait":
					mustWait(t, r, nil)
				case "unmap":
					require.NoError(t, m.Unmap(testContext(t)))
					_, err := m.PackRkey()
					require.ErrorIs(t, err, ErrDestroyed)
				case "free":
					owner.freeMemory(remote)
				case "close":
					require.NoError(t, e.Close())
				}
			}
			require.Equal(t, base, owner.free())
			require.Equal(t, importer.opens(), importer.closes())
		})
	}
}

func second(_ cuda.DevicePtr, _ *Memory, b []byte) []byte { return b }

// One region on two local devices: by two keys, then by one.
func TestP5SeveralLocalDevices(t *testing.T) {
	owner, importer := mustPairOf(t)
	cu1 := mustPrimary(t, importer.drv, 1)
	_, _, packed := owner.export(payload)
	e := importer.mustConnected(owner, EndpointOptions{})
	dev := []cuda.Device{0, 1}

	k0 := mustUnpack(t, e, packed, UnpackOptions{Device: &dev[0]})
	k1 := mustUnpack(t, e, packed, UnpackOptions{Device: &dev[1]})
	mustPtr(t, k0, k0.Address())
	p1 := mustPtr(t, k1, k1.Address())
	require.Equal(t, 2, importer.opens())
	require.NoError(t, k0.Destroy())
	require.Equal(t, 1, importer.closes())
	require.Equal(t, p1, mustPtr(t, k1, k1.Address()))
	require.NoError(t, k1.Destroy())
	require.Equal(t, 2, importer.closes())

	local0 := importer.alloc(4096)
	local1, err := importer.drv.MemAlloc(cu1, 4096)
	require.NoError(t, err)
	defer func() { require.NoError(t, importer.drv.MemFree(cu1, local1)) }()
	k := mustUnpack(t, e, packed, UnpackOptions{})
	for _, p := range []cuda.DevicePtr{local0, local1} {
		r, err := e.Get(DeviceBuffer(p, 4096), k.Address(), k, OpOptions{})
		mustWait(t, r, err)
	}
	require.Equal(t, 4, importer.opens())
	require.NoError(t, k.Destroy())
	require.Equal(t, 4, importer.closes())
}

// Two keys of one region with different policies: the last release decides.
func TestP6MixedPolicies(t *testing.T) {
	owner, importer := mustPairOf(t)
	_, _, packed := owner.export(payload)
	retain := importer.mustConnected(owner, EndpointOptions{Policy: policy(Retain)})
	for _, c := range []struct {
		name   string
		order  [2]Policy
		closed int
	}{
		{"free last", [2]Policy{Retain, FreeUnused}, 1},
		{"retain last", [2]Policy{FreeUnused, Retain}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := importer.c.Cache().EvictIdle(0)
			require.NoError(t, err)
			closes := importer.closes()
			first := mustUnpack(t, retain, packed, UnpackOptions{Policy: policy(c.order[0])})
			last := mustUnpack(t, retain, packed, UnpackOptions{Policy: policy(c.order[1])})
			mustPtr(t, first, first.Address())
			mustPtr(t, last, last.Address())
			require.NoError(t, first.Destroy())
			require.Equal(t, closes, importer.closes())
			require.NoError(t, last.Destroy())
			require.Equal(t, closes+c.closed, importer.closes())
		})
	}
	// The endpoint's policy is its keys'.
	k := mustUnpack(t, retain, packed, UnpackOptions{})
	require.Equal(t, Retain, k.Policy())
}

// When the context or the driver went first, the tear-down above it is quiet.
func TestP10ContextGoneFirst(t *testing.T) {
	for _, gone := range []cuda.Result{cuda.ErrorContextIsDestroyed, cuda.ErrorDeinitialized, cuda.ErrorInvalidContext} {
		t.Run(gone.Error(), func(t *testing.T) {
			owner, importer := mustPairOf(t)
			softgputest.Tolerate(importer.drv) // what it has stays, on purpose
			var log bytes.Buffer
			importer.c.log = slog.New(slog.NewTextHandler(&log, nil))
			_, _, packed := owner.export(payload)
			e := importer.mustConnected(owner, EndpointOptions{})
			k := mustUnpack(t, e, packed, UnpackOptions{})
			mustPtr(t, k, k.Address())
			r, err := e.Get(DeviceBuffer(importer.alloc(8), 8), k.Address(), k, OpOptions{})
			mustWait(t, r, err)
			r, err = e.Get(HostBuffer(make([]byte, 8)), k.Address(), k, OpOptions{})
			mustWait(t, r, err)
			managed := owner.allocManaged(payload) // by the staged lane, from memory of no context
			_, packed = owner.register(managed, payload)
			k = mustUnpack(t, e, packed, UnpackOptions{})
			r, err = e.Put(DeviceBuffer(importer.allocVMM(8, cuda.HandleTypeNone), 8), k.Address(), k, OpOptions{})
			mustWait(t, r, err)

			importer.drv.SetHook(func(string) cuda.Result { return gone })
			t.Cleanup(func() { importer.drv.SetHook(nil) })
			require.NoError(t, e.Close())
			require.NoError(t, importer.w.Close())
			require.NoError(t, importer.c.Close())
			require.Empty(t, log.String())
			require.Zero(t, importer.c.Cache().Stats().Zombies)
		})
	}
}

// The same where the peer is known by a mapping of this very region on another
// local device, which a key that mapped it claims.
func TestP1KnownByAnotherDevice(t *testing.T) {
	owner, importer := mustPairOf(t)
	mustPrimary(t, importer.drv, 1)
	_, _, packed := owner.export(payload)
	e := importer.mustConnected(owner, EndpointOptions{})
	dev := []cuda.Device{0, 1}
	held := mustUnpack(t, e, packed, UnpackOptions{Device: &dev[1], Map: true})
	require.NoError(t, mustUnpack(t, e, packed, UnpackOptions{Device: &dev[0]}).Destroy())
	mustPtr(t, held, held.Address())
	require.Equal(t, []int{1, 0}, []int{importer.opens(), importer.closes()})
	require.NoError(t, held.Destroy())
	require.Equal(t, 1, importer.closes())
}
