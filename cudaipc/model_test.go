package cudaipc

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpurma/gpurma/cuda"
)

// run is one random run: the cache, its driver and the model side by side.
type run struct {
	m       model
	d       *fakeDriver
	c       *Cache
	places  map[string]*Key // what lies at a place of a peer now
	keys    []*Key          // all keys ever made, the stale ones too
	pins    []*heldPin
	claims  []*heldClaim
	badOpen cuda.Result
}

type heldPin struct {
	m Mapping
	e *modelEntry
}

type heldClaim struct {
	cl Claim
	e  *modelEntry
}

func newRun(t *rapid.T) *run {
	r := &run{d: newFake(), places: map[string]*Key{}}
	r.d.hook = func(call string) error {
		switch {
		case call == "cuIpcCloseMemHandle" && r.m.refuse:
			return cuda.Err(call, cuda.ErrorUnknown)
		case call == "cuIpcOpenMemHandle" && r.badOpen != cuda.Success:
			res := r.badOpen
			r.badOpen = cuda.Success
			return cuda.Err(call, res)
		}
		return nil
	}
	var err error
	if r.c, err = NewCache(r.d, CacheOptions{}); err != nil {
		t.Fatal(err)
	}
	return r
}

func unknownOnly(t *rapid.T, err error) {
	if err != nil && !errors.Is(err, cuda.ErrorUnknown) {
		t.Fatal(err)
	}
}

// allocate frees what lies at a place and puts another allocation there, of
// another size, so that it overlaps what others knew of it.
func (r *run) allocate(t *rapid.T) {
	peer := rapid.Uint32Range(0, 2).Draw(t, "peer")
	place := rapid.IntRange(0, 5).Draw(t, "place")
	length := rapid.Uint64Range(1, 3).Draw(t, "length") * 0x1000
	base := cuda.DevicePtr(0x100000 + 0x1000*place)
	for name, k := range r.places {
		if k.Identity == fakePeer(peer) && k.Base < base.Add(length) && base < k.Base.Add(k.Length) {
			r.d.unexport(k, cuda.ErrorInvalidValue)
			delete(r.places, name)
		}
	}
	k := r.d.export(peer, base, length)
	r.places[fmt.Sprint(peer, place)] = k
	r.keys = append(r.keys, k)
}

func (r *run) key(t *rapid.T) *Key {
	if len(r.keys) == 0 {
		t.Skip("no allocation yet")
	}
	// The newest are the likeliest to be alive.
	return r.keys[len(r.keys)-1-rapid.IntRange(0, min(len(r.keys)-1, 11)).Draw(t, "key")]
}

