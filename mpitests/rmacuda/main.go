// Command rmacuda proves that put and get move the right bytes between the
// memory of two GPU processes: for every pair of allocators, in six
// arrangements of contexts, both ways, with a guard around each buffer. It is
// run under mpirun with two ranks, or more in pairs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/gpurma/gpurma/mpitests/internal/harness"
)

type flags struct {
	Sizes []harness.Size `default:"8,4MiB,16MiB" help:"Sizes of the transfers."`
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var f flags
	var st stage
	return harness.Run(harness.Program{
		Name:  "rmacuda",
		About: "Proves that put and get move the right bytes between the memory of two GPU processes.",
		Flags: &f,
		Cases: func(*harness.Settings) ([]harness.Case, error) { return cases(&st, f.Sizes) },
		Teardown: func(context.Context, *harness.Rank) error {
			return st.clear()
		},
	}, args, stdout, stderr)
}

// maxSize is what a rank can check in host memory.
const maxSize harness.Size = 4 << 30

func cases(st *stage, sizes []harness.Size) ([]harness.Case, error) {
	var list []uint64
	for _, s := range sizes {
		switch {
		case s == 0 || s > maxSize:
			return nil, fmt.Errorf("--sizes %s: want 1 byte to %s", s, maxSize)
		case slices.Contains(list, uint64(s)):
			return nil, fmt.Errorf("--sizes: %s stands there twice", s)
		}
		list = append(list, uint64(s))
	}
	var all []harness.Case
	for _, c := range allCases(list) {
		all = append(all, harness.Case{Name: c.Name(), Title: c.UCXLine(), Run: func(ctx context.Context, r *harness.Rank) error {
			return c.run(ctx, r, st)
		}})
	}
	return all, nil
}

// run is the case on this rank. After a failure nothing of the scene is relied
// on any more.
func (c testCase) run(ctx context.Context, r *harness.Rank, st *stage) error {
	sc, err := st.set(ctx, r, c)
	if err != nil {
		return err
	}
	t := &transfer{testCase: c, scene: sc, rank: r}
	if err := t.run(ctx); err != nil {
		return errors.Join(err, st.clear())
	}
	return nil
}
