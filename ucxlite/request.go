package ucxlite

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite/internal/dma"
)

// opKind is put or get.
type opKind uint8

const (
	opPut opKind = iota
	opGet
)

func (o opKind) String() string {
	if o == opGet {
		return "get"
	}
	return "put"
}

// Request is an operation that was posted. It completes, once, when no engine,
// thread or peer can touch its buffers any more.
type Request struct {
	e        *Endpoint
	op       opKind
	buf      Buffer
	raddr    uint64
	key      *Rkey
	callback func(*Request, error)
	called   atomic.Bool

	pin    cudaipc.Mapping            // held while an ipc copy runs, beyond the key
	engine atomic.Pointer[dma.Engine] // the stream the copy is ordered on; nil: none
	done   chan struct{}
	err    error // valid once done is closed
}

func (r *Request) String() string {
	return fmt.Sprintf("%s of %s at %#x of %s", r.op, r.buf, r.raddr, r.e.peer)
}

// Test tells whether the operation is complete, and how it ended. It does not
// block.
func (r *Request) Test() (bool, error) {
	select {
	case <-r.done:
		return true, r.err
	default:
	}
	if e := r.engine.Load(); e != nil {
		e.Poll()
	}
	select {
	case <-r.done:
		return true, r.err
	default:
		return false, nil
	}
}

// Wait waits for the operation and returns how it ended. If ctx ends first,
// Wait returns its error; the operation goes on and its buffer stays in use.
func (r *Request) Wait(ctx context.Context) error {
	err := r.await(ctx)
	if done, _ := r.Test(); done {
		r.runCallback()
	}
	return err
}

// await is Wait without the callback.
func (r *Request) await(ctx context.Context) error {
	const spins = 100
	const longest = time.Millisecond
	pause := 20 * time.Microsecond
	for i := 0; ; i++ {
		if done, err := r.Test(); done {
			return err
		}
		if i < spins && r.engine.Load() != nil {
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-r.done:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for %s: %w", r, ctx.Err())
		}
		timer.Stop()
		pause = min(2*pause, longest)
	}
}

// complete ends the request. The copy is over: the pin goes first, so that a
// caller who sees the request complete sees the mapping closed if it was the
// last to hold it.
func (r *Request) complete(err error) {
	if released := r.pin.Release(r.key.policy); released != nil && err == nil {
		err = fmt.Errorf("release mapping: %w", released)
	}
	if err != nil {
		r.err = fmt.Errorf("%s: %w", r, translate(err))
	}
	e, w := r.e, r.e.w
	e.mu.Lock()
	delete(e.outstanding, r)
	e.mu.Unlock()
	w.mu.Lock()
	w.completed++
	if r.callback != nil {
		w.callbacks = append(w.callbacks, r)
	}
	close(r.done)
	w.mu.Unlock()
}

// runCallback runs the callback of a complete request, once, whoever comes
// first.
func (r *Request) runCallback() {
	if r.callback != nil && r.called.CompareAndSwap(false, true) {
		r.callback(r, r.err)
	}
}
