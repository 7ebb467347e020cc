package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
)

// uses lists what is done with keys of memory from the plain allocator.
var uses = []use{
	useNone, usePeerKnown, useBadLists, useIdle,
	usePtr, usePtrTwice, useGet, usePut, useList, useAll,
	useInFlight, useAfterFree, useListAfterKey, useListRetry, useListNoAnswer, useEndpointClosed,
	useTwoKeys, useFreeLast, useRetainLast, useTwoDevices, useKeyOnTwoDevices,
	usePeerKilled,
}

// cases lists all of them. The control comes first; every other case asks what
// it came to, and runs it where --run has left it out.
func (s *session) cases(settings *harness.Settings) ([]harness.Case, error) {
	const granule = 2 * 2 * chunk
	if s.Size == 0 || s.Size%granule != 0 {
		return nil, fmt.Errorf("--size %d: want a multiple of %s, so that both sizes hold the two ends that are looked at", uint64(s.Size), humanize.IBytes(granule))
	}
	name := func(u use) string { return "alloc/" + u.name + "/" + settings.Policy }
	all := []harness.Case{{Name: name(useControl), Run: func(ctx context.Context, r *harness.Rank) error {
		return s.controlled(ctx, r)
	}}}
	for _, u := range uses {
		all = append(all, harness.Case{Name: name(u), Run: func(ctx context.Context, r *harness.Rank) error {
			if u.needs != nil {
				if err := u.needs(s, r); err != nil {
					return err
				}
			}
			if err := s.controlled(ctx, r); err != nil {
				return err
			}
			return s.allRounds(ctx, r, u)
		}})
	}
	return all, nil
}

// sizes of the owner's memory, in bytes.
func (s *session) sizes() []uint64 { return []uint64{uint64(s.Size), uint64(s.Size) / 2} }

// controlled runs the negative control, once in a job: no destroy, and the whole
// size must be seen to be missing after the owner's free, for both sizes and in
// both directions. Where it is not seen, nothing that a case finds is worth
// anything.
func (s *session) controlled(ctx context.Context, r *harness.Rank) error {
	if !s.controlRan {
		s.controlRan = true
		s.control = s.allRounds(ctx, r, useControl)
	}
	if s.control != nil {
		return harness.Inconclusivef("the negative control failed: %v", s.control)
	}
	return nil
}

// allRounds runs u for both sizes, in both directions.
func (s *session) allRounds(ctx context.Context, r *harness.Rank, u use) error {
	var findings []error
	var worst int64
	for _, size := range s.sizes() {
		for owner := range 2 {
			if err := s.clean(r, owner); err != nil {
				return errors.Join(append(findings, err)...)
			}
			res, err := s.round(ctx, r, u, size, owner)
			if err != nil {
				return errors.Join(append(findings, fmt.Errorf("%s, rank %d owns: %w", humanize.IBytes(size), r.World()&^1+owner, err))...)
			}
			if u.name == useControl.name || u.name == useAfterFree.name || u.name == usePeerKilled.name {
				res.finding = errors.Join(seen(u, size, res), res.finding)
			}
			s.describe(r, u, size, owner, res)
			if res.finding != nil {
				findings = append(findings, fmt.Errorf("%s, rank %d owns: %w", humanize.IBytes(size), r.World()&^1+owner, res.finding))
			}
			if n := missing(res.before, res.after); abs(n) > abs(worst) {
				worst = n
			}
		}
	}
	if r.Index() == 0 {
		sizes := s.sizes()
		r.Remarkf("%s, %s and %s, unreleased %d bytes", r.Driver.Name(), humanize.IBytes(sizes[0]), humanize.IBytes(sizes[1]), worst)
	}
	return errors.Join(findings...)
}

func abs(n int64) int64 { return max(n, -n) }

// seen checks that the owner's memory was missing while the importer held it
// beyond the free.
func seen(u use, size uint64, res *result) error {
	if !res.late {
		return errors.New("nothing was held beyond the owner's free")
	}
	n := missing(res.before, res.held)
	// A child that holds the memory has a context of its own on the device.
	if n == int64(size) || u.settles && n > int64(size) {
		return nil
	}
	return fmt.Errorf("while the importer held it, %d bytes were missing, want %d", n, size)
}

// clean closes what an earlier round has left, which that round has reported.
func (s *session) clean(r *harness.Rank, owner int) error {
	if r.Index() == owner {
		return nil
	}
	if _, err := s.lib.Cache().EvictIdle(0); err != nil {
		return err
	}
	if live := s.lib.Cache().Stats().Live; live != 0 {
		return harness.Inconclusivef("%d mappings are still open from an earlier round", live)
	}
	return nil
}

// describe prints a round's readings, at the owner.
func (s *session) describe(r *harness.Rank, u use, size uint64, owner int, res *result) {
	if r.Index() != owner {
		return
	}
	b, a := res.before, res.after
	text := ""
	if u.name == useControl.name {
		text = "without destroy, "
	}
	text += fmt.Sprintf("owns %s: free %d", humanize.IBytes(size), b.Free)
	if res.late {
		text += fmt.Sprintf(", while held %d (%d missing)", res.held.Free, missing(b, res.held))
		r.Record(fmt.Sprintf("held_%d", size), missing(b, res.held))
	}
	text += fmt.Sprintf(", after %d; importer: opens %d, closes %d, live %d", a.Free, a.Opens-b.Opens, a.Closes-b.Closes, a.Live)
	if a.Mapped >= 0 {
		text += fmt.Sprintf(", in its driver %d; node's files %d, after %d bytes", a.Mapped, b.Bytes, a.Bytes)
	}
	r.Notef("%s; %s", text, ucxLine(missing(b, a), res.finding))
	r.Record(fmt.Sprintf("unreleased_%d", size), missing(b, a))
	r.Record(fmt.Sprintf("before_%d", size), b)
	r.Record(fmt.Sprintf("after_%d", size), a)
}
