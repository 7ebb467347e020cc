package cudaipc

import (
	"context"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// MapOptions says where and how to map; the zero value maps on device 0.
type MapOptions struct {
	// Device is the local device that shall reach the memory.
	Device cuda.Device
	// Context is a hint, the context of the first local buffer: it becomes the
	// mapping context of Device where the device has no active primary context.
	Context cuda.Context
	// FetchFD obtains the exporter's descriptor of a KindPosixFD key, by a
	// socket for instance; the cache closes it. nil takes it by pidfd_getfd.
	// It runs detached from the caller's cancellation.
	FetchFD func(ctx context.Context, key *Key) (int, error)
}

// Map is [Cache.MapInto] with a mapping of its own.
func (c *Cache) Map(ctx context.Context, key *Key, opts MapOptions) (*Mapping, error) {
	m := new(Mapping)
	if err := c.MapInto(ctx, m, key, opts); err != nil {
		return nil, err
	}
	return m, nil
}

// MapInto pins the allocation that key names, mapped on opts.Device, into m,
// which must hold nothing. It opens the allocation where it is not open yet;
// all who need it at once share that open and its error, which is not kept. The
// end of ctx ends the caller's waiting, not the open.
//
// A key of this process's own memory maps to the memory itself, on the device
// it is on, with no open; opts do not matter then.
//
// Errors: ErrInvalidKey, ErrNotShareable, ErrUnreachable, ErrStale,
// ErrAlreadyMapped (with ErrBusy and ErrStale where an older mapping of the
// range is still pinned here), ErrBusy for an m that holds something, ErrClosed,
// ErrForked, the driver's, and ctx's.
func (c *Cache) MapInto(ctx context.Context, m *Mapping, key *Key, opts MapOptions) error {
	switch {
	case m.entry.Load() != nil:
		return fmt.Errorf("map: the mapping holds an allocation already: %w", ErrBusy)
	case forked():
		return fmt.Errorf("map: %w", ErrForked)
	case c.shut.Load():
		return fmt.Errorf("map: %w", ErrClosed)
	case key.Identity == c.identity:
		return c.mapLocal(m, key, opts)
	}
	hash := c.index.hash(key, opts.Device)
	if e := c.index.find(hash, key, opts.Device); e != nil && e.pin() {
		e.hits.Add(1)
		m.entry.Store(e)
		return nil
	}
	e, err := c.mapMiss(ctx, hash, key, opts)
	if err != nil {
		return err
	}
	m.entry.Store(e)
	return nil
}

// mapMiss returns the entry with a pin taken, after it was opened by this or
// another caller.
func (c *Cache) mapMiss(ctx context.Context, hash uint64, key *Key, opts MapOptions) (*entry, error) {
	if err := c.mappable(key, opts.Device); err != nil {
		return nil, fmt.Errorf("map %s: %w", key, err)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("map %s: %w", key, err)
		}
		e, p, joined, err := c.join(ctx, hash, key, opts)
		switch {
		case err != nil:
			return nil, fmt.Errorf("map %s: %w", key, err)
		case joined && p == open:
			return e, nil
		case joined:
			if err := c.awaitOpen(ctx, e); err != nil {
				return nil, fmt.Errorf("map %s: %w", key, err)
			}
			return e, nil
		}
		// It is closing: in a driver that allows one open, the next must wait.
		select {
		case <-e.gone:
		case <-ctx.Done():
		}
	}
}

// join pins the entry for key and starts its open where there is none. Without
// joined the entry is closing.
func (c *Cache) join(ctx context.Context, hash uint64, key *Key, opts MapOptions) (e *entry, p phase, joined bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut.Load() {
		return nil, 0, false, ErrClosed
	}
	if e := c.index.find(hash, key, opts.Device); e != nil {
		p, joined := e.join()
		switch {
		case joined && p == open:
			e.hits.Add(1)
		case joined:
			c.totals.shared++
		}
		return e, p, joined, nil
	}
	e = newEntry(c, hash, key, opts.Device)
	e.state.Store(uint64(newWord(opening, 1)))
	c.index.insert(e)
	c.totals.misses++
	go c.openEntry(context.WithoutCancel(ctx), e, opts)
	return e, opening, true, nil
}

