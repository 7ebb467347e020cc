package cudaipc

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// imported is an allocation of another process that the driver has mapped.
type imported interface {
	kind() Kind
	ptr() cuda.DevicePtr
	// close gives back all that the import took. After a failure it may be
	// called again and does what was left.
	close() error
}

// openEntry opens e, which has the phase opening and is in the index, and tells
// those who wait. It runs on a goroutine of its own, so that no caller's
// cancellation ends it.
func (c *Cache) openEntry(ctx context.Context, e *entry, opts MapOptions) {
	im, mctx, err := c.openDriver(ctx, e, opts)

	c.mu.Lock()
	switch {
	case im == nil:
		c.totals.openFailures++
		e.err = err
		c.index.remove(e)
		e.enter(closed)
		c.mu.Unlock()
		close(e.done)
		close(e.gone)
		return
	case err != nil: // open, but not what the key says
		c.totals.opens++
		c.totals.openFailures++
		e.err, e.mapping = err, im
		e.enter(closing)
		c.mu.Unlock()
		_ = c.closeEntry(e, causeInvalid) // a failure stays as a zombie
		close(e.done)
		return
	}
	c.totals.opens++
	if im.kind() == KindPosixFD {
		c.totals.fdOpens++
	}
	e.ctx, e.ptr, e.mapping = mctx, im.ptr(), im
	e.stamp.Store(c.now())
	stale := c.link(e)
	e.enter(open)
	unwanted := e.beginClose(true) // all who wanted it have left
	limited := c.overLimit()
	if c.over.Load() {
		c.totals.overLimit++
	}
	c.mu.Unlock()

	// Failures stay as zombies in the Stats; they are not this caller's.
	_ = c.closeAll(stale, causeStale)
	_ = c.closeAll(limited, causeLimit)
	if unwanted {
		_ = c.closeEntry(e, causeUnwanted)
	}
	close(e.done)
}

// openDriver makes the driver calls of an open. A mapping beside an error is
// one that must be closed.
func (c *Cache) openDriver(ctx context.Context, e *entry, opts MapOptions) (imported, cuda.Context, error) {
	for retried := false; ; retried = true {
		mctx, err := c.mappingContext(e.device, opts.Context)
		if err != nil {
			return nil, 0, err
		}
		im, err := c.importAny(ctx, e, mctx, opts)
		switch {
		case err == nil:
			return im, mctx, covers(c.drv, mctx, im.ptr(), &e.key)
		case im != nil:
			return im, 0, err
		case !retried && c.contextGone(mctx, err):
			c.forgetContext(e.device, mctx)
		case !retried && errors.Is(err, cuda.ErrorAlreadyMapped):
			if busy := c.clearRange(e); busy > 0 {
				return nil, 0, fmt.Errorf("%w: %d older mappings of that range pinned here: %w: %w", ErrBusy, busy, ErrStale, err)
			}
		default:
			return nil, 0, err
		}
	}
}

// importAny tries the key's handles in their order and returns the first that
// works, or all errors; a mapping beside an error must be closed.
func (c *Cache) importAny(ctx context.Context, e *entry, mctx cuda.Context, opts MapOptions) (imported, error) {
	var errs []error
	for _, h := range e.key.Handles {
		var im imported
		var err error
		switch h.Kind {
		case KindLegacy:
			im, err = c.importLegacy(e, h, mctx)
		case KindPosixFD:
			im, err = c.importPosixFD(ctx, e, h, mctx, opts)
		default:
			err = fmt.Errorf("%w: this version does not import handles of kind %s", ErrUnreachable, h.Kind)
		}
		if err == nil {
			return im, nil
		}
		errs = append(errs, err)
		if im != nil { // half undone: no more tries
			return im, errors.Join(errs...)
		}
	}
	return nil, errors.Join(errs...)
}

// covers checks, by the driver's word, that the mapping at ptr is as long as the
// key says: a copy past its end would cost this process its context.
func covers(drv cuda.Driver, ctx cuda.Context, ptr cuda.DevicePtr, key *Key) error {
	base, size, err := drv.MemGetAddressRange(ctx, ptr)
	if err != nil {
		return fmt.Errorf("check mapping: %w", err)
	}
	if base > ptr || uint64(ptr-base) > size || size-uint64(ptr-base) < key.Length {
		return fmt.Errorf("%w: it says %d bytes, the memory at %s has %d from %s", ErrInvalidKey, key.Length, ptr, size, base)
	}
	return nil
}

// clearRange makes room for e in a driver that refuses overlaps: it closes the
// exporter's other entries in that range, waits for those closing, and returns
// how many are pinned.
func (c *Cache) clearRange(e *entry) (busy int) {
	var victims, waits []*entry
	visit := func(o *entry) {
		switch {
		case o == e || o.device != e.device || o.key.Identity != e.key.Identity ||
			o.end() <= e.key.Base || e.end() <= o.key.Base:
		case o.beginClose(false):
			victims = append(victims, o)
		case o.word().phase() == closing:
			waits = append(waits, o)
		case o.word().phase() == open:
			busy++
		}
	}
	c.mu.Lock()
	for o := range c.apart {
		visit(o)
	}
	if p := c.peers[e.key.Identity]; p != nil {
		p.ranges.overlapping(e.key.Base, e.end(), visit)
	}
	c.mu.Unlock()
	_ = c.closeAll(victims, causeStale) // a failure shows in the second open
	awaitGone(waits)
	return busy
}

// openError gives a failed open of a handle its sentinel. FACTS F9, F20, F25:
// a handle whose allocation was freed is an invalid value; one whose process has
// died, or that another context has open, is an invalid handle. kind is the
// handle's: what a driver means by not permitted depends on it.
func openError(kind Kind, err error, what string) error {
	sentinel, hint := error(nil), ""
	switch {
	case errors.Is(err, cuda.ErrorInvalidValue):
		sentinel, hint = ErrStale, " (the exporter has freed it)"
	case kind == KindLegacy && errors.Is(err, cuda.ErrorNotPermitted):
		sentinel, hint = ErrStale, " (the exporter has freed it and has other memory at its address)"
	case errors.Is(err, cuda.ErrorAlreadyMapped):
		sentinel, hint = ErrAlreadyMapped, " (something else in this process has the range open)"
	case errors.Is(err, cuda.ErrorInvalidHandle):
		sentinel, hint = ErrUnreachable, " (the exporter has died, or another context of this process has it open)"
	case errors.Is(err, cuda.ErrorInvalidContext):
		sentinel, hint = ErrUnreachable, " (a handle of this process itself, or no context)"
	case errors.Is(err, cuda.ErrorInvalidDevice), errors.Is(err, cuda.ErrorPeerAccessUnsupported),
		errors.Is(err, cuda.ErrorMapFailed), errors.Is(err, cuda.ErrorNotPermitted),
		errors.Is(err, cuda.ErrNotSupported):
		sentinel = ErrUnreachable
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%w: %s: %w%s", sentinel, what, err, hint)
}
