package main

import (
	"context"
	"errors"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
	"github.com/gpurma/gpurma/ucxlite"
)

// pointed unpacks a key and takes a pointer from it.
func (i *importer) pointed(p ucxlite.Policy, dev cuda.Device) (*ucxlite.Rkey, error) {
	key, err := i.unpackAs(p, dev)
	if err != nil {
		return nil, err
	}
	if _, err := key.Ptr(key.Address()); err != nil {
		return nil, errors.Join(err, key.Destroy())
	}
	return key, nil
}

// twoKeys maps the region by two keys and destroys the first, then the second.
// left is how many mappings may stay when both are gone, which are then evicted.
func twoKeys(first, second *ucxlite.Policy, left int) func(context.Context, *importer) (func() error, error) {
	return func(_ context.Context, i *importer) (func() error, error) {
		policies := [2]ucxlite.Policy{i.policy, i.policy}
		for n, p := range []*ucxlite.Policy{first, second} {
			if p != nil {
				policies[n] = *p
			}
		}
		a, err := i.pointed(policies[0], i.r.Device)
		if err != nil {
			return nil, err
		}
		defer a.Destroy() // again, for the early returns
		b, err := i.pointed(policies[1], i.r.Device)
		if err != nil {
			return nil, err
		}
		defer b.Destroy() // likewise
		if err := i.wantLive("with two keys mapped", 1); err != nil {
			return nil, err
		}
		if err := a.Destroy(); err != nil {
			return nil, err
		}
		if err := i.wantLive("with one key destroyed", 1); err != nil {
			return nil, err
		}
		ptr, err := b.Ptr(b.Address())
		if err != nil {
			return nil, err
		}
		if err := check(i.r, ptr, i.pieces[:1], image(i.r.Seed, partFilled)); err != nil {
			return nil, err
		}
		if err := b.Destroy(); err != nil || left == 0 {
			return nil, err
		}
		if err := i.wantLive("with both keys destroyed, a retaining one last", left); err != nil {
			return nil, err
		}
		_, err = i.lib.Cache().EvictIdle(0)
		return nil, err
	}
}

var freeUnused, retain = ucxlite.FreeUnused, ucxlite.Retain

var (
	useTwoKeys = use{name: "two-keys", opens: 1, run: twoKeys(nil, nil, 0)}

	// P6: the last release decides.
	useFreeLast   = use{name: "two-keys-free-last", opens: 1, run: twoKeys(&retain, &freeUnused, 0)}
	useRetainLast = use{name: "two-keys-retain-last", opens: 1, run: twoKeys(&freeUnused, &retain, 1)}

	// useIdle is P1b: a retaining key has left the region mapped and idle; a
	// key that never mapped closes it by its destroy.
	useIdle = use{name: "unmapped-idle", raw: true, opens: 1, run: func(ctx context.Context, i *importer) (func() error, error) {
		retaining, err := i.pointed(ucxlite.Retain, i.r.Device)
		if err != nil {
			return nil, err
		}
		if err := retaining.Destroy(); err != nil {
			return nil, err
		}
		if err := i.wantLive("after the destroy of the retaining key", 1); err != nil {
			return nil, err
		}
		return useNone.run(ctx, i)
	}}

	// useTwoDevices is P5: the region is mapped on two local devices through
	// two keys; each destroy closes its own mapping.
	useTwoDevices = use{name: "two-devices", opens: 2, needs: needsTwoDevices, run: func(_ context.Context, i *importer) (func() error, error) {
		here, err := i.pointed(i.policy, i.devices[0])
		if err != nil {
			return nil, err
		}
		defer here.Destroy() // again, for the early returns
		there, err := i.pointed(i.policy, i.devices[1])
		if err != nil {
			return nil, err
		}
		defer there.Destroy() // likewise
		if err := i.wantLive("with the region mapped on two devices", 2); err != nil {
			return nil, err
		}
		if err := here.Destroy(); err != nil {
			return nil, err
		}
		want := 1
		if i.policy == ucxlite.Retain {
			want = 2
		}
		if err := i.wantLive("with the first device's key destroyed", want); err != nil {
			return nil, err
		}
		return nil, there.Destroy()
	}}

	// useKeyOnTwoDevices is P5 with one key, used on both devices: by its
	// pointer here, and by a get into the other device's memory.
	useKeyOnTwoDevices = use{name: "key-on-two-devices", opens: 2, needs: needsTwoDevices, run: func(ctx context.Context, i *importer) (_ func() error, err error) {
		local, err := i.r.Driver.MemAlloc(i.primaries[1], chunk)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, i.r.Driver.MemFree(i.primaries[1], local)) }()
		key, err := i.pointed(i.policy, i.devices[0])
		if err != nil {
			return nil, err
		}
		defer key.Destroy() // again, for the early returns
		p := i.pieces[0]
		if _, err := i.endpoint.Get(ucxlite.DeviceBuffer(local, p.length), key.Address()+p.remote, key, ucxlite.OpOptions{}); err != nil {
			return nil, err
		}
		if err := i.endpoint.Flush(ctx); err != nil {
			return nil, err
		}
		if err := i.wantLive("with the key used on two devices", 2); err != nil {
			return nil, err
		}
		return nil, key.Destroy()
	}}

	// useAfterFree destroys the key only after the owner has freed its memory,
	// which is missing until then.
	useAfterFree = use{name: "destroy-after-free", opens: 1, run: func(_ context.Context, i *importer) (func() error, error) {
		key, err := i.pointed(i.policy, i.r.Device)
		if err != nil {
			return nil, err
		}
		return key.Destroy, nil
	}}

	// useControl is the negative control: a use without its destroy, until the
	// leak has been seen.
	useControl = use{name: "control", opens: 1, policy: &freeUnused, run: useAfterFree.run}
)

// needsTwoDevices skips where the other rank's memory could not be mapped on a
// second device, which setUp has tried.
func needsTwoDevices(s *session, _ *harness.Rank) error {
	if len(s.devices) < 2 {
		return harness.Skipf("found 1 device, need 2")
	}
	if s.second != nil {
		return harness.Skipf("found no way to map the other rank's memory on device %d (%v), need one", s.devices[1], s.second)
	}
	return nil
}
