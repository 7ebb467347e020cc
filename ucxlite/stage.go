package ucxlite

import (
	"fmt"
	"runtime"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/ucxlite/internal/staged"
	"github.com/gpurma/gpurma/ucxlite/internal/wire"
)

// stage sends the operation by the staged lane.
func (r *Request) stage() error {
	in, err := r.e.peer.initiator()
	if err != nil {
		return err
	}
	local := &stagedBuffer{w: r.e.w, buf: r.buf}
	if r.buf.onHost() {
		local.pinner.Pin(&r.buf.host[0])
	} else if err := local.place(); err != nil {
		return fmt.Errorf("%w: local buffer: %w", ErrInvalidParam, err)
	}
	err = in.Submit(&staged.Op{
		Get: r.op == opGet, Local: local, Length: r.buf.n,
		Slot: r.key.key.Slot, Generation: r.key.key.Generation, Address: r.raddr,
		Done: func(err error) {
			local.pinner.Unpin()
			r.complete(err)
		},
	})
	if err != nil {
		local.pinner.Unpin()
	}
	return err
}

// stagedBuffer is a local buffer as the staged lane sees it.
type stagedBuffer struct {
	w      *Worker
	buf    Buffer
	ctx    cuda.Context   // for device memory: where to copy
	pinner runtime.Pinner // for host memory: until the operation is complete
}

func (b *stagedBuffer) place() error {
	c := b.w.c
	dev, own, err := c.devices.of(c.drv, b.buf.ptr)
	if err != nil {
		return err
	}
	b.ctx, err = c.devices.copyContext(c.drv, dev, own)
	return err
}

func (b *stagedBuffer) Read(dst []byte, off uint64) error {
	if b.buf.onHost() {
		copy(dst, b.buf.host[off:])
		return nil
	}
	engine, err := b.w.hostEngine(b.ctx)
	if err != nil {
		return err
	}
	return engine.Run(func(ctx cuda.Context, s cuda.Stream) error {
		return b.w.c.drv.MemcpyDtoHAsync(ctx, dst, b.buf.ptr.Add(off), s)
	})
}

func (b *stagedBuffer) Write(src []byte, off uint64) error {
	if b.buf.onHost() {
		copy(b.buf.host[off:], src)
		return nil
	}
	engine, err := b.w.hostEngine(b.ctx)
	if err != nil {
		return err
	}
	return engine.Run(func(ctx cuda.Context, s cuda.Stream) error {
		return b.w.c.drv.MemcpyHtoDAsync(ctx, b.buf.ptr.Add(off), src, s)
	})
}

// initiator is the connection's staged lane, made at first use: the ring goes
// to the peer, and transfers begin when it has mapped it.
func (p *peer) initiator() (*staged.Initiator, error) {
	p.mu.Lock()
	if p.st == peerFailed {
		defer p.mu.Unlock()
		return nil, p.err
	}
	if p.stage != nil {
		defer p.mu.Unlock()
		return p.stage, nil
	}
	ring, fd, err := staged.Create(p.c.cfg.StagedSlots, p.c.cfg.StagedSlotSize)
	if err != nil {
		p.mu.Unlock()
		return nil, fmt.Errorf("staged lane to %s: %w: %w", p, ErrNoMemory, err)
	}
	conn := p.conn
	in := staged.NewInitiator(ring, func(f wire.Frame) error { return conn.Send(f) }, p.transferError)
	p.stage = in
	p.mu.Unlock()
	err = conn.Send(&wire.Ring{Slots: uint32(p.c.cfg.StagedSlots), SlotSize: uint64(p.c.cfg.StagedSlotSize)}, fd)
	closeFD(fd)
	if err != nil {
		p.fail(p.lost(err))
		return nil, p.failure()
	}
	return in, nil
}

// transferError is what a target's failure means here.
func (p *peer) transferError(f wire.Transferred) error {
	if f.Status == wire.StatusDriver {
		return fmt.Errorf("%s: its copy failed: %w: %s", p, cuda.Result(f.Result), f.Reason)
	}
	return fmt.Errorf("%s: %w: %s", p, statusError(f.Status), f.Reason)
}

// handleStaged takes the target's answers, on the goroutine that reads them.
func (p *peer) handleStaged(f wire.Frame) error {
	p.mu.Lock()
	in := p.stage
	p.mu.Unlock()
	if in == nil {
		return fmt.Errorf("%w: %T without a ring", wire.ErrMalformed, f)
	}
	switch f := f.(type) {
	case *wire.Transferred:
		return in.Handle(f)
	case *wire.RingAck:
		if f.Status != wire.StatusOK {
			in.Fail(fmt.Errorf("staged lane to %s: %w: %s", p, ErrUnsupported, f.Reason))
			return in.Finish() // the movers have not begun
		}
		return in.Start()
	}
	return nil
}

// endStage waits until no staged copy runs here and completes what is left.
func (p *peer) endStage() {
	p.mu.Lock()
	in := p.stage
	p.mu.Unlock()
	if in == nil {
		return
	}
	in.Fail(p.failure())
	if err := in.Finish(); err != nil {
		p.c.log.Warn("staged lane", "peer", p.String(), "err", err)
	}
}
