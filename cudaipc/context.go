package cudaipc

import (
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// mappingContext is the one context that a device's mappings are opened in: a
// second one could not open what the first has open (FACTS F20), and a copy
// reaches the mapping from any context.
type mappingContext struct {
	ready   chan struct{}
	ctx     cuda.Context
	primary bool // retained by the cache
	err     error
}

// mappingContext returns the device's mapping context, chosen at the first use:
// the primary if it is active; else the hint if it is of this device, since a
// primary of our own would cost the user some 524 MiB (F16); else the primary.
func (c *Cache) mappingContext(dev cuda.Device, hint cuda.Context) (cuda.Context, error) {
	c.mu.Lock()
	mc := c.contexts[dev]
	if mc != nil {
		c.mu.Unlock()
		<-mc.ready
		return mc.ctx, mc.err
	}
	mc = &mappingContext{ready: make(chan struct{})}
	c.contexts[dev] = mc
	c.mu.Unlock()

	mc.err = blocking(func() error { return c.chooseContext(mc, dev, hint) })
	if mc.err != nil { // the next use tries again
		mc.err = fmt.Errorf("choose mapping context of device %d: %w", dev, mc.err)
		c.mu.Lock()
		delete(c.contexts, dev)
		c.mu.Unlock()
	}
	close(mc.ready)
	return mc.ctx, mc.err
}

func (c *Cache) chooseContext(mc *mappingContext, dev cuda.Device, hint cuda.Context) error {
	active, err := c.drv.DevicePrimaryCtxGetState(dev)
	if err != nil {
		return err
	}
	if !active && hint != 0 {
		if d, err := c.drv.CtxGetDevice(hint); err == nil && d == dev {
			mc.ctx = hint
			return nil
		}
	}
	if mc.ctx, err = c.drv.DevicePrimaryCtxRetain(dev); err != nil {
		return err
	}
	mc.primary = true
	return nil
}

// contextGone tells whether err came of a context that no longer exists. An
// invalid context is also what opening one's own handle answers (F8).
func (c *Cache) contextGone(ctx cuda.Context, err error) bool {
	if errors.Is(err, cuda.ErrorContextIsDestroyed) {
		return true
	}
	if !errors.Is(err, cuda.ErrorInvalidContext) {
		return false
	}
	_, err = c.drv.CtxGetDevice(ctx)
	return err != nil
}

// forgetContext makes the next use of the device choose anew, and drops the
// entries that were mapped in ctx: they ended with it.
func (c *Cache) forgetContext(dev cuda.Device, ctx cuda.Context) {
	var victims []*entry
	c.mu.Lock()
	if mc := c.contexts[dev]; mc != nil && mc.ctx == ctx {
		delete(c.contexts, dev)
	}
	c.index.all(func(e *entry) {
		if e.device == dev && e.word().phase() == open && e.ctx == ctx && c.detach(e) {
			victims = append(victims, e)
		}
	})
	c.mu.Unlock()
	_ = c.closeAll(victims, causeStale)
}

// releaseContexts gives the retained primary contexts back, once.
func (c *Cache) releaseContexts() error {
	c.mu.Lock()
	contexts := c.contexts
	c.contexts = map[cuda.Device]*mappingContext{}
	c.mu.Unlock()
	var errs []error
	for dev, mc := range contexts {
		<-mc.ready
		if mc.err != nil || !mc.primary {
			continue
		}
		if err := c.drv.DevicePrimaryCtxRelease(dev); err != nil && !tornDown(err) {
			errs = append(errs, fmt.Errorf("release primary context of device %d: %w", dev, err))
		}
	}
	return errors.Join(errs...)
}

// tornDown tells whether a call failed because the context or the driver it
// needs is gone, and took with it what the call was to give back.
func tornDown(err error) bool {
	return errors.Is(err, cuda.ErrorContextIsDestroyed) || errors.Is(err, cuda.ErrorDeinitialized) ||
		errors.Is(err, cuda.ErrorInvalidContext)
}
