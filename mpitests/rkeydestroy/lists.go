package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpurma/gpurma/mpitests/internal/harness"
	"github.com/gpurma/gpurma/ucxlite"
)

// createList makes a memory list the way an application does: progress, and try
// again as long as the endpoint is not connected. refused is how often it was
// not.
func (i *importer) createList(ctx context.Context, elems []ucxlite.RemoteMemElem) (l *ucxlite.RemoteMemList, refused int, err error) {
	for {
		l, err = i.worker.TryRemoteMemList(elems)
		if !errors.Is(err, ucxlite.ErrNotConnected) {
			return l, refused, err
		}
		refused++
		if live := i.live(); live != 0 {
			return nil, refused, fmt.Errorf("a list that was refused left %d mappings", live)
		}
		i.worker.Progress()
		select {
		case <-ctx.Done():
			return nil, refused, fmt.Errorf("%w after %d refusals", ctx.Err(), refused)
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// listed are the pieces that the lists are made of: both ends and two between.
func (i *importer) listed() []piece { return i.pieces[:min(4, len(i.pieces))] }

func (i *importer) elements(key *ucxlite.Rkey) []ucxlite.RemoteMemElem {
	var elems []ucxlite.RemoteMemElem
	for _, p := range i.listed() {
		elems = append(elems, ucxlite.RemoteMemElem{Rkey: key, Address: key.Address() + p.remote, Length: p.length})
	}
	return elems
}

// checkList reads every element through its own pointer.
func (i *importer) checkList(l *ucxlite.RemoteMemList) error {
	want := image(i.r.Seed, partFilled)
	for n, p := range i.listed() {
		el := l.At(n)
		if el.Length != p.length {
			return fmt.Errorf("element %d is %d bytes long, want %d", n, el.Length, p.length)
		}
		if err := check(i.r, el.Ptr, []piece{{0, p.image, p.length}}, want); err != nil {
			return fmt.Errorf("element %d: %w", n, err)
		}
	}
	return nil
}

// readList makes a list, reads it and releases it.
func (i *importer) readList(ctx context.Context, key *ucxlite.Rkey) error {
	l, refused, err := i.createList(ctx, i.elements(key))
	if err != nil {
		return err
	}
	i.r.Notef("list of %d elements made after %d refusals", l.Len(), refused)
	return errors.Join(i.checkList(l), l.Release())
}

var (
	// useList makes a list and releases it before its key.
	useList = use{name: "list", opens: 1, run: withKey(func(ctx context.Context, i *importer, key *ucxlite.Rkey) error {
		return i.readList(ctx, key)
	})}

	// useListAfterKey releases the list after its key: it holds the mapping
	// until then, and its elements have the key's policy.
	useListAfterKey = use{name: "list-after-key", opens: 1, run: func(ctx context.Context, i *importer) (func() error, error) {
		key, err := i.unpack()
		if err != nil {
			return nil, err
		}
		defer key.Destroy() // again, for the early returns
		l, _, err := i.createList(ctx, i.elements(key))
		if err != nil {
			return nil, err
		}
		defer l.Release() // likewise
		if err := key.Destroy(); err != nil {
			return nil, err
		}
		if err := i.wantLive("with a list that outlives its key", 1); err != nil {
			return nil, err
		}
		if err := i.checkList(l); err != nil {
			return nil, err
		}
		return nil, l.Release()
	}}

	// useListRetry is P7: the owner answers late, and the list is seen to be
	// refused until it has.
	useListRetry = use{name: "list-retry", opens: 1, slow: 50 * time.Millisecond, run: func(ctx context.Context, i *importer) (func() error, error) {
		return nil, i.onEndpoint(ucxlite.EndpointOptions{}, func(key *ucxlite.Rkey) error {
			l, refused, err := i.createList(ctx, i.elements(key))
			if err != nil {
				return err
			}
			i.r.Notef("list made after %d refusals", refused)
			i.r.Record("refused", refused)
			err = errors.Join(i.checkList(l), l.Release())
			if refused == 0 {
				err = errors.Join(err, harness.Inconclusivef("the list was never refused though the owner answers late"))
			}
			return err
		})
	}}

	// useListNoAnswer is P7 with an owner that never answers: the loop ends.
	useListNoAnswer = use{name: "list-no-answer", raw: true, slow: time.Hour, run: func(ctx context.Context, i *importer) (func() error, error) {
		return nil, i.onEndpoint(ucxlite.EndpointOptions{Timeout: 100 * time.Millisecond}, func(key *ucxlite.Rkey) error {
			l, refused, err := i.createList(ctx, i.elements(key))
			if !errors.Is(err, ucxlite.ErrEndpointTimeout) {
				return errors.Join(fmt.Errorf("got error %v after %d refusals, want %v", err, refused, ucxlite.ErrEndpointTimeout), l.Release())
			}
			i.r.Notef("the owner does not answer: gave up after %d refusals: %v", refused, err)
			return nil
		})
	}}

	// useEndpointClosed closes the endpoint under a key with a pointer: that
	// ends the key, and its destroy afterwards finds nothing to do (P4).
	useEndpointClosed = use{name: "endpoint-closed", opens: 1, run: func(ctx context.Context, i *importer) (func() error, error) {
		endpoint, key, err := i.secondEndpoint(ucxlite.EndpointOptions{})
		if err != nil {
			return nil, err
		}
		defer endpoint.Close() // again, for the early returns
		if err := endpoint.WaitConnected(ctx); err != nil {
			return nil, err
		}
		ptr, err := key.Ptr(key.Address())
		if err != nil {
			return nil, err
		}
		if err := check(i.r, ptr, i.pieces, image(i.r.Seed, partFilled)); err != nil {
			return nil, err
		}
		return nil, errors.Join(endpoint.Close(), key.Destroy())
	}}
)

// secondEndpoint is another endpoint to the owner, with the key unpacked on it.
func (i *importer) secondEndpoint(opts ucxlite.EndpointOptions) (*ucxlite.Endpoint, *ucxlite.Rkey, error) {
	opts.Policy = &i.policy
	endpoint, err := i.worker.NewEndpoint(i.Address, opts)
	if err != nil {
		return nil, nil, err
	}
	key, err := endpoint.UnpackRkey(i.Key, ucxlite.UnpackOptions{Device: &i.r.Device})
	if err != nil {
		return nil, nil, errors.Join(err, endpoint.Close())
	}
	return endpoint, key, nil
}

// onEndpoint does something with the key on an endpoint of its own.
func (i *importer) onEndpoint(opts ucxlite.EndpointOptions, do func(*ucxlite.Rkey) error) error {
	endpoint, key, err := i.secondEndpoint(opts)
	if err != nil {
		return err
	}
	return errors.Join(do(key), key.Destroy(), endpoint.Close())
}
