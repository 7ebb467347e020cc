package drivertest

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpurma/gpurma/cuda"
)

// peerVariable marks a process as the peer; requestFD and answerFD are the
// descriptors of its pipes.
const (
	peerVariable = "GPURMA_DRIVERTEST_PEER"
	requestFD    = 3
	answerFD     = 4
)

// Main is the TestMain of a package that calls [Run]: it plays the peer in a
// peer process and runs the tests in any other. It does not return.
func Main(m *testing.M, open func() (cuda.Driver, error)) {
	PeerMain(open)
	os.Exit(m.Run())
}

// PeerMain plays the peer and ends the process, in a process that [Run] started
// as a peer; in any other it returns at once. A TestMain with work of its own
// calls it first.
func PeerMain(open func() (cuda.Driver, error)) {
	if os.Getenv(peerVariable) == "" {
		return
	}
	requests := os.NewFile(requestFD, "requests")
	answers := os.NewFile(answerFD, "answers")
	if err := serve(open, requests, answers); err != nil {
		fmt.Fprintln(os.Stderr, "drivertest peer:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
