// Package mpi is all of MPI that the test programs use: byte messages between
// ranks, and the few collectives that are made of them.
//
// It stands on github.com/sbromberger/gompi, the only package of this module
// that does, and steps around what is wrong there:
//
//   - BcastBytes moves four times the slice and overruns it, so no MPI
//     collective is used: gathers, broadcasts and barriers are messages.
//   - Empty slices panic and zero-length receives too, so every message
//     starts with one byte of its own.
//   - There is no receive that can be given up, and a blocking one spins on a
//     core that the rank's own goroutines need. Receives look (MPI_Iprobe) and
//     sleep in between, and end with their context.
//   - MaxTag is a pointer read as a number; it is not used.
//   - Return codes are dropped. MPI's default is that an error aborts the job,
//     and this package leaves it so.
//   - Start(false) is plain MPI_Init, which promises no threads at all;
//     Start(true) demands MPI_THREAD_MULTIPLE and ends the process with a
//     message where it is not to be had.
//
// One goroutine, locked to the process's first thread, makes all calls: [Run]
// turns the main goroutine into it and runs the program on another one. The
// methods of [World] may be called from any goroutine; they hand the call over.
package mpi
