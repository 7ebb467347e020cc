package dma

import (
	"errors"
	"sync"

	"github.com/gpurma/gpurma/cuda"
)

// Blocking is a non-blocking stream of a context for copies whose driver call
// may block by itself, those from and to pageable host memory. They run one
// after the other, each on the goroutine that asks.
type Blocking struct {
	drv    cuda.Driver
	ctx    cuda.Context
	stream cuda.Stream

	mu     sync.Mutex // one copy at a time; held across the driver's calls on purpose
	closed bool
	lost   bool // the context is gone
}

// NewBlocking makes the stream.
func NewBlocking(drv cuda.Driver, ctx cuda.Context) (*Blocking, error) {
	stream, err := drv.StreamCreate(ctx, cuda.StreamNonBlocking)
	if err != nil {
		return nil, err
	}
	return &Blocking{drv: drv, ctx: ctx, stream: stream}, nil
}

// Run calls copies, which puts work on the stream, and waits for the stream,
// also where copies failed: after Run nothing copies.
func (b *Blocking) Run(copies func(ctx cuda.Context, s cuda.Stream) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	err := errors.Join(copies(b.ctx, b.stream), b.drv.StreamSynchronize(b.ctx, b.stream))
	b.lost = contextGone(err)
	return err
}

// Lost tells whether the stream's context is gone: it is of no more use.
func (b *Blocking) Lost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

// Close gives the stream back; see Engine.Close.
func (b *Blocking) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	if err := b.drv.StreamDestroy(b.ctx, b.stream); err != nil && !contextGone(err) {
		return err
	}
	return nil
}
