package main

import (
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/devmem"
	"github.com/gpurma/gpurma/mpitests/internal/pattern"
)

// guardBytes lie before and behind each buffer. The odd part makes the buffer
// start where no wide access is aligned.
const guardBytes = 256 + 1

// buffer is device memory with a guard on either side and a known content.
type buffer struct {
	drv   cuda.Driver
	ctx   cuda.Context
	block *devmem.Block
	image []byte // what the device memory was filled with, guards included
}

func newBuffer(drv cuda.Driver, a *arrangement, alloc devmem.Allocator, size, seed uint64) (_ *buffer, err error) {
	b := &buffer{drv: drv, ctx: a.owner, image: make([]byte, size+2*guardBytes)}
	for i := range guardBytes {
		b.image[i] = pattern.GuardByte
		b.image[guardBytes+int(size)+i] = pattern.GuardByte
	}
	pattern.Fill(b.payload(b.image), seed)
	if b.block, err = alloc.Alloc(drv, a.owner, a.dev, uint64(len(b.image))); err != nil {
		return nil, err
	}
	// The copy from pageable memory may still run when the call is back.
	err = drv.MemcpyHtoD(b.ctx, b.block.Ptr, b.image)
	if err == nil {
		err = drv.CtxSynchronize(b.ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fill: %w", err), b.block.Free())
	}
	return b, nil
}

// ptr is the buffer's address, behind the first guard.
func (b *buffer) ptr() cuda.DevicePtr { return b.block.Ptr.Add(guardBytes) }

func (b *buffer) payload(image []byte) []byte { return image[guardBytes : len(image)-guardBytes] }

// check reads the device memory and compares it with want, and the guards with
// what they were.
func (b *buffer) check(want []byte) error {
	if err := b.drv.CtxSynchronize(b.ctx); err != nil {
		return err
	}
	got := make([]byte, len(b.image))
	if err := b.drv.MemcpyDtoH(b.ctx, got, b.block.Ptr); err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	return errors.Join(
		pattern.CheckGuard(got[:guardBytes], "before"),
		pattern.CheckGuard(got[len(got)-guardBytes:], "behind"),
		pattern.Compare(b.payload(got), want))
}

func (b *buffer) free() error {
	if b == nil {
		return nil
	}
	return b.block.Free()
}
