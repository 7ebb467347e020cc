package cudaipc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

// chaos is one exporter whose allocations come and go while others map them.
type chaos struct {
	t    *testing.T
	d    *fakeDriver
	c    *Cache
	mu   sync.Mutex
	keys []*Key // what lies at each place
}

// replace frees what lies at a place and puts another allocation there.
func (x *chaos) replace(place int, length uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.d.unexport(x.keys[place], cuda.ErrorInvalidValue)
	x.keys[place] = x.d.export(7, x.keys[place].Base, length)
}

func (x *chaos) key(r *rand.Rand) *Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.keys[r.IntN(len(x.keys))]
}

// user maps, claims, uses and releases at random. What it holds is mapped.
func (x *chaos) user(r *rand.Rand, steps int) error {
	var m, op Mapping
	var cl Claim
	claimed := (*Key)(nil)
	for range steps {
		k := x.key(r)
		dev := cuda.Device(r.IntN(2))
		err := x.c.MapInto(x.t.Context(), &m, k, MapOptions{Device: dev})
		switch {
		case errors.Is(err, ErrStale), errors.Is(err, ErrAlreadyMapped):
			continue // freed meanwhile, or somebody pins the older one
		case err != nil:
			return err
		}
		if err := x.d.mapped(m.Ptr(), k); err != nil {
			return fmt.Errorf("pinned: %w", err)
		}
		if r.IntN(2) == 0 {
			m.ClaimInto(&cl)
			claimed = k
		}
		if claimed != nil && cl.PinInto(&op) {
			if err := x.d.mapped(op.Ptr(), claimed); err != nil {
				return fmt.Errorf("pinned by claim: %w", err)
			}
		}
		if err := errors.Join(m.Release(Policy(r.IntN(2))), op.Release(Policy(r.IntN(2)))); err != nil {
			return err
		}
		if r.IntN(4) == 0 {
			if err := cl.Release(Policy(r.IntN(2))); err != nil {
				return err
			}
			claimed = nil
		}
	}
	return cl.Release(Retain)
}

// disturb does everything that closes mappings.
func (x *chaos) disturb(r *rand.Rand, steps int) (err error) {
	for range steps {
		switch r.IntN(6) {
		case 0:
			_, _, err = x.c.EvictPeer(fakePeer(7))
		case 1:
			_, err = x.c.EvictIdle(0)
		case 2:
			err = x.c.SetLimits(r.IntN(6), 0)
		case 3:
			_, err = x.c.CloseIdle(x.key(r))
		case 4:
			x.replace(r.IntN(len(x.keys)), uint64(1+r.IntN(2))*kib)
		case 5:
			err = x.c.CheckInvariants()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Everything at once, on both kinds of driver: what is pinned stays mapped, the
// bookkeeping agrees at any moment, and nothing is left.
func TestChaos(t *testing.T) {
	for _, single := range []bool{false, true} {
		t.Run(fmt.Sprintf("single open %t", single), func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			d := newFake()
			d.single = single
			c := mustCache(t, d, CacheOptions{})
			x := &chaos{t: t, d: d, c: c, keys: exportMany(d, 7, 8, kib)}
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(g)))
					f, steps := x.user, 1000
					if g >= 6 {
						f, steps = x.disturb, 300
					}
					if err := f(r, steps); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			require.NoError(t, c.CheckInvariants())
			_, err := c.EvictIdle(0)
			require.NoError(t, err)
			requireCounts(t, c, counts{Opens: c.Stats().Opens, Closes: c.Stats().Opens})
		})
	}
}
