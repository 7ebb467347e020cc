package softgpu

import (
	"github.com/gpurma/gpurma/cuda"
)

// stream finds a stream, the context's NULL stream for 0. The caller holds
// d.mu.
func (d *Driver) stream(c *context, id cuda.Stream) (*stream, error) {
	if id == 0 {
		return c.null, nil
	}
	s := d.streams[id]
	if s == nil {
		return nil, cuda.ErrorInvalidHandle
	}
	if r := s.ctx.lost(); r != cuda.Success {
		return nil, r
	}
	return s, nil
}

func (d *Driver) useStream(ctx cuda.Context, id cuda.Stream) (*stream, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	c, err := d.context(ctx)
	if err != nil {
		return nil, err
	}
	return d.stream(c, id)
}

// StreamCreate makes a stream of the context.
func (d *Driver) StreamCreate(ctx cuda.Context, flags uint32) (cuda.Stream, error) {
	const call = "cuStreamCreate"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	if flags != cuda.StreamDefault && flags != cuda.StreamNonBlocking {
		return 0, failed(call, cuda.ErrorInvalidValue)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := d.context(ctx)
	if err != nil {
		return 0, failed(call, err)
	}
	s := &stream{id: cuda.Stream(d.newID()), ctx: c, blocking: flags == cuda.StreamDefault}
	d.streams[s.id] = s
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.blocking {
		c.blocking[s] = struct{}{}
	} else {
		c.independent[s] = struct{}{}
	}
	return s.id, nil
}

// StreamDestroy makes the stream unknown at once; its work is still done.
func (d *Driver) StreamDestroy(ctx cuda.Context, id cuda.Stream) error {
	const call = "cuStreamDestroy"
	if err := d.enter(call); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.context(ctx); err != nil {
		return failed(call, err)
	}
	s := d.streams[id]
	if s == nil {
		return failed(call, cuda.ErrorInvalidHandle)
	}
	delete(d.streams, id)
	// A last mark takes the stream out of its context when its work is done.
	c := s.ctx
	c.submit(s, nil, func() cuda.Result {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.blocking, s)
		delete(c.independent, s)
		return c.lost()
	})
	return nil
}

// StreamSynchronize waits for the work that the stream has now; on the NULL
// stream for that of the blocking streams too.
func (d *Driver) StreamSynchronize(ctx cuda.Context, id cuda.Stream) error {
	const call = "cuStreamSynchronize"
	if err := d.enter(call); err != nil {
		return err
	}
	s, err := d.useStream(ctx, id)
	if err != nil {
		return failed(call, err)
	}
	for _, o := range s.unfinished() {
		o.wait()
	}
	if r := s.ctx.lost(); r != cuda.Success {
		return cuda.Err(call, r)
	}
	return failed(call, d.waited())
}

// StreamQuery answers ErrorNotReady while StreamSynchronize would wait.
func (d *Driver) StreamQuery(ctx cuda.Context, id cuda.Stream) error {
	const call = "cuStreamQuery"
	if err := d.enter(call); err != nil {
		return err
	}
	s, err := d.useStream(ctx, id)
	if err != nil {
		return failed(call, err)
	}
	if len(s.unfinished()) > 0 {
		return failed(call, cuda.ErrorNotReady)
	}
	return cuda.Err(call, s.ctx.lost())
}

// unfinished returns what a wait for the stream waits for.
func (s *stream) unfinished() []*op {
	ops := s.pending()
	if s != s.ctx.null {
		return ops
	}
	s.ctx.mu.Lock()
	defer s.ctx.mu.Unlock()
	for b := range s.ctx.blocking {
		ops = append(ops, b.pending()...)
	}
	return ops
}

// StreamWaitEvent makes later work of the stream wait for what the event has
// recorded now.
func (d *Driver) StreamWaitEvent(ctx cuda.Context, id cuda.Stream, event cuda.Event) error {
	const call = "cuStreamWaitEvent"
	if err := d.enter(call); err != nil {
		return err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	c, err := d.context(ctx)
	if err != nil {
		return failed(call, err)
	}
	s, err := d.stream(c, id)
	if err != nil {
		return failed(call, err)
	}
	e := d.events[event]
	if e == nil {
		return failed(call, cuda.ErrorInvalidHandle)
	}
	if o := e.recorded.Load(); o != nil && !o.isDone() {
		s.ctx.submit(s, []*op{o}, nil)
	}
	return nil
}
