package ucxlite

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite/internal/dma"
)

// MemMapOptions are what MemMap may be told; the zero value works.
type MemMapOptions struct {
	// KeepMemopsAsync leaves SYNC_MEMOPS of the allocation as it is. Then the
	// owner must synchronise by itself before a peer reads.
	KeepMemopsAsync bool
}

// Memory is a range of device memory that peers may be given keys of. The
// memory itself stays the caller's: Unmap first, then free it.
type Memory struct {
	c    *Context
	ctx  cuda.Context
	ptr  cuda.DevicePtr
	size uint64
	slot uint32
	gen  uint32
	reg  *cudaipc.Registration
	key  []byte

	mu       sync.Mutex
	unmapped bool
	users    int           // copies and descriptor answers for peers, running
	idle     chan struct{} // closed when users falls to 0; nil while nobody waits

	reading, writing *dma.Blocking // for peers' staged transfers; nil until one comes
}

// MemMap registers the size bytes at ptr, which lie in one allocation and
// belong to ctx. Any device memory may be mapped: where no handle can share it
// (Kind is cudaipc.KindNone), peers reach it by the staged lane.
func (c *Context) MemMap(ctx cuda.Context, ptr cuda.DevicePtr, size uint64, opts MemMapOptions) (*Memory, error) {
	m, err := c.memMap(ctx, ptr, size, opts)
	if err != nil {
		return nil, fmt.Errorf("map memory [%s, +%d): %w", ptr, size, translate(err))
	}
	return m, nil
}

func (c *Context) memMap(ctx cuda.Context, ptr cuda.DevicePtr, size uint64, opts MemMapOptions) (_ *Memory, err error) {
	switch {
	case ctx == 0:
		return nil, fmt.Errorf("%w: no CUDA context", ErrInvalidParam)
	case ptr == 0 || size == 0:
		return nil, fmt.Errorf("%w: empty range", ErrInvalidParam)
	}
	m := &Memory{c: c, ctx: ctx, ptr: ptr, size: size}
	c.mu.Lock()
	if err := c.alive(); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	c.memories.add(m)
	c.mu.Unlock()
	defer func() {
		if err != nil {
			c.forget(m)
		}
	}()

	m.reg, err = cudaipc.Register(c.drv, ctx, ptr, size, cudaipc.RegisterOptions{
		Identity: &c.id, Slot: m.slot, Generation: m.gen, KeepMemopsAsync: opts.KeepMemopsAsync,
	})
	if err != nil {
		return nil, err
	}
	key := m.reg.Key()
	if m.key, err = key.MarshalBinary(); err != nil {
		return nil, err
	}
	if dev, own, err := c.devices.of(c.drv, ptr); err == nil && own != 0 {
		c.devices.saw(dev, own)
	}
	c.mu.Lock()
	m.mu.Lock()
	c.memories.publish(m)
	m.mu.Unlock()
	c.mu.Unlock()
	return m, nil
}

// Address is the start of the range.
func (m *Memory) Address() cuda.DevicePtr { return m.ptr }

// Length is the size of the range in bytes.
func (m *Memory) Length() uint64 { return m.size }

// Kind is how peers can map the memory; cudaipc.KindNone where they cannot.
func (m *Memory) Kind() cudaipc.Kind { return m.reg.Kind() }

// Reason says why Kind is KindNone.
func (m *Memory) Reason() string { return m.reg.Reason() }

func (m *Memory) String() string {
	return fmt.Sprintf("memory [%s, +%d) of %s, slot %d.%d", m.ptr, m.size, m.c.id, m.slot, m.gen)
}

// PackRkey returns the packed key, the caller's to keep and to send. After
// Unmap it is ErrDestroyed.
func (m *Memory) PackRkey() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unmapped {
		return nil, fmt.Errorf("pack key of %s: %w", m, ErrDestroyed)
	}
	return append([]byte(nil), m.key...), nil
}

// Unmap ends the registration: keys of it are stale from then on, except that a
// mapping a peer already has stays until the peer gives it up. Staged
// operations of peers that run are waited for; if ctx ends before, Unmap
// returns its error and may be called again. The memory must not be freed
// before Unmap has returned nil.
func (m *Memory) Unmap(ctx context.Context) error {
	m.mu.Lock()
	m.unmapped = true
	for m.users > 0 {
		if m.idle == nil {
			m.idle = make(chan struct{})
		}
		idle := m.idle
		m.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("unmap %s: %w: peers' operations are running: %w", m, ErrBusy, ctx.Err())
		}
		m.mu.Lock()
	}
	m.mu.Unlock()
	if err := errors.Join(m.closeEngines(), m.reg.Close()); err != nil { // both idempotent
		return fmt.Errorf("unmap %s: %w", m, translate(err))
	}
	m.c.forget(m)
	return nil
}

// enter keeps the registration while a peer's operation runs on it.
func (m *Memory) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unmapped {
		return false
	}
	m.users++
	return true
}

func (m *Memory) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.users == 0 && m.idle != nil {
		close(m.idle)
		m.idle = nil
	}
}

// memoryTable numbers registrations: a slot is reused with a new generation.
// Context.mu guards it.
type memoryTable struct {
	slots []memorySlot
}

type memorySlot struct {
	gen    uint32
	owner  *Memory // nil: free
	usable bool    // registered: peers may ask for it
}

func (t *memoryTable) add(m *Memory) {
	i := 0
	for i < len(t.slots) && t.slots[i].owner != nil {
		i++
	}
	if i == len(t.slots) {
		t.slots = append(t.slots, memorySlot{})
	}
	s := &t.slots[i]
	s.gen++
	s.owner, s.usable = m, false
	m.slot, m.gen = uint32(i), s.gen
}

func (t *memoryTable) publish(m *Memory) { t.slots[m.slot].usable = true }

func (t *memoryTable) live() (n int) {
	for i := range t.slots {
		if t.slots[i].owner != nil {
			n++
		}
	}
	return n
}

// find returns the registration that a peer names, if it is that one still.
func (t *memoryTable) find(slot, gen uint32) *Memory {
	if uint64(slot) >= uint64(len(t.slots)) {
		return nil
	}
	if s := &t.slots[slot]; s.usable && s.gen == gen {
		return s.owner
	}
	return nil
}

func (c *Context) forget(m *Memory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := &c.memories.slots[m.slot]; s.owner == m {
		s.owner, s.usable = nil, false
	}
}

// enterMemory finds a registration for a peer and keeps it until leave.
func (c *Context) enterMemory(slot, gen uint32) (*Memory, error) {
	c.mu.Lock()
	m := c.memories.find(slot, gen)
	c.mu.Unlock()
	if m == nil || !m.enter() {
		return nil, fmt.Errorf("%w: no registration %d.%d", ErrStale, slot, gen)
	}
	return m, nil
}
