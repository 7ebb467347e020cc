// Package dma runs asynchronous copies on one stream and learns, by polling
// events, when each is done.
package dma

import (
	"errors"
	"sync"

	"github.com/gpurma/gpurma/cuda"
)

// Engine is one non-blocking stream of a context with the copies that are in
// flight on it, in order. No lock is held while a copy's done function runs.
type Engine struct {
	drv    cuda.Driver
	ctx    cuda.Context
	stream cuda.Stream

	mu     sync.Mutex // held across submit and query: both are short and order the queue
	queue  []flight
	free   []cuda.Event
	err    error // the stream is lost: what it answered
	closed bool
}

type flight struct {
	event cuda.Event
	done  func(error)
}

// ErrClosed is returned by Submit after Close.
var ErrClosed = errors.New("copy engine closed")

// New makes the stream.
func New(drv cuda.Driver, ctx cuda.Context) (*Engine, error) {
	stream, err := drv.StreamCreate(ctx, cuda.StreamNonBlocking)
	if err != nil {
		return nil, err
	}
	return &Engine{drv: drv, ctx: ctx, stream: stream}, nil
}

// Submit calls copies, which puts work on the stream, and arranges that done
// is called once when that work is complete, by whichever goroutine polls.
// Where copies fails, done is not called. Work that copies put on the stream
// before it failed is waited for, so that an error means nobody copies.
func (e *Engine) Submit(copies func(ctx cuda.Context, s cuda.Stream) error, done func(error)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	if e.err != nil {
		return e.err
	}
	event, err := e.event()
	if err != nil {
		return err
	}
	if err = copies(e.ctx, e.stream); err == nil {
		err = e.drv.EventRecord(e.ctx, event, e.stream)
	}
	if err != nil {
		e.free = append(e.free, event)
		return errors.Join(err, e.settle())
	}
	e.queue = append(e.queue, flight{event, done})
	return nil
}

// settle waits for the stream after a submit that failed half way.
func (e *Engine) settle() error {
	if err := e.drv.StreamSynchronize(e.ctx, e.stream); err != nil && !contextGone(err) {
		return err
	}
	return nil
}

func (e *Engine) event() (cuda.Event, error) {
	if n := len(e.free); n > 0 {
		event := e.free[n-1]
		e.free = e.free[:n-1]
		return event, nil
	}
	return e.drv.EventCreate(e.ctx, cuda.EventDisableTiming)
}

// Poll completes what is done and returns how many copies that was. A stream
// that answers an error fails everything that is in flight on it: its context
// is lost.
func (e *Engine) Poll() int {
	e.mu.Lock()
	var ready []flight
	for len(e.queue) > 0 {
		head := e.queue[0]
		err := e.drv.EventQuery(e.ctx, head.event)
		if errors.Is(err, cuda.ErrorNotReady) {
			break
		}
		if err != nil {
			e.err = err
			ready = append(ready, e.queue...)
			for _, f := range e.queue {
				e.free = append(e.free, f.event)
			}
			e.queue = nil
			break
		}
		e.free = append(e.free, head.event)
		ready = append(ready, head)
		e.queue[0] = flight{}
		e.queue = e.queue[1:]
	}
	err := e.err
	e.mu.Unlock()
	for _, f := range ready {
		f.done(err)
	}
	return len(ready)
}

// Lost tells whether the stream answered an error: it is of no more use.
func (e *Engine) Lost() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err != nil
}

// InFlight is the number of copies not yet seen complete.
func (e *Engine) InFlight() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.queue)
}

// Close gives stream and events back. The caller has seen everything complete.
// A context that is already gone took them with it; that is no error.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	var errs []error
	for _, event := range e.free {
		errs = append(errs, e.drv.EventDestroy(e.ctx, event))
	}
	errs = append(errs, e.drv.StreamDestroy(e.ctx, e.stream))
	e.free = nil
	for i, err := range errs {
		if contextGone(err) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// contextGone tells whether err says that the context, or the whole driver,
// ended before us.
func contextGone(err error) bool {
	for _, r := range []cuda.Result{cuda.ErrorContextIsDestroyed, cuda.ErrorInvalidContext, cuda.ErrorDeinitialized, cuda.ErrorInvalidHandle} {
		if errors.Is(err, r) {
			return true
		}
	}
	return false
}