// compactEntry is an entry whose handle lies beside it: a hit among many
// regions then waits for memory once and not three times.
type compactEntry struct {
	entry
	handle [1]Handle
	data   [64]byte
}

func newEntry(c *Cache, hash uint64, key *Key, dev cuda.Device) *entry {
	x := new(compactEntry)
	e := &x.entry
	e.cache, e.hash, e.device = c, hash, dev
	e.done, e.gone = make(chan struct{}), make(chan struct{})
	if len(key.Handles) != 1 || len(key.Handles[0].Data) > len(x.data) {
		e.key = key.clone()
		return e
	}
	e.key = *key
	n := copy(x.data[:], key.Handles[0].Data)
	x.handle[0] = Handle{Kind: key.Handles[0].Kind, Data: x.data[:n:n]}
	e.key.Handles = x.handle[:]
	return e
}

// awaitOpen waits for an opening that e was joined in. On an error the pin is
// gone.
func (c *Cache) awaitOpen(ctx context.Context, e *entry) error {
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
	}
	select {
	case <-e.done: // came at the same time: an opened mapping is not thrown away
		return e.err
	default:
	}
	// Whoever leaves last leaves an opening that nobody wants: it closes.
	_ = c.unpin(e, FreeUnused)
	return ctx.Err()
}

// mappable refuses what no driver call can map.
func (c *Cache) mappable(key *Key, dev cuda.Device) error {
	if err := key.validate(); err != nil {
		return err
	}
	switch {
	case dev < 0:
		return fmt.Errorf("%w: device %d", cuda.ErrorInvalidDevice, dev)
	case len(key.Handles) == 0:
		return ErrNotShareable
	case key.Identity.System != c.identity.System:
		return fmt.Errorf("%w: it is memory of another host", ErrUnreachable)
	}
	return nil
}

// mapLocal gives a key of this process the memory that it names, if that is
// still the same.
func (c *Cache) mapLocal(m *Mapping, key *Key, opts MapOptions) error {
	e, err := c.localEntry(key, opts)
	if err != nil {
		return fmt.Errorf("map %s: %w", key, err)
	}
	c.mu.Lock()
	c.totals.local++
	c.mu.Unlock()
	m.entry.Store(e)
	return nil
}

func (c *Cache) localEntry(key *Key, opts MapOptions) (*entry, error) {
	if err := key.validate(); err != nil {
		return nil, err
	}
	id, err := c.drv.PointerGetAttribute(cuda.PointerAttributeBufferID, key.Base)
	if err != nil {
		return nil, fmt.Errorf("%w: nothing is allocated there any more: %w", ErrStale, err)
	}
	if id != key.BufferID {
		return nil, fmt.Errorf("%w: the address now belongs to buffer %d", ErrStale, id)
	}
	dev, err := c.drv.PointerGetAttribute(cuda.PointerAttributeDeviceOrdinal, key.Base)
	if err != nil {
		return nil, err
	}
	owner, err := c.drv.PointerGetAttribute(cuda.PointerAttributeContext, key.Base)
	if err != nil {
		return nil, err
	}
	e := &entry{cache: c, local: true, key: key.clone(), device: cuda.Device(dev), ctx: cuda.Context(owner), ptr: key.Base}
	if e.ctx == 0 { // memory of the VMM calls belongs to none
		if e.ctx, err = c.mappingContext(e.device, opts.Context); err != nil {
			return nil, err
		}
	}
	if err := covers(c.drv, e.ctx, e.ptr, key); err != nil {
		return nil, err
	}
	e.state.Store(uint64(newWord(open, 1)))
	return e, nil
}
