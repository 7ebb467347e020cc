package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/mpitests/internal/harness"
	"github.com/gpurma/gpurma/ucxlite"
)

// scene is a situation in force on this rank, with a library context, worker
// and connected endpoint of its own: the library chooses the context that it
// maps in once, at its first use, so each situation needs a fresh one.
type scene struct {
	*arrangement
	name     string
	lib      *ucxlite.Context
	worker   *ucxlite.Worker
	endpoint *ucxlite.Endpoint
}

// stage keeps the scene between cases, as most follow one that has the same.
type stage struct{ now *scene }

// set returns the scene for c, on both ranks a new one or on both the old one.
func (s *stage) set(ctx context.Context, r *harness.Rank, c testCase) (*scene, error) {
	name := fmt.Sprint(c.situation.index)
	have := "-"
	if s.now != nil {
		have = s.now.name
	}
	theirs, err := r.Exchange([]byte(have))
	if err != nil {
		return nil, err
	}
	if have == name && string(theirs) == name {
		return s.now, nil
	}
	if err := s.clear(); err != nil {
		return nil, fmt.Errorf("leave the scene before: %w", err)
	}
	sc, err := enterScene(ctx, r, c)
	if err != nil {
		return nil, err
	}
	sc.name = name
	s.now = sc
	return sc, nil
}

// clear leaves the scene that is set, where one is.
func (s *stage) clear() error {
	sc := s.now
	s.now = nil
	return sc.leave()
}

func enterScene(ctx context.Context, r *harness.Rank, c testCase) (_ *scene, err error) {
	sc := &scene{}
	defer func() {
		if err != nil {
			err = errors.Join(err, sc.leave())
		}
	}()
	if sc.arrangement, err = c.situation.enter(r.Driver, r.Device); err != nil {
		if errors.Is(err, errNeedsDevice) {
			err = harness.Skipf("%v", err)
		}
		return nil, err
	}
	config := ucxlite.DefaultConfig() // and not the environment's
	if sc.lib, err = ucxlite.NewContext(r.Driver, ucxlite.ContextOptions{Config: &config, Logger: r.Log}); err != nil {
		return nil, err
	}
	if sc.worker, err = sc.lib.NewWorker(ucxlite.WorkerOptions{}); err != nil {
		return nil, err
	}
	peer, err := r.Exchange(sc.worker.Address())
	if err != nil {
		return nil, err
	}
	policy := ucxlite.FreeUnused
	if r.Leak() {
		policy = ucxlite.Retain
	}
	if sc.endpoint, err = sc.worker.NewEndpoint(peer, ucxlite.EndpointOptions{Policy: &policy}); err != nil {
		return nil, err
	}
	if err := sc.endpoint.WaitConnected(ctx); err != nil {
		return nil, fmt.Errorf("wire-up: %w", err)
	}
	return sc, r.Barrier()
}

// leave closes everything, children first.
func (sc *scene) leave() error {
	if sc == nil {
		return nil
	}
	var errs []error
	if sc.endpoint != nil {
		errs = append(errs, sc.endpoint.Close())
	}
	if sc.worker != nil {
		errs = append(errs, sc.worker.Close())
	}
	if sc.lib != nil {
		errs = append(errs, sc.lib.Close())
	}
	if sc.arrangement != nil {
		errs = append(errs, sc.arrangement.leave())
	}
	return errors.Join(errs...)
}
