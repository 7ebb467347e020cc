// Package harness is what every MPI test program of this module is built on.
//
// A [Program] is a list of named [Case]s. [Run] reads the command line, starts
// MPI, opens a driver on every rank, prints who runs where, runs each case on
// all pairs of ranks, and prints a verdict a case and a count line. Rank 2k and
// rank 2k+1 are a pair; within one, [Rank.Index] is 0 or 1.
//
// A case is one function that both ranks of a pair run. It talks to the other
// rank by [Rank.Send], [Rank.Recv], [Rank.Exchange] and [Rank.Barrier], and ends
// with an error: nil passes, [Skipf] and [Inconclusivef] make the errors that
// say so, every other one fails. A rank that ends early never leaves the other
// one waiting: the other's next receive returns an error that tells how the
// first ended. What the library logs at warning level or above fails the case
// that it was logged in, unless the case declares [Case.Logs].
//
// Every rank's failure counts, ranks that disagree fail with each rank's line,
// and all ranks exit with the same status: 0 passed, 1 failed or inconclusive,
// 2 usage, 77 nothing could run.
package harness
