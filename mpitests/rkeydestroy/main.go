// Command rkeydestroy shows that a destroyed key gives the owner's memory back.
//
// It runs on pairs of ranks under mpirun. One rank of a pair notes the free
// memory of its device, allocates, packs a key and sends it over MPI. The other
// unpacks the key, uses it in the way that the case is named after, and destroys
// it. The first frees its memory and looks at what is free again. Then they
// change places. Cases are named allocator/use/policy.
//
// It descends from UCX's test_ucp_rkey_destroy and prints that program's line
// too: "Unreleased memory: N bytes: PASS".
package main

import (
	"io"
	"os"

	"github.com/gpurma/gpurma/mpitests/internal/harness"
)

// flags are what this program has beside the harness's.
type flags struct {
	Size harness.Size `default:"1GiB" help:"Size of the owner's allocation; half of it is the second size."`
}

func main() {
	if os.Getenv(childVariable) != "" {
		os.Exit(childMain(os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	s := &session{}
	return harness.Run(harness.Program{
		Name:     "rkeydestroy",
		About:    "Shows that a destroyed remote key gives the owner's memory back. Run it on two ranks: mpirun -mca plm isolated -np 2 rkeydestroy",
		Flags:    &s.flags,
		Cases:    s.cases,
		InTurn:   true, // all pairs look at the free memory of the same devices
		Readings: true,
		Setup:    s.setUp,
		Teardown: s.tearDown,
	}, args, stdout, stderr)
}