func (r *run) mapKey(t *rapid.T) {
	k, dev := r.key(t), cuda.Device(rapid.Int32Range(0, 1).Draw(t, "device"))
	p := new(heldPin)
	e := r.m.find(k, dev)
	opensAnew := e == nil
	if opensAnew {
		r.badOpen = rapid.SampledFrom([]cuda.Result{0, 0, 0, 0, cuda.ErrorInvalidHandle, cuda.ErrorOutOfMemory}).Draw(t, "open answers")
	}
	failure := r.badOpen
	err := r.c.MapInto(t.Context(), &p.m, k, MapOptions{Device: dev})
	if opensAnew && failure == cuda.Success && r.gone(k) {
		failure = cuda.ErrorInvalidValue
	}
	if failure != cuda.Success {
		if !errors.Is(err, failure) {
			t.Fatalf("open of %s: got %v, want %v", k, err, failure)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if opensAnew {
		e = r.m.open(k, dev)
	} else {
		e.pins++
	}
	p.e = e
	r.pins = append(r.pins, p)
}

// gone tells whether an open of k fails: its allocation was freed and the
// driver has no mapping of it any more.
func (r *run) gone(k *Key) bool {
	for _, now := range r.places {
		if now == k {
			return false
		}
	}
	return !slices.ContainsFunc(r.m.entries, func(e *modelEntry) bool { return e.key == k }) && !slices.Contains(r.m.zombies, k)
}

func take[T any](t *rapid.T, list *[]T, label string) T {
	if len(*list) == 0 {
		t.Skip("none held")
	}
	i := rapid.IntRange(0, len(*list)-1).Draw(t, label)
	v := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return v
}

func policy(t *rapid.T) Policy { return Policy(rapid.IntRange(0, 1).Draw(t, "policy")) }

func (r *run) release(t *rapid.T) {
	p, how := take(t, &r.pins, "pin"), policy(t)
	unknownOnly(t, p.m.Release(how))
	r.m.unpin(p.e, how)
}

func (r *run) claim(t *rapid.T) {
	if len(r.pins) == 0 {
		t.Skip("no pin")
	}
	p := r.pins[rapid.IntRange(0, len(r.pins)-1).Draw(t, "pin")]
	h := &heldClaim{e: p.e}
	p.m.ClaimInto(&h.cl)
	p.e.claims++
	r.claims = append(r.claims, h)
}

func (r *run) use(t *rapid.T) {
	if len(r.claims) == 0 {
		t.Skip("no claim")
	}
	h := r.claims[rapid.IntRange(0, len(r.claims)-1).Draw(t, "claim")]
	p := &heldPin{e: h.e}
	want := slices.Contains(r.m.entries, h.e) && !h.e.detached
	if got := h.cl.PinInto(&p.m); got != want {
		t.Fatalf("PinInto says %t, want %t", got, want)
	}
	if want {
		h.e.pins++
		r.pins = append(r.pins, p)
	}
}

func (r *run) destroy(t *rapid.T) {
	h, how := take(t, &r.claims, "claim"), policy(t)
	unknownOnly(t, h.cl.Release(how))
	r.m.unclaim(h.e, how)
}

func (r *run) evict(t *rapid.T, match func(*modelEntry) bool, act func() (int, int, error)) {
	var retried, kept []*Key
	for _, k := range r.m.zombies {
		if match(&modelEntry{key: k}) {
			retried = append(retried, k)
		} else {
			kept = append(kept, k)
		}
	}
	r.m.zombies = kept
	closed, busy := 0, 0
	for _, e := range slices.Clone(r.m.entries) {
		switch {
		case !match(e):
		case e.pins > 0:
			busy++
		default:
			closed++
			r.m.end(e)
		}
	}
	for _, k := range retried {
		if r.m.refuse {
			r.m.zombies = append(r.m.zombies, k)
		} else {
			r.m.closes++
		}
	}
	n, b, err := act()
	unknownOnly(t, err)
	if diff := cmp.Diff([]int{closed, busy}, []int{n, b}); diff != "" {
		t.Fatal(diff)
	}
}

func (r *run) check(t *rapid.T) {
	if err := r.c.CheckInvariants(); err != nil {
		t.Fatal(err)
	}
	for _, p := range r.pins {
		if err := r.d.mapped(p.m.Ptr(), p.e.key); err != nil {
			t.Fatalf("closed under a pin: %v", err)
		}
	}
	if diff := cmp.Diff(r.m.counts(), countsOf(r.c)); diff != "" {
		t.Fatal(diff)
	}
	if _, _, live := r.d.counts(); live != r.m.opens-r.m.closes {
		t.Fatalf("driver has %d mappings, want %d", live, r.m.opens-r.m.closes)
	}
}

// The cache against the naive model: random maps, uses, releases, destroys, frees
// with reuse of the address, evictions, limits, deaths and driver failures.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRun(t)
		t.Repeat(map[string]func(*rapid.T){
			"":         r.check,
			"allocate": r.allocate,
			"map":      r.mapKey,
			"map2":     r.mapKey,
			"release":  r.release,
			"claim":    r.claim,
			"use":      r.use,
			"destroy":  r.destroy,
			"refuse":   func(t *rapid.T) { r.m.refuse = !r.m.refuse },
			"limit": func(t *rapid.T) {
				r.m.limit = rapid.IntRange(0, 6).Draw(t, "limit")
				unknownOnly(t, r.c.SetLimits(r.m.limit, 0))
				r.m.shrink()
			},
			"death": func(t *rapid.T) {
				id := fakePeer(rapid.Uint32Range(0, 2).Draw(t, "peer"))
				for name, k := range r.places {
					if k.Identity == id {
						r.d.unexport(k, cuda.ErrorInvalidValue)
						delete(r.places, name)
					}
				}
				r.evict(t, func(e *modelEntry) bool { return e.key.Identity == id },
					func() (int, int, error) { return r.c.EvictPeer(id) })
			},
			"evict idle": func(t *rapid.T) {
				busy := 0
				for _, e := range r.m.entries {
					if e.pins > 0 {
						busy++
					}
				}
				r.evict(t, func(*modelEntry) bool { return true },
					func() (int, int, error) { n, err := r.c.EvictIdle(0); return n, busy, err })
			},
			"close idle": func(t *rapid.T) {
				k, want := r.key(t), 0
				for _, e := range slices.Clone(r.m.entries) {
					if e.key == k && !e.detached && e.pins == 0 && e.claims == 0 {
						want++
						r.m.end(e)
					}
				}
				n, err := r.c.CloseIdle(k)
				unknownOnly(t, err)
				if n != want {
					t.Fatalf("closed %d, want %d", n, want)
				}
			},
		})
		r.m.refuse = false
		for len(r.pins) > 0 {
			r.release(t)
		}
		for len(r.claims) > 0 {
			r.destroy(t)
		}
		r.check(t)
		if err := r.c.Close(); err != nil {
			t.Fatal(err)
		}
		if _, _, live := r.d.counts(); live != 0 {
			t.Fatalf("%d mappings left", live)
		}
	})
}
