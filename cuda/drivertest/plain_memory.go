package drivertest

import (
	"errors"
	"sync"

	"github.com/gpurma/gpurma/cuda"
)

// unknownPtr is an address that no driver hands out: page-aligned, non-zero,
// in the first 64 KiB, which Linux maps for nobody.
const unknownPtr cuda.DevicePtr = 0x3000

func testMemory(f *fixture) {
	base := f.freeBytes()
	free, total, err := f.drv.MemGetInfo(f.ctx)
	f.NoError(err)
	f.LessOrEqual(free, total)

	var ptrs []cuda.DevicePtr
	sizes := []uint64{1, 512, 4096, block, 3*block + 1, f.opts.Size}
	for i, size := range sizes {
		ptr := f.filled(size, uint64(i))
		f.Zero(ptr%256, "alignment of %v", ptr)
		for _, off := range []uint64{0, size / 2, size - 1} {
			start, n, err := f.drv.MemGetAddressRange(f.ctx, ptr.Add(off))
			f.NoError(err)
			f.Equal(ptr, start, "base, %d bytes, offset %d", size, off)
			f.GreaterOrEqual(n, size)
			if size%512 == 0 {
				f.Equal(size, n, "length, offset %d", off)
			} else if off == 0 {
				f.observed("range of an allocation of %d bytes: %d", size, n)
			}
		}
		ptrs = append(ptrs, ptr)
	}
	for i, ptr := range ptrs {
		for j, other := range ptrs {
			f.True(i == j || ptr.Add(sizes[i]) <= other || other.Add(sizes[j]) <= ptr, "allocations %d and %d apart", i, j)
		}
		f.verify(ptr, sizes[i], uint64(i))
	}
	for _, ptr := range ptrs {
		f.free(ptr)
	}
	f.missing(base, 0, "all freed")

	ptr := f.alloc(f.opts.Size)
	f.missing(base, f.opts.Size, "allocated")
	f.free(ptr)
	f.missing(base, 0, "freed")
}

func testMemoryRefused(f *fixture) {
	_, err := f.drv.MemAlloc(f.ctx, 0)
	f.refused(cuda.ErrorInvalidValue, err, "no bytes")
	f.refused(cuda.ErrorInvalidValue, f.drv.MemFree(f.ctx, unknownPtr), "free of an unknown pointer")
	ptr := f.alloc(block)
	f.refusedSomehow("free of an interior pointer", f.drv.MemFree(f.ctx, ptr.Add(4096)))
	f.free(ptr)
	f.refused(cuda.ErrorInvalidValue, f.drv.MemFree(f.ctx, ptr), "second free")
	_, _, err = f.drv.MemGetAddressRange(f.ctx, unknownPtr)
	f.refusedSomehow("range of an unknown pointer", err)
	_, _, err = f.drv.MemGetAddressRange(f.ctx, ptr)
	f.refusedSomehow("range of a freed pointer", err)
	f.NoError(f.drv.MemFree(f.ctx, 0), "free of no pointer")
}

func testOutOfMemory(f *fixture) {
	free, total, err := f.drv.MemGetInfo(f.ctx)
	f.NoError(err)
	for _, size := range []uint64{total + 512*block, (free/block + 1) * block, 1 << 62} {
		_, err := f.drv.MemAlloc(f.ctx, size)
		f.refused(cuda.ErrorOutOfMemory, err, "%d bytes of %d free", size, free)
	}
	_, err = f.drv.MemCreate(f.ctx, total/block*block+512*block, cuda.AllocationProp{Device: f.dev})
	f.refused(cuda.ErrorOutOfMemory, err, "VMM memory")
	f.free(f.filled(f.opts.Size, 1))
}

// testFreeWaits: memory that copies are reading is freed after them.
func testFreeWaits(f *fixture) {
	size := f.opts.CopySize
	f.underLoad("no free came while copies were in flight", func(copies int) bool {
		src, dst := f.filled(size, 1), f.alloc(size)
		l, err := startLoad(f.drv, f.ctx, dst, src, size, copies)
		f.NoError(err)
		before, err := l.running()
		f.NoError(err)
		f.free(src)
		after, err := l.running()
		f.NoError(err)
		f.False(after, "copies in flight after the free")
		f.NoError(l.close())
		f.verify(dst, size, 1)
		f.free(dst)
		return before
	})
}

// testConcurrentCalls: any method from any goroutine.
func testConcurrentCalls(f *fixture) {
	const goroutines, rounds, size = 8, 20, 64 << 10
	// A driver may keep what so many need at once.
	f.NoError(allAtOnce(f, goroutines, rounds, size))
	base := f.freeBytes()
	f.NoError(allAtOnce(f, goroutines, rounds, size))
	f.missing(base, 0, "in the end")
}

func allAtOnce(f *fixture, goroutines, rounds int, size uint64) error {
	var wg sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range goroutines {
		wg.Go(func() {
			for r := range rounds {
				if errs[g] = allocCopyFree(f.drv, f.ctx, size, uint64(g*rounds+r)); errs[g] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func allocCopyFree(drv cuda.Driver, ctx cuda.Context, size, seed uint64) error {
	src, err := drv.MemAlloc(ctx, size)
	if err != nil {
		return err
	}
	dst, err := drv.MemAlloc(ctx, size)
	if err != nil {
		return err
	}
	if err := fill(drv, ctx, src, size, seed); err != nil {
		return err
	}
	l, err := startLoad(drv, ctx, dst, src, size, 1)
	if err != nil {
		return err
	}
	if err := l.close(); err != nil {
		return err
	}
	if err := verify(drv, ctx, dst, size, seed); err != nil {
		return err
	}
	if err := drv.MemFree(ctx, src); err != nil {
		return err
	}
	return drv.MemFree(ctx, dst)
}
