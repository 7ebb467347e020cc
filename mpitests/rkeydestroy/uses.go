package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
	"github.com/gpurma/gpurma/ucxlite"
)

// withKey is a use that unpacks one key, does something with it and destroys it.
func withKey(do func(ctx context.Context, i *importer, key *ucxlite.Rkey) error) func(context.Context, *importer) (func() error, error) {
	return func(ctx context.Context, i *importer) (func() error, error) {
		key, err := i.unpack()
		if err != nil {
			return nil, err
		}
		err = do(ctx, i, key)
		return nil, errors.Join(err, key.Destroy())
	}
}

// The uses that one key and the session's endpoint are enough for.
var (
	// useNone is P1: the key is unpacked and destroyed, nothing else.
	useNone = use{name: "none", raw: true, run: withKey(func(context.Context, *importer, *ucxlite.Rkey) error { return nil })}

	// usePeerKnown is P1 where the peer is already known as reachable through
	// another region, which stays mapped.
	usePeerKnown = use{name: "none-peer-known", raw: true, opens: 1, run: func(ctx context.Context, i *importer) (func() error, error) {
		free := ucxlite.FreeUnused
		other, err := i.endpoint.UnpackRkey(i.beacon.peer, ucxlite.UnpackOptions{Policy: &free, Device: &i.r.Device})
		if err != nil {
			return nil, err
		}
		defer other.Destroy() // again, for the early returns
		if _, err := other.Ptr(other.Address()); err != nil {
			return nil, err
		}
		if err := i.wantLive("with the other region mapped", 1); err != nil {
			return nil, err
		}
		if _, err := useNone.run(ctx, i); err != nil {
			return nil, err
		}
		if err := i.wantLive("after the destroy of the key that never mapped", 1); err != nil {
			return nil, err
		}
		return nil, other.Destroy()
	}}

	// useBadLists is P1 after lists that were refused for each bad parameter.
	useBadLists = use{name: "none-bad-lists", raw: true, run: withKey(func(_ context.Context, i *importer, key *ucxlite.Rkey) error {
		for what, elems := range map[string][]ucxlite.RemoteMemElem{
			"empty list":      nil,
			"gaps only":       {{}, {}},
			"no key":          {{Address: key.Address(), Length: 1}},
			"length 0":        {{Rkey: key, Address: key.Address()}},
			"below the range": {{Rkey: key, Address: key.Address() - 1, Length: 1}},
			"beyond the end":  {{Rkey: key, Address: key.Address(), Length: key.Length() + 1}},
			"overflow":        {{Rkey: key, Address: key.Address(), Length: ^uint64(0)}},
			"second one bad":  {{Rkey: key, Address: key.Address(), Length: 1}, {Rkey: key}},
		} {
			l, err := i.worker.TryRemoteMemList(elems)
			if !errors.Is(err, ucxlite.ErrInvalidParam) {
				return errors.Join(fmt.Errorf("list with %s: got error %v, want %v", what, err, ucxlite.ErrInvalidParam), l.Release())
			}
		}
		return nil
	})}

	// usePtr takes a pointer and reads the owner's bytes through it.
	usePtr = use{name: "ptr", opens: 1, run: withKey(func(_ context.Context, i *importer, key *ucxlite.Rkey) error {
		ptr, err := key.Ptr(key.Address())
		if err != nil {
			return err
		}
		return check(i.r, ptr, i.pieces, image(i.r.Seed, partFilled))
	})}

	// usePtrTwice takes pointers to two places: one mapping.
	usePtrTwice = use{name: "ptr-twice", opens: 1, run: withKey(func(_ context.Context, i *importer, key *ucxlite.Rkey) error {
		base, err := key.Ptr(key.Address())
		if err != nil {
			return err
		}
		inner, err := key.Ptr(key.Address() + key.Length()/2 + 1)
		if err != nil {
			return err
		}
		if got, want := uint64(inner-base), key.Length()/2+1; got != want {
			return fmt.Errorf("the second pointer is %d bytes behind the first, want %d", got, want)
		}
		return check(i.r, base, i.pieces, image(i.r.Seed, partFilled))
	})}

	// useGet and usePut move bytes by the endpoint.
	useGet = use{name: "get", opens: 1, run: withKey(func(ctx context.Context, i *importer, key *ucxlite.Rkey) error {
		return i.get(ctx, key)
	})}
	usePut = use{name: "put", opens: 1, puts: true, run: withKey(func(ctx context.Context, i *importer, key *ucxlite.Rkey) error {
		return i.put(ctx, key)
	})}

	// useAll is everything with one key: still one mapping.
	useAll = use{name: "all", opens: 1, puts: true, run: withKey(func(ctx context.Context, i *importer, key *ucxlite.Rkey) error {
		ptr, err := key.Ptr(key.Address())
		if err != nil {
			return err
		}
		if err := check(i.r, ptr, i.pieces, image(i.r.Seed, partFilled)); err != nil {
			return err
		}
		if err := i.get(ctx, key); err != nil {
			return err
		}
		if err := i.readList(ctx, key); err != nil {
			return err
		}
		return i.put(ctx, key)
	})}

	// useInFlight is P3: the key is destroyed while copies run. They end, with
	// the right bytes, and the last of them closes the mapping.
	useInFlight = use{name: "in-flight-destroy", opens: 1, run: func(ctx context.Context, i *importer) (_ func() error, err error) {
		local, length, err := i.longCopy()
		if err != nil {
			return nil, err
		}
		if local != i.scratch {
			defer func() { err = errors.Join(err, i.r.Driver.MemFree(i.r.Primary, local)) }()
		}
		key, err := i.unpack()
		if err != nil {
			return nil, err
		}
		defer key.Destroy() // again, for the early returns
		var last *ucxlite.Request
		const copies = 16
		for range copies {
			if last, err = i.endpoint.Get(ucxlite.DeviceBuffer(local, length), key.Address(), key, ucxlite.OpOptions{}); err != nil {
				return nil, err
			}
		}
		if err := key.Destroy(); err != nil {
			return nil, err
		}
		live := i.live()
		if done, err := last.Test(); done {
			return nil, errors.Join(err, harness.Inconclusivef("the copies were done before the destroy returned"))
		}
		if live != 1 {
			return nil, fmt.Errorf("with copies in flight after the destroy: %d mappings are open, want 1", live)
		}
		if err := i.endpoint.Flush(ctx); err != nil {
			return nil, err
		}
		return nil, check(i.r, local, i.pieces[:1], image(i.r.Seed, partFilled))
	}}
)

// longCopy returns local memory for copies that take long enough to be caught
// in flight: on a GPU as much as the owner has, on the emulator, where that would
// take seconds and a GiB of the machine's memory, the session's scratch.
func (i *importer) longCopy() (local cuda.DevicePtr, length uint64, err error) {
	last := i.pieces[1]
	size := last.remote + last.length
	if i.r.Driver.Name() == "softgpu" {
		return i.scratch, min(size, dataBytes), nil
	}
	local, err = i.r.Driver.MemAlloc(i.r.Primary, size)
	return local, size, err
}
