package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/mpi"
)

// tagPair is the tag of the messages within a pair.
const tagPair = 1

// Rank is one process of a pair, for the time of one case.
type Rank struct {
	*Settings
	Driver cuda.Driver
	// Device is this rank's device; its primary context is Primary, retained
	// for the whole run.
	Device  cuda.Device
	Primary cuda.Context
	// Log is for the library: what it says fails the case.
	Log *slog.Logger

	ctx   context.Context
	world *mpi.World
	live  io.Writer // notes as they come; nil for none

	mu       sync.Mutex
	notes    []string
	readings map[string]any
	remark   string
	ended    error // why the other rank sends nothing any more

	// peerExpired is called when the other rank has run out of time while this
	// one was still in the case: what this one does may be the reason.
	peerExpired func()
}

// Index is this rank's number within the pair, 0 or 1.
func (r *Rank) Index() int { return r.world.Rank() % 2 }

// World is this rank's number in the job.
func (r *Rank) World() int { return r.world.Rank() }

func (r *Rank) peer() int { return r.world.Rank() ^ 1 }

// Notef keeps a line for the report: readings, choices. It is printed below the
// verdict where the case did not pass, and with --verbose.
func (r *Rank) Notef(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, line)
	if r.live != nil {
		fmt.Fprintf(r.live, "#   rank %d: %s\n", r.world.Rank(), line)
	}
}

// Remarkf sets what stands on the verdict's own line behind the case's name.
func (r *Rank) Remarkf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remark = fmt.Sprintf(format, args...)
}

// Record keeps a value for the JSON report.
func (r *Rank) Record(name string, value any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readings[name] = value
}

// The first byte of a message within a pair.
const (
	kindData  = 'd'
	kindEnded = 'e'
)

// endedLimit bounds the reason in the message by which a rank says that it has
// ended, so that sending it waits for nobody.
const endedLimit = 1024

// Send sends b, which may be empty, to the other rank of the pair.
func (r *Rank) Send(b []byte) error {
	if r.ended != nil {
		return r.ended
	}
	r.world.Send(r.peer(), tagPair, append([]byte{kindData}, b...))
	return nil
}

// Recv returns the other rank's next message. It fails when the other rank's
// case has ended, or this one's time is over.
func (r *Rank) Recv() ([]byte, error) {
	if r.ended != nil {
		return nil, r.ended
	}
	message, err := r.world.Recv(r.ctx, r.peer(), tagPair)
	if err != nil {
		return nil, err
	}
	o, err := r.read(message)
	if o.Expired {
		r.peerExpired()
	}
	if err != nil {
		return nil, err
	}
	return message[1:], nil
}

// Exchange sends b to the other rank and returns what that one exchanges for it.
func (r *Rank) Exchange(b []byte) ([]byte, error) {
	if r.Index() == 0 {
		if err := r.Send(b); err != nil {
			return nil, err
		}
		return r.Recv()
	}
	got, err := r.Recv()
	if err != nil {
		return nil, err
	}
	return got, r.Send(b)
}

// Barrier returns when both ranks of the pair have called it.
func (r *Rank) Barrier() error {
	_, err := r.Exchange(nil)
	return err
}

// read returns the outcome with which the other rank has ended, in r.ended too,
// where message is not data.
func (r *Rank) read(message []byte) (o outcome, err error) {
	if message[0] == kindData {
		return o, nil
	}
	if err := json.Unmarshal(message[1:], &o); err != nil {
		o = outcome{Verdict: Fail, Reason: err.Error()}
	}
	text := fmt.Sprintf("rank %d ended the case before: %s", r.peer(), o.Verdict)
	if o.Reason != "" {
		text += ": " + o.Reason
	}
	switch o.Verdict {
	case Skip, Inconclusive:
		r.ended = &verdictError{o.Verdict, text}
	default:
		r.ended = fmt.Errorf("%s", text)
	}
	return o, r.ended
}

// finish tells the other rank how this one ended, and waits until it has ended
// too: then nothing is under way between them.
func (r *Rank) finish(o outcome) {
	o.Notes, o.Readings = nil, nil
	if len(o.Reason) > endedLimit {
		o.Reason = o.Reason[:endedLimit] + " ..."
	}
	message, err := json.Marshal(o)
	if err != nil {
		message = nil // read says so
	}
	r.world.Send(r.peer(), tagPair, append([]byte{kindEnded}, message...))
	for r.ended == nil {
		message, err := r.world.Recv(context.Background(), r.peer(), tagPair)
		if err == nil {
			_, _ = r.read(message) // leaves r.ended
		}
	}
}
