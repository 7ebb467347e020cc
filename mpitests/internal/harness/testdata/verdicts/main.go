// Command verdicts has a case for each way in which a case can end. The tests of
// the harness and of the runner build it.
package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gpurma/gpurma/mpitests/internal/harness"
)

// only returns a case that does something on one rank of the pair.
func only(rank int, do func(r *harness.Rank) error) func(context.Context, *harness.Rank) error {
	return func(_ context.Context, r *harness.Rank) error {
		if r.Index() != rank {
			return nil
		}
		return do(r)
	}
}

// never waits for a message that does not come.
func never(_ context.Context, r *harness.Rank) error {
	_, err := r.Recv()
	return err
}

func main() {
	cases := []harness.Case{
		{Name: "first", Run: func(_ context.Context, r *harness.Rank) error {
			r.Record("answer", 42)
			return r.Barrier()
		}},
		{Name: "titled", Title: "TEST[7]", Run: func(_ context.Context, r *harness.Rank) error {
			r.Remarkf("rank %d was here", r.Index())
			return nil
		}},
		{Name: "skip", Run: func(context.Context, *harness.Rank) error {
			return harness.Skipf("found 0 unicorns, need 1")
		}},
		{Name: "inconclusive", Run: func(context.Context, *harness.Rank) error {
			return harness.Inconclusivef("the control showed nothing")
		}},
		{Name: "disagree", Run: only(1, func(*harness.Rank) error { return harness.Skipf("found no room, need some") })},
		{Name: "fail-0", Run: only(0, func(*harness.Rank) error { return errors.New("7 bytes, want 8") })},
		{Name: "fail-1", Run: only(1, func(r *harness.Rank) error {
			r.Notef("seed seen here: %d", r.Seed)
			return errors.New("9 bytes, want 8")
		})},
		{Name: "fail-while-the-other-waits", Run: func(ctx context.Context, r *harness.Rank) error {
			if r.Index() == 0 {
				return errors.New("gave up early")
			}
			return never(ctx, r)
		}},
		{Name: "panic", Run: only(1, func(*harness.Rank) error { panic("a case's mistake") })},
		{Name: "log", Run: only(0, func(r *harness.Rank) error { r.Log.Warn("something odd"); return nil })},
		{Name: "log-wanted", Logs: true, Run: only(0, func(r *harness.Rank) error { r.Log.Warn("something odd"); return nil })},
		{Name: "late", Run: never},
		{Name: "hang", Run: func(context.Context, *harness.Rank) error { select {} }},
		{Name: "crash-killed", Run: only(1, func(*harness.Rank) error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) })},
		{Name: "crash-fault", Run: only(0, func(*harness.Rank) error {
			go func() { panic("in a goroutine of its own") }()
			select {}
		})},
		{Name: "crash-exit", Run: only(1, func(*harness.Rank) error { os.Exit(9); return nil })},
		{Name: "last", Run: func(_ context.Context, r *harness.Rank) error { return r.Barrier() }},
	}
	os.Exit(harness.Run(harness.Program{
		Name:  filepath.Base(os.Args[0]),
		About: "Ends in every way that a case can end.",
		Cases: func(*harness.Settings) ([]harness.Case, error) { return cases, nil },
	}, os.Args[1:], os.Stdout, os.Stderr))
}
