package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
	"github.com/gpurma/gpurma/ucxlite"
)

// estate is the owner's memory in one round, and the library it is registered
// with.
type estate struct {
	r      *harness.Rank
	ptr    cuda.DevicePtr
	memory *ucxlite.Memory
	lib    *ucxlite.Context // of this round; nil where the session's serves
	worker *ucxlite.Worker  // likewise
}

// free unmaps and frees everything, once.
func (e *estate) free(ctx context.Context) error {
	var errs []error
	if e.memory != nil {
		errs = append(errs, e.memory.Unmap(ctx))
	}
	if e.ptr != 0 {
		errs = append(errs, e.r.Driver.MemFree(e.r.Primary, e.ptr))
	}
	if e.worker != nil {
		errs = append(errs, e.worker.Close())
	}
	if e.lib != nil {
		errs = append(errs, e.lib.Close())
	}
	*e = estate{r: e.r}
	return errors.Join(append(errs, e.r.Driver.CtxSynchronize(e.r.Primary))...)
}

// own is the owner's side of a round.
func (s *session) own(ctx context.Context, r *harness.Rank, u use, size uint64, res *result) (err error) {
	e := &estate{r: r}
	defer func() { err = errors.Join(err, e.free(ctx)) }()
	message, err := s.settle(e, u, size)
	if err != nil {
		return err
	}
	if err := r.Send(message); err != nil {
		return err
	}
	late, err := r.Recv() // the importer is done, or as far as it goes before the free
	if err != nil {
		return err
	}
	if !u.raw {
		part := partFilled
		if u.puts {
			part = partPut
		}
		if err := check(r, e.ptr, pieces(size, r.Seed), image(r.Seed, part)); err != nil {
			return fmt.Errorf("owner: %w", err)
		}
	}
	if err := e.free(ctx); err != nil {
		return err
	}
	return s.holdUntilLate(r, r.Index(), len(late) > 0, nil, res)
}

// settle allocates, fills, registers and packs, and returns the message to the
// importer.
func (s *session) settle(e *estate, u use, size uint64) ([]byte, error) {
	r, lib, worker := e.r, s.lib, s.worker
	var err error
	if u.slow > 0 {
		config := s.lib.Config()
		config.WireupDelay = u.slow
		if lib, err = ucxlite.NewContext(r.Driver, ucxlite.ContextOptions{Config: &config, Logger: r.Log}); err != nil {
			return nil, err
		}
		e.lib = lib
		if worker, err = lib.NewWorker(ucxlite.WorkerOptions{}); err != nil {
			return nil, err
		}
		e.worker = worker
	}
	if e.ptr, err = r.Driver.MemAlloc(r.Primary, size); err != nil {
		return nil, fmt.Errorf("allocate %s: %w", humanize.IBytes(size), err)
	}
	if !u.raw {
		if err := write(r, e.ptr, pieces(size, r.Seed), image(r.Seed, partFilled)); err != nil {
			return nil, err
		}
	}
	if e.memory, err = lib.MemMap(r.Primary, e.ptr, size, ucxlite.MemMapOptions{}); err != nil {
		return nil, err
	}
	key, err := e.memory.PackRkey()
	if err != nil {
		return nil, err
	}
	return json.Marshal(offer{key, worker.Address()})
}
