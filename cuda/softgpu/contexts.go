package softgpu

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/gpurma/gpurma/cuda"
)

// context is a context of this process.
type context struct {
	id      cuda.Context
	device  cuda.Device
	phys    int // the device in the node
	primary bool
	retains int // primary: references, under the node lock

	allocs map[*allocation]struct{} // under Driver.mu
	small  []*region                // pages of small allocations; under Driver.mu
	sticky atomic.Int32             // the result of work that failed

	mu          sync.Mutex
	null        *stream
	blocking    map[*stream]struct{}
	independent map[*stream]struct{}
}

func (c *context) lost() cuda.Result  { return cuda.Result(c.sticky.Load()) }
func (c *context) lose(r cuda.Result) { c.sticky.CompareAndSwap(0, int32(r)) }

// context finds a context that work can be done in. The caller holds d.mu.
func (d *Driver) context(ctx cuda.Context) (*context, error) {
	if d.closed.Load() {
		return nil, cuda.ErrorDeinitialized
	}
	c := d.contexts[ctx]
	if c == nil {
		return nil, cuda.ErrorInvalidContext
	}
	if r := c.lost(); r != cuda.Success {
		return nil, r
	}
	return c, nil
}

// useContext is context for a caller that does not hold d.mu.
func (d *Driver) useContext(ctx cuda.Context) (*context, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.context(ctx)
}

// newContext makes a context; the first one on a device costs memory there. It
// runs under the node lock.
func (d *Driver) newContext(dev cuda.Device, phys int, primary bool) (*context, error) {
	c, err := d.node.takeCensus(d.table)
	if err != nil {
		return nil, err
	}
	if d.table.contexts[phys] == 0 && c.free(&d.node.header, phys) < d.node.contextCost {
		return nil, cuda.ErrorOutOfMemory
	}
	if err := d.table.addContext(phys, 1); err != nil {
		return nil, err
	}
	ctx := &context{
		id:          cuda.Context(d.newID()),
		device:      dev,
		phys:        phys,
		primary:     primary,
		allocs:      map[*allocation]struct{}{},
		blocking:    map[*stream]struct{}{},
		independent: map[*stream]struct{}{},
	}
	ctx.null = &stream{ctx: ctx}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.contexts[ctx.id] = ctx
	return ctx, nil
}

// DevicePrimaryCtxRetain makes the primary context at the first call.
func (d *Driver) DevicePrimaryCtxRetain(dev cuda.Device) (id cuda.Context, err error) {
	const call = "cuDevicePrimaryCtxRetain"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	phys, err := d.device(dev)
	if err != nil {
		return 0, failed(call, err)
	}
	err = d.locked(func() error {
		c := d.primary(dev)
		if c == nil {
			if c, err = d.newContext(dev, phys, true); err != nil {
				return err
			}
			d.mu.Lock()
			d.primaries[dev] = c
			d.mu.Unlock()
		}
		c.retains++
		id = c.id
		return nil
	})
	return id, failed(call, err)
}

func (d *Driver) primary(dev cuda.Device) *context {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.primaries[dev]
}

// DevicePrimaryCtxRelease ends the primary context, with all it has, at the
// last call.
func (d *Driver) DevicePrimaryCtxRelease(dev cuda.Device) error {
	const call = "cuDevicePrimaryCtxRelease"
	if err := d.enter(call); err != nil {
		return err
	}
	if _, err := d.device(dev); err != nil {
		return failed(call, err)
	}
	var ended *context
	err := d.locked(func() error {
		c := d.primary(dev)
		if c == nil {
			return cuda.ErrorInvalidContext
		}
		if c.retains--; c.retains == 0 {
			ended = c
			d.detachContext(c)
		}
		return nil
	})
	if ended != nil {
		err = errors.Join(err, d.endContext(ended))
	}
	return failed(call, err)
}

// DevicePrimaryCtxGetState looks, and makes nothing.
func (d *Driver) DevicePrimaryCtxGetState(dev cuda.Device) (bool, error) {
	const call = "cuDevicePrimaryCtxGetState"
	if err := d.enter(call); err != nil {
		return false, err
	}
	if _, err := d.device(dev); err != nil {
		return false, failed(call, err)
	}
	return d.primary(dev) != nil, nil
}

// CtxCreate makes a user context.
func (d *Driver) CtxCreate(dev cuda.Device) (id cuda.Context, err error) {
	const call = "cuCtxCreate"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	phys, err := d.device(dev)
	if err != nil {
		return 0, failed(call, err)
	}
	err = d.locked(func() error {
		c, err := d.newContext(dev, phys, false)
		if err == nil {
			id = c.id
		}
		return err
	})
	return id, failed(call, err)
}

// CtxDestroy ends a user context; a primary one is ErrorInvalidContext.
func (d *Driver) CtxDestroy(ctx cuda.Context) error {
	const call = "cuCtxDestroy"
	if err := d.enter(call); err != nil {
		return err
	}
	var c *context
	err := d.locked(func() error {
		d.mu.RLock()
		c = d.contexts[ctx]
		d.mu.RUnlock()
		if ctx == 0 {
			return cuda.ErrorInvalidValue
		}
		if c == nil || c.primary {
			c = nil
			return cuda.ErrorInvalidContext
		}
		d.detachContext(c)
		return nil
	})
	if c != nil {
		err = errors.Join(err, d.endContext(c))
	}
	return failed(call, err)
}

// detachContext makes the context unknown, so that no new work comes.
func (d *Driver) detachContext(c *context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.contexts, c.id)
	if c.primary {
		d.primaries[c.device] = nil
	}
	for id, s := range d.streams {
		if s.ctx == c {
			delete(d.streams, id)
		}
	}
	for id, e := range d.events {
		if e.ctx == c {
			delete(d.events, id)
		}
	}
	for a := range c.allocs {
		a.closing = true
		d.forgetImport(a)
	}
}

// endContext waits for the work of a detached context and gives back its
// memory and mappings.
func (d *Driver) endContext(c *context) error {
	c.wait()
	d.mu.RLock()
	var all []*allocation
	for a := range c.allocs {
		all = append(all, a)
	}
	d.mu.RUnlock()
	for _, a := range all {
		a.inflight.Wait()
	}
	return d.locked(func() error {
		return errors.Join(d.reclaim(all), d.table.addContext(c.phys, -1))
	})
}

// CtxSynchronize waits for all streams of the context.
func (d *Driver) CtxSynchronize(ctx cuda.Context) error {
	const call = "cuCtxSynchronize"
	if err := d.enter(call); err != nil {
		return err
	}
	c, err := d.useContext(ctx)
	if err != nil {
		return failed(call, err)
	}
	if r := c.wait(); r != cuda.Success {
		return cuda.Err(call, r)
	}
	return failed(call, d.waited())
}

// CtxGetDevice returns the ordinal of the context's device.
func (d *Driver) CtxGetDevice(ctx cuda.Context) (cuda.Device, error) {
	const call = "cuCtxGetDevice"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	c, err := d.useContext(ctx)
	if err != nil {
		return 0, failed(call, err)
	}
	return c.device, nil
}
