package ucxlite

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/ucxlite/internal/dma"
)

// WorkerOptions are what a worker may be told; there is nothing yet.
type WorkerOptions struct{}

// Worker is a set of endpoints that progress together, with streams of its own:
// one for device copies in each CUDA context it copies in, on which they are
// ordered, and one for copies from and to host memory.
type Worker struct {
	c *Context

	mu        sync.Mutex
	closed    bool
	endpoints map[*Endpoint]struct{}
	lists     map[*RemoteMemList]struct{}
	engines   map[cuda.Context]*dma.Engine
	blocking  map[cuda.Context]*dma.Blocking
	callbacks []*Request // complete, callback not run yet
	completed int        // requests completed since the last Progress
}

// NewWorker makes a worker. It calls no driver.
func (c *Context) NewWorker(WorkerOptions) (*Worker, error) {
	w := &Worker{
		c: c, endpoints: map[*Endpoint]struct{}{}, lists: map[*RemoteMemList]struct{}{},
		engines: map[cuda.Context]*dma.Engine{}, blocking: map[cuda.Context]*dma.Blocking{},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.alive(); err != nil {
		return nil, fmt.Errorf("new worker: %w", err)
	}
	c.workers[w] = struct{}{}
	return w, nil
}

// Address is what a peer needs to make an endpoint to this worker.
func (w *Worker) Address() WorkerAddress {
	a := AddressInfo{Identity: w.c.id, Socket: w.c.listener.Path, Token: w.c.token}
	return a.pack()
}

// Context is the worker's parent.
func (w *Worker) Context() *Context { return w.c }

// Progress completes operations that are done, runs their callbacks, and
// returns how many operations were completed since it was last called. It does
// not block on a device. Peers never need it.
func (w *Worker) Progress() int {
	for _, e := range w.copyEngines() {
		e.Poll()
	}
	w.runCallbacks()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.completed
	w.completed = 0
	return n
}

// Flush waits for every operation that was posted on the worker before it, and
// returns the first error among theirs, or ctx's. When it has returned nil,
// puts are visible at their targets.
func (w *Worker) Flush(ctx context.Context) error {
	var first error
	for _, e := range w.snapshot() {
		if err := e.Flush(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Fence orders, on each endpoint of the worker, operations posted before it
// before those posted after it. It does not block.
func (w *Worker) Fence() {
	for _, e := range w.snapshot() {
		e.Fence()
	}
}

// Close gives the worker's streams back. While endpoints or memory lists are
// alive it changes nothing and returns ErrBusy naming them.
func (w *Worker) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	if len(w.endpoints) > 0 || len(w.lists) > 0 {
		err := fmt.Errorf("close worker: %w: %d endpoints, %d memory lists", ErrBusy, len(w.endpoints), len(w.lists))
		w.mu.Unlock()
		return err
	}
	w.closed = true
	engines, blocking := w.engines, w.blocking
	w.mu.Unlock()

	w.runCallbacks()
	var errs []error
	for _, e := range engines {
		errs = append(errs, e.Close())
	}
	for _, b := range blocking {
		errs = append(errs, b.Close())
	}
	w.c.mu.Lock()
	delete(w.c.workers, w)
	w.c.mu.Unlock()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close worker: %w", translate(err))
	}
	return nil
}

func (w *Worker) snapshot() []*Endpoint {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*Endpoint, 0, len(w.endpoints))
	for e := range w.endpoints {
		all = append(all, e)
	}
	return all
}

func (w *Worker) copyEngines() []*dma.Engine {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*dma.Engine, 0, len(w.engines))
	for _, e := range w.engines {
		all = append(all, e)
	}
	return all
}

// engine is the worker's stream for device copies in ctx, made at first use.
func (w *Worker) engine(ctx cuda.Context) (*dma.Engine, error) {
	return firstUse(w, w.engines, ctx, dma.New)
}

// hostEngine is the worker's stream for copies from and to host memory in ctx.
func (w *Worker) hostEngine(ctx cuda.Context) (*dma.Blocking, error) {
	return firstUse(w, w.blocking, ctx, dma.NewBlocking)
}

// firstUse makes at first use, without a lock across the driver call: the loser
// of a race closes what it made. What was lost with its context is made anew: a
// context of the same name may be a new one.
func firstUse[T interface {
	comparable
	Lost() bool
	Close() error
}](w *Worker, all map[cuda.Context]T, ctx cuda.Context, make func(cuda.Driver, cuda.Context) (T, error)) (T, error) {
	var none T
	w.mu.Lock()
	have := all[ctx]
	w.mu.Unlock()
	if have != none && !have.Lost() {
		return have, nil
	}
	made, err := make(w.c.drv, ctx)
	if err != nil {
		return none, err
	}
	w.mu.Lock()
	now := all[ctx]
	if now == have {
		all[ctx] = made
	}
	w.mu.Unlock()
	switch {
	case now != have:
		return now, made.Close()
	case have != none:
		return made, have.Close()
	}
	return made, nil
}

// runCallbacks runs what is due, on this goroutine, with no lock held.
func (w *Worker) runCallbacks() {
	w.mu.Lock()
	due := w.callbacks
	w.callbacks = nil
	w.mu.Unlock()
	for _, r := range due {
		r.runCallback()
	}
}
