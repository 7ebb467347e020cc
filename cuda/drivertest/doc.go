// Package drivertest is the conformance suite of [cuda.Driver]: the same tests,
// with the same expectations, for every driver.
//
// [Run] runs it. Tests named after a row of the conformance table (F1, F2, …)
// prove that row; those named Plain… prove the plain behaviour of the calls,
// results and refused arguments; those named Observe… assert nothing that is
// not known and log what the driver did, so that a run on a GPU can settle it.
// A refusal whose code NVIDIA's documentation does not name is logged in the
// same way, as a line that begins with "observed:".
//
// # The peer
//
// Facts about sharing need two processes. The suite starts the second one, the
// peer, from its own test binary: the binary's TestMain calls [Main] (or
// [PeerMain] first thing), which plays the peer where an environment variable
// says so. The peer answers requests, one at a time, over two pipes; nothing
// waits for time to pass. It dies with the test process: by the kernel's parent
// death signal, and by the end of its request pipe.
//
// # Memory
//
// Free memory is device-wide, so the suite needs the device for itself. Every
// comparison of it starts from a baseline taken when both processes have their
// context and have used each kind of call once.
package drivertest
