package ucxlite

import (
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/ucxlite/internal/dma"
	"github.com/gpurma/gpurma/ucxlite/internal/staged"
	"github.com/gpurma/gpurma/ucxlite/internal/wire"
	"golang.org/x/sys/unix"
)

// openTarget maps the ring a peer brings and serves the staged lane on it.
func (in *inbound) openTarget(f *wire.Ring, fd int) error {
	defer closeFD(fd)
	if in.target != nil {
		return fmt.Errorf("%w: a second ring", wire.ErrMalformed)
	}
	ring, err := staged.Open(fd, f.Slots, f.SlotSize)
	if err != nil {
		if errors.Is(err, unix.ENOMEM) {
			return in.conn.Send(&wire.RingAck{Status: wire.StatusUnsupported, Reason: err.Error()})
		}
		return fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	}
	in.target = staged.NewTarget(ring, func(f wire.Frame) error { return in.conn.Send(f) }, in.enter, targetFault)
	return in.conn.Send(&wire.RingAck{})
}

// enter finds the memory that a transfer means and checks the range.
func (in *inbound) enter(t wire.Transfer) (staged.Memory, error) {
	m, err := in.c.enterMemory(t.Slot, t.Generation)
	if err != nil {
		return nil, err
	}
	if start := uint64(m.ptr); t.Address < start || t.Address-start > m.size || uint64(t.Length) > m.size-(t.Address-start) {
		m.leave()
		return nil, fmt.Errorf("%w: [%#x, +%d) of %s", ErrOutOfRange, t.Address, t.Length, m)
	}
	return servedMemory{m}, nil
}

// targetFault tells the initiator why a transfer failed.
func targetFault(err error) wire.Transferred {
	f := wire.Transferred{Status: wire.StatusDriver, Result: int32(cuda.ErrorUnknown), Reason: err.Error()}
	var result cuda.Result
	switch {
	case errors.Is(err, ErrStale):
		f.Status = wire.StatusStale
	case errors.Is(err, ErrOutOfRange):
		f.Status = wire.StatusRange
	case errors.As(err, &result):
		f.Result = int32(result)
	}
	return f
}

// servedMemory is memory of this process while a peer's transfer runs on it.
type servedMemory struct{ m *Memory }

func (s servedMemory) Leave() { s.m.leave() }

func (s servedMemory) Read(dst []byte, address uint64) error {
	engine, err := s.m.engine(&s.m.reading)
	if err != nil {
		return err
	}
	return engine.Run(func(ctx cuda.Context, stream cuda.Stream) error {
		return s.m.c.drv.MemcpyDtoHAsync(ctx, dst, cuda.DevicePtr(address), stream)
	})
}

func (s servedMemory) Write(src []byte, address uint64) error {
	engine, err := s.m.engine(&s.m.writing)
	if err != nil {
		return err
	}
	return engine.Run(func(ctx cuda.Context, stream cuda.Stream) error {
		return s.m.c.drv.MemcpyHtoDAsync(ctx, cuda.DevicePtr(address), src, stream)
	})
}

// engine is one of the memory's own streams for peers' transfers, made at first
// use in the context the memory was mapped with; Unmap closes it.
func (m *Memory) engine(which **dma.Blocking) (*dma.Blocking, error) {
	m.mu.Lock()
	have := *which
	m.mu.Unlock()
	if have != nil {
		return have, nil
	}
	made, err := dma.NewBlocking(m.c.drv, m.ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	have = *which
	if have == nil {
		*which = made
	}
	m.mu.Unlock()
	if have != nil {
		return have, made.Close()
	}
	return made, nil
}

// closeEngines gives the streams back; no transfer runs any more.
func (m *Memory) closeEngines() error {
	m.mu.Lock()
	engines := []*dma.Blocking{m.reading, m.writing}
	m.mu.Unlock()
	var errs []error
	for _, b := range engines {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	return errors.Join(errs...)
}
