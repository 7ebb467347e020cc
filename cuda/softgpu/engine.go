package softgpu

import (
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gpurma/gpurma/cuda"
)

// op is one piece of work of a stream.
type op struct {
	after  []*op // work of other streams that goes first
	run    func() cuda.Result
	result cuda.Result // once done
	done   chan struct{}
}

func (o *op) wait() cuda.Result {
	<-o.done
	return o.result
}

func (o *op) isDone() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// stream orders work. Its executor is a goroutine that lives while there is
// some.
type stream struct {
	id       cuda.Stream
	ctx      *context
	blocking bool // ordered with the context's NULL stream

	mu        sync.Mutex // inside context.mu
	queue     []*op
	executing bool
	last      *op // the newest; nil before the first
}

// pending returns the newest op if it is not done.
func (s *stream) pending() []*op {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.isDone() {
		return nil
	}
	return []*op{s.last}
}

func (s *stream) push(o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, o)
	s.last = o
	if !s.executing {
		s.executing = true
		go s.execute()
	}
}

func (s *stream) execute() {
	// Storage that somebody else's files used up shows as a fault, which must
	// fail the copy and not the process.
	debug.SetPanicOnFault(true)
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.queue, s.executing = nil, false
			s.mu.Unlock()
			return
		}
		o := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.mu.Unlock()
		for _, before := range o.after {
			<-before.done
		}
		o.after = nil
		o.result = s.ctx.lost()
		if o.run != nil {
			o.result = o.run()
			o.run = nil
		}
		close(o.done)
	}
}

// submit queues work on a stream of the context, in CUDA's order: the NULL
// stream and blocking streams wait for each other's earlier work. run may be
// nil, for a mark.
func (c *context) submit(s *stream, after []*op, run func() cuda.Result) *op {
	o := &op{after: after, run: run, done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s == c.null:
		for b := range c.blocking {
			o.after = append(o.after, b.pending()...)
		}
	case s.blocking:
		o.after = append(o.after, c.null.pending()...)
	}
	s.push(o)
	return o
}

// pending returns the newest unfinished work of every stream, of destroyed ones
// too.
func (c *context) pending() (ops []*op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ops = c.null.pending()
	for s := range c.blocking {
		ops = append(ops, s.pending()...)
	}
	for s := range c.independent {
		ops = append(ops, s.pending()...)
	}
	return ops
}

// wait waits for all work of the context and returns its error.
func (c *context) wait() cuda.Result {
	for _, o := range c.pending() {
		o.wait()
	}
	return c.lost()
}

// movement returns the work of an op that moves bytes: it takes the configured
// time, runs the hook, and releases the memory when it is over.
func (d *Driver) movement(c *context, spans []*span, move func()) func() cuda.Result {
	for _, s := range spans {
		for _, a := range s.allocs {
			a.begin()
		}
	}
	return func() cuda.Result {
		defer func() {
			for _, s := range spans {
				for _, a := range s.allocs {
					a.end()
				}
			}
		}()
		if r := c.lost(); r != cuda.Success {
			return r
		}
		if d := d.cfg.CopyDelay.pick(); d > 0 {
			time.Sleep(d)
		}
		r := d.runHook(CopyCall)
		if r == cuda.Success {
			r = guarded(move)
		}
		if r != cuda.Success {
			c.lose(r)
		}
		return r
	}
}

// guarded turns a memory fault of move into a result.
func guarded(move func()) (r cuda.Result) {
	defer func() {
		if cause := recover(); cause != nil {
			if _, fault := cause.(interface{ Addr() uintptr }); !fault {
				panic(cause)
			}
			r = cuda.ErrorIllegalAddress
		}
	}()
	move()
	return cuda.Success
}

func (d Delay) pick() time.Duration {
	if d.Max <= d.Min {
		return d.Min
	}
	return d.Min + rand.N(d.Max-d.Min+1)
}
