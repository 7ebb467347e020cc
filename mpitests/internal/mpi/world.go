package mpi

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	gompi "github.com/sbromberger/gompi"
)

// MPI must be called on the thread that initialised it, and some launchers
// want that to be the first one: main's goroutine stays where it started.
func init() { runtime.LockOSThread() }

// frame is the byte before each message's payload: gompi cannot send nothing.
const frame = 1

// World is MPI_COMM_WORLD of the running job.
type World struct {
	comm       *gompi.Communicator
	rank, size int
	calls      chan func()
}

// Run initialises MPI, runs program on a goroutine of its own while the calling
// goroutine, which must be main's, makes its MPI calls, finalises and returns
// what program returned. All ranks must return together; a rank that cannot
// wait for the others calls [World.Abort].
func Run(program func(*World) int) int {
	setDefaults()
	gompi.Start(true)
	w := &World{comm: gompi.NewCommunicator(nil), calls: make(chan func())}
	w.rank, w.size = w.comm.Rank(), w.comm.Size()
	code := make(chan int)
	go func() { code <- program(w) }()
	for {
		select {
		case call := <-w.calls:
			call()
		case c := <-code:
			gompi.Stop()
			return c
		}
	}
}

// setDefaults keeps MPI off the GPU, and off the cores while it waits, where
// neither the launcher nor the user said how it should be. Components that a
// build does not have may be excluded all the same; usnic and ofi, fabrics that
// a few messages do not need, take a second to start and stop.
func setDefaults() {
	for _, kv := range [][2]string{
		{"OMPI_MCA_pml", "ob1"},
		{"OMPI_MCA_btl", "^smcuda,openib,uct,usnic,ofi"},
		{"OMPI_MCA_osc", "^ucx"},
		{"OMPI_MCA_coll", "^hcoll,ml,ucc"},
		{"OMPI_MCA_mpi_yield_when_idle", "1"},
	} {
		if _, set := os.LookupEnv(kv[0]); !set {
			// Setenv reaches C's environment, which MPI reads. It cannot fail
			// for these names.
			_ = os.Setenv(kv[0], kv[1])
		}
	}
}

// Rank is this process's number in the job, from 0.
func (w *World) Rank() int { return w.rank }

// Size is how many processes the job has.
func (w *World) Size() int { return w.size }

// do runs call on the owner of MPI and waits for it.
func (w *World) do(call func()) {
	done := make(chan struct{})
	w.calls <- func() { call(); close(done) }
	<-done
}

// Send sends b, which may be empty, to a rank. It may return before the message
// has arrived, and long messages wait for their receiver.
func (w *World) Send(to, tag int, b []byte) {
	message := append([]byte{frame}, b...)
	w.do(func() { w.comm.SendBytes(message, to, tag) })
}

// Recv returns the next message with the tag from a rank. When ctx ends first it
// returns its error, and the message is still to come.
func (w *World) Recv(ctx context.Context, from, tag int) ([]byte, error) {
	const shortest, longest = 5 * time.Microsecond, 500 * time.Microsecond
	pause := shortest
	for {
		var message []byte
		w.do(func() {
			if arrived, _ := w.comm.Iprobe(from, tag); arrived {
				message, _ = w.comm.RecvBytes(from, tag)
			}
		})
		if message != nil {
			return message[frame:], nil
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("receive from rank %d: %w", from, err)
		}
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
}

// Exchange sends b to a rank and returns the message that the other sends by its
// own Exchange. The lower rank sends first, so that two long messages do not
// wait for each other.
func (w *World) Exchange(ctx context.Context, with, tag int, b []byte) ([]byte, error) {
	if w.rank < with {
		w.Send(with, tag, b)
		return w.Recv(ctx, with, tag)
	}
	got, err := w.Recv(ctx, with, tag)
	w.Send(with, tag, b)
	return got, err
}

// Abort ends the whole job at once; every process's status is code, as far as
// the launcher hands it on. It does not return.
func (w *World) Abort(code int) {
	// The owner may be inside a send that never ends: this is the one call
	// made beside it, which MPI_THREAD_MULTIPLE allows.
	time.AfterFunc(5*time.Second, func() { os.Exit(code) })
	w.comm.Abort(code)
	os.Exit(code)
}
