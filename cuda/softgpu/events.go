package softgpu

import (
	"sync/atomic"

	"github.com/gpurma/gpurma/cuda"
)

// event remembers a point of a stream.
type event struct {
	ctx      *context
	recorded atomic.Pointer[op] // nil before the first record
}

func (d *Driver) useEvent(ctx cuda.Context, id cuda.Event) (*event, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if _, err := d.context(ctx); err != nil {
		return nil, err
	}
	e := d.events[id]
	if e == nil {
		return nil, cuda.ErrorInvalidHandle
	}
	return e, nil
}

// EventCreate makes an event of the context.
func (d *Driver) EventCreate(ctx cuda.Context, flags uint32) (cuda.Event, error) {
	const call = "cuEventCreate"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	if flags != cuda.EventDefault && flags != cuda.EventDisableTiming {
		return 0, failed(call, cuda.ErrorInvalidValue)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := d.context(ctx)
	if err != nil {
		return 0, failed(call, err)
	}
	id := cuda.Event(d.newID())
	d.events[id] = &event{ctx: c}
	return id, nil
}

// EventDestroy makes the event unknown; waits for it that are queued stay.
func (d *Driver) EventDestroy(ctx cuda.Context, id cuda.Event) error {
	const call = "cuEventDestroy"
	if err := d.enter(call); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.context(ctx); err != nil {
		return failed(call, err)
	}
	if d.events[id] == nil {
		return failed(call, cuda.ErrorInvalidHandle)
	}
	delete(d.events, id)
	return nil
}

// EventRecord marks the stream's work so far. The stream is of the event's
// context, else it is ErrorInvalidHandle.
func (d *Driver) EventRecord(ctx cuda.Context, id cuda.Event, stream cuda.Stream) error {
	const call = "cuEventRecord"
	if err := d.enter(call); err != nil {
		return err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	c, err := d.context(ctx)
	if err != nil {
		return failed(call, err)
	}
	s, err := d.stream(c, stream)
	if err != nil {
		return failed(call, err)
	}
	e := d.events[id]
	if e == nil || e.ctx != s.ctx {
		return failed(call, cuda.ErrorInvalidHandle)
	}
	e.recorded.Store(s.ctx.submit(s, nil, nil))
	return nil
}

// EventQuery answers ErrorNotReady until the recorded work is done.
func (d *Driver) EventQuery(ctx cuda.Context, id cuda.Event) error {
	const call = "cuEventQuery"
	if err := d.enter(call); err != nil {
		return err
	}
	e, err := d.useEvent(ctx, id)
	if err != nil {
		return failed(call, err)
	}
	o := e.recorded.Load()
	if o == nil {
		return nil
	}
	if !o.isDone() {
		return failed(call, cuda.ErrorNotReady)
	}
	return cuda.Err(call, o.result)
}

// EventSynchronize waits for the work that is recorded now.
func (d *Driver) EventSynchronize(ctx cuda.Context, id cuda.Event) error {
	const call = "cuEventSynchronize"
	if err := d.enter(call); err != nil {
		return err
	}
	e, err := d.useEvent(ctx, id)
	if err != nil {
		return failed(call, err)
	}
	o := e.recorded.Load()
	if o == nil {
		return nil
	}
	if r := o.wait(); r != cuda.Success {
		return cuda.Err(call, r)
	}
	return failed(call, d.waited())
}
