package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
	"github.com/gpurma/gpurma/ucxlite"
)

// use is what the importer does with a key between receiving it and saying that
// it is done.
type use struct {
	name string
	// run includes the destroy of every key, unless it returns late: that runs
	// after the owner has freed its memory, which until then must be seen to
	// be missing.
	run func(ctx context.Context, i *importer) (late func() error, err error)
	// opens is how many opens of the owner's memory this takes, exactly.
	opens uint64
	// puts says that the owner finds other bytes than it filled in.
	puts bool
	// raw leaves the owner's memory as it is: nobody looks at it.
	raw bool
	// policy overrides that of the run; for controls.
	policy *ucxlite.Policy
	// slow delays the owner's answers to the wire-up of the key's endpoint: the
	// memory is then registered with a second library context of the owner.
	slow time.Duration
	// settles says that the memory may take a while to come back: a process
	// has died.
	settles bool
	// needs returns a skip where this machine cannot run it; nil if it always
	// can.
	needs func(s *session, r *harness.Rank) error
}

// offer is what the owner sends: its key, and where its library is.
type offer struct {
	Key     []byte
	Address ucxlite.WorkerAddress
}

// importer is the importing side of one round.
type importer struct {
	*session
	offer
	r      *harness.Rank
	pieces []piece
	policy ucxlite.Policy
}

// unpack reads the key as the program's user would, for this rank's device.
func (i *importer) unpack() (*ucxlite.Rkey, error) {
	return i.unpackAs(i.policy, i.r.Device)
}

func (i *importer) unpackAs(p ucxlite.Policy, dev cuda.Device) (*ucxlite.Rkey, error) {
	return i.endpoint.UnpackRkey(i.Key, ucxlite.UnpackOptions{Policy: &p, Device: &dev})
}

// live is how many mappings the library has open.
func (i *importer) live() int { return i.lib.Cache().Stats().Live }

// wantLive checks the number of open mappings on the way.
func (i *importer) wantLive(when string, want int) error {
	if got := i.live(); got != want {
		return fmt.Errorf("%s: %d mappings are open, want %d", when, got, want)
	}
	return nil
}

// result is what a round came to, the same on both ranks.
type result struct {
	before, held, after reading
	late                bool // held was taken
	finding             error
}

// round runs u once, with the rank of index owner owning size bytes. The error
// is of what could not be done; what was found out stands in the result.
func (s *session) round(ctx context.Context, r *harness.Rank, u use, size uint64, owner int) (*result, error) {
	res := &result{}
	var err error
	if res.before, err = s.idle(r, owner); err != nil {
		return nil, err
	}
	if r.Index() == owner {
		err = s.own(ctx, r, u, size, res)
	} else {
		err = s.borrow(ctx, r, u, size, owner, res)
	}
	if err != nil {
		return nil, err
	}
	if res.after, err = s.sample(r, owner); err != nil {
		return nil, err
	}
	// A process that died may take a moment to be gone; both ranks see the
	// same readings and agree on when to look again.
	for n := 0; u.settles && n < 50 && released(r, res.before, res.after) != nil; n++ {
		time.Sleep(100 * time.Millisecond)
		if res.after, err = s.sample(r, owner); err != nil {
			return nil, err
		}
	}
	res.finding = released(r, res.before, res.after)
	opened, closed := res.after.Opens-res.before.Opens, res.after.Closes-res.before.Closes
	if opened != u.opens {
		res.finding = errors.Join(res.finding, fmt.Errorf("the importer opened %d mappings (and closed %d), want %d", opened, closed, u.opens))
	}
	return res, nil
}

// idle takes the reading before a round, twice: memory that comes and goes while
// neither rank does anything is somebody else's.
func (s *session) idle(r *harness.Rank, owner int) (reading, error) {
	first, err := s.sample(r, owner)
	if err != nil {
		return first, err
	}
	second, err := s.sample(r, owner)
	if err == nil && first.Free != second.Free {
		err = harness.Inconclusivef("free memory went from %d to %d while nothing was done: somebody else uses the device", first.Free, second.Free)
	}
	return second, err
}

// borrow is the importer's side.
func (s *session) borrow(ctx context.Context, r *harness.Rank, u use, size uint64, owner int, res *result) error {
	message, err := r.Recv()
	if err != nil {
		return err
	}
	i := &importer{session: s, r: r, pieces: pieces(size, r.Seed), policy: policy(r)}
	if err := json.Unmarshal(message, &i.offer); err != nil {
		return err
	}
	if u.policy != nil {
		i.policy = *u.policy
	}
	late, err := u.run(ctx, i)
	if err != nil {
		return fmt.Errorf("importer: %w", err)
	}
	message = nil
	if late != nil {
		message = []byte("late")
	}
	if err := r.Send(message); err != nil {
		return err
	}
	return s.holdUntilLate(r, owner, late != nil, late, res)
}

// holdUntilLate looks at the memory after the owner has freed it, if the
// importer still holds it, and lets the importer go on.
func (s *session) holdUntilLate(r *harness.Rank, owner int, isLate bool, late func() error, res *result) (err error) {
	if !isLate {
		return nil
	}
	res.late = true
	if res.held, err = s.sample(r, owner); err != nil {
		return err
	}
	if late != nil {
		if err := late(); err != nil {
			return fmt.Errorf("importer, after the owner's free: %w", err)
		}
	}
	return r.Barrier()
}
