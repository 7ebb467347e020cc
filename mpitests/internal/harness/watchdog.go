package harness

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"

	"github.com/gpurma/gpurma/mpitests/internal/mpi"
)

// grace is how long a case may take to end after its time is over and its
// context has been cancelled, and the other rank to print its goroutines.
const grace = 5 * time.Second

// watchdog ends the job when a case does not end.
type watchdog struct {
	world  *mpi.World
	stderr io.Writer
	grace  time.Duration
}

// watch prints this rank's goroutines when what it watches takes longer than
// limit, then calls expired, if not nil, and aborts the job if the end has still
// not come a while later. The returned function calls it off.
func (d *watchdog) watch(name string, limit time.Duration, expired func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-done:
			return
		case <-timer.C:
		}
		d.dump(fmt.Sprintf("%s has not ended within %s", name, limit))
		if expired != nil {
			expired()
		}
		timer.Reset(d.grace)
		select {
		case <-done:
		case <-timer.C:
			fmt.Fprintf(d.stderr, "# rank %d: %s hangs: aborting the job\n", d.world.Rank(), name)
			d.world.Abort(exitHung)
		}
	}()
	var once sync.Once
	return func() { once.Do(func() { close(done) }) }
}

func (d *watchdog) dump(why string) { dump(d.stderr, d.world.Rank(), why) }

// dump prints the stacks of all goroutines.
func dump(w io.Writer, rank int, why string) {
	// One write, so that the ranks' dumps do not run into each other.
	var all, stacks bytes.Buffer
	fmt.Fprintf(&all, "# rank %d (pid %d): %s; goroutines:\n", rank, os.Getpid(), why)
	// Level 2 prints them as a crash does; a buffer takes everything.
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2)
	for line := range bytes.Lines(stacks.Bytes()) {
		fmt.Fprintf(&all, "%d| %s", rank, line)
	}
	fmt.Fprintf(&all, "# rank %d: end of goroutines\n", rank)
	_, _ = w.Write(all.Bytes()) // it is the last resort itself
}

// dumpOnSignal prints the goroutines at SIGUSR1, which mpirun hands on to its
// ranks, and at SIGTERM, by which it ends the other ranks when one has died:
// that is then the end of this one too. quiet says that the job is over anyway.
func dumpOnSignal(w io.Writer, rank int, quiet func() bool) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1, syscall.SIGTERM)
	go func() {
		for s := range asked {
			if s == syscall.SIGUSR1 {
				dump(w, rank, "SIGUSR1")
				continue
			}
			if !quiet() {
				dump(w, rank, "SIGTERM: the job is being ended")
			}
			os.Exit(exitTerminated)
		}
	}()
}
