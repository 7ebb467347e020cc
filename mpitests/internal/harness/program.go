package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/gpurma/gpurma/mpitests/internal/mpi"
)

// Exit statuses of the programs.
const (
	exitPassed     = 0
	exitFailed     = 1
	exitUsage      = 2
	exitNothingRan = 77
	// exitHung is what a rank aborts the job with when a case did not end:
	// EX_TEMPFAIL, and not 124, by which timeout(1) means itself.
	exitHung = 75
	// exitTerminated is a rank's that was ended from outside, as a shell says
	// it: 128 and the signal's number.
	exitTerminated = 128 + 15
)

// Program is a test program.
type Program struct {
	Name  string // of the binary
	About string // one sentence, for --help

	// Flags points to a struct of further kong flags, or is nil. It is filled
	// before Cases is called.
	Flags any
	// Cases lists all cases, in the order in which they run. It needs neither
	// MPI nor a driver: --list calls it anywhere.
	Cases func(*Settings) ([]Case, error)
	// InTurn makes the pairs run each case one after another instead of all at
	// once: for cases that measure a device which pairs share.
	InTurn bool
	// Readings prints what the ranks note also below verdicts that passed.
	Readings bool
	// Setup runs on every rank before the first case, as a case does: both
	// ranks of a pair are there to talk to. Nil for nothing.
	Setup func(ctx context.Context, r *Rank) error
	// Teardown runs on every rank after the last case, also where Setup failed.
	Teardown func(ctx context.Context, r *Rank) error
}

// Case is one test.
type Case struct {
	// Name is unique and what --run matches; parts are separated by slashes.
	Name string
	// Title is what the verdict is printed after, where the program keeps the
	// form of another one's lines; "" prints the verdict, then Name.
	Title string
	// Logs says that the library may log warnings in this case.
	Logs bool
	// Run is called on both ranks of each pair. ctx ends at --timeout.
	Run func(ctx context.Context, r *Rank) error
}

// Run is the program: args without its name, and where to print. The result is
// the process's exit status. It must be called on main's goroutine.
func Run(p Program, args []string, stdout, stderr io.Writer) int {
	settings, help, err := parse(p, args)
	if help != "" {
		return onFirst(func() { fmt.Fprintln(stdout, strings.TrimRight(help, "\n")) })
	}
	var cases []Case
	if err == nil {
		cases, err = selectCases(p, settings)
	}
	if err == nil && settings.List {
		return onFirst(func() {
			for _, c := range cases {
				fmt.Fprintln(stdout, c.Name)
			}
		})
	}
	if launched, _ := mpi.LaunchedSize(); launched == 0 && err != nil {
		return usage(p, stderr, err)
	}
	return mpi.Run(func(w *mpi.World) int {
		if err == nil {
			err = checkLayout(p, w)
		}
		if err != nil {
			// All ranks know it; the first says so, and none leaves before it
			// has: the launcher kills the others at the first failure.
			if w.Rank() == mpi.Root {
				usage(p, stderr, err)
			}
			_ = w.Barrier(context.Background()) // its context does not end
			return exitUsage
		}
		j := &job{program: p, settings: settings, args: args, world: w, stdout: stdout, stderr: stderr}
		return j.run(cases)
	})
}

func usage(p Program, stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
	return exitUsage
}

// onFirst runs print on one rank only, without MPI.
func onFirst(print func()) int {
	for _, name := range []string{"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"} {
		if rank := os.Getenv(name); rank != "" && rank != "0" {
			return exitPassed
		}
	}
	print()
	return exitPassed
}

// checkLayout returns an error where the job is not made of pairs.
func checkLayout(p Program, w *mpi.World) error {
	if err := w.CheckLaunch(); err != nil {
		return err
	}
	if n := w.Size(); n == 0 || n%2 != 0 {
		return fmt.Errorf("found %d rank(s), need an even number: mpirun -mca plm isolated -np 2 %s", n, p.Name)
	}
	return nil
}

// selectCases returns the cases that the settings ask for.
func selectCases(p Program, s *Settings) ([]Case, error) {
	all, err := p.Cases(s)
	if err != nil {
		return nil, err
	}
	if s.After != "" {
		for i, c := range all {
			if c.Name == s.After {
				all = all[i+1:]
				s.After = ""
				break
			}
		}
		if s.After != "" {
			return nil, fmt.Errorf("--after: no case %q", s.After)
		}
	}
	var chosen []Case
	run, err := regexp.Compile(s.Run)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	for _, c := range all {
		if run.MatchString(c.Name) {
			chosen = append(chosen, c)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("no case matches --run " + s.Run)
	}
	return chosen, nil
}
