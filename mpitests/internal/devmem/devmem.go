// Package devmem allocates device memory in every way that the programs try:
// by the plain call, managed, and by the virtual memory calls with and without
// a shareable handle. A [Block] owns what it allocated until Free.
package devmem

import (
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// Allocator is one way to get device memory.
type Allocator struct {
	Name    string // as in the case names of rkeydestroy: "alloc"
	UCXName string // as UCX's test programs print it: "cuMemAlloc"

	alloc func(drv cuda.Driver, ctx cuda.Context, dev cuda.Device, size uint64) (*Block, error)
}

// The allocators, in the order in which the programs list them.
var (
	Alloc       = Allocator{Name: "alloc", UCXName: "cuMemAlloc", alloc: allocPlain}
	Managed     = Allocator{Name: "managed", UCXName: "cuMemAllocManaged", alloc: allocManaged}
	VMM         = Allocator{Name: "vmm", UCXName: "VMM", alloc: allocVMM(cuda.HandleTypeNone)}
	VMMPosixFD  = Allocator{Name: "vmm-fd", UCXName: "VMM_PosixFD", alloc: allocVMM(cuda.HandleTypePosixFD)}
	everyMethod = []Allocator{Alloc, Managed, VMM, VMMPosixFD}
)

// All returns every allocator.
func All() []Allocator { return append([]Allocator(nil), everyMethod...) }

// Block is device memory of at least Size bytes at Ptr.
type Block struct {
	Ptr  cuda.DevicePtr
	Size uint64 // as asked for; the allocation may be longer

	free func() error
}

// Free gives the memory back. A second Free does nothing.
func (b *Block) Free() error {
	if b == nil || b.free == nil {
		return nil
	}
	free := b.free
	b.free = nil
	return free()
}

// Alloc allocates size bytes on dev in ctx, a context of that device. An error
// that matches cuda.ErrNotSupported says that this driver or device has no such
// memory.
func (a Allocator) Alloc(drv cuda.Driver, ctx cuda.Context, dev cuda.Device, size uint64) (*Block, error) {
	b, err := a.alloc(drv, ctx, dev, size)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes by %s: %w", size, a.UCXName, err)
	}
	b.Size = size
	return b, nil
}

func allocPlain(drv cuda.Driver, ctx cuda.Context, _ cuda.Device, size uint64) (*Block, error) {
	ptr, err := drv.MemAlloc(ctx, size)
	if err != nil {
		return nil, err
	}
	return &Block{Ptr: ptr, free: func() error { return drv.MemFree(ctx, ptr) }}, nil
}

func allocManaged(drv cuda.Driver, ctx cuda.Context, dev cuda.Device, size uint64) (*Block, error) {
	if err := require(drv, dev, cuda.DeviceAttributeManagedMemory, "managed memory"); err != nil {
		return nil, err
	}
	ptr, err := drv.MemAllocManaged(ctx, size, cuda.MemAttachGlobal)
	if err != nil {
		return nil, err
	}
	return &Block{Ptr: ptr, free: func() error { return drv.MemFree(ctx, ptr) }}, nil
}

// allocVMM returns the allocator that makes, reserves, maps and opens up memory
// step by step, and undoes the steps taken when one fails.
func allocVMM(types cuda.HandleType) func(cuda.Driver, cuda.Context, cuda.Device, uint64) (*Block, error) {
	return func(drv cuda.Driver, ctx cuda.Context, dev cuda.Device, size uint64) (_ *Block, err error) {
		if err := require(drv, dev, cuda.DeviceAttributeVirtualMemoryManagement, "virtual memory management"); err != nil {
			return nil, err
		}
		if types == cuda.HandleTypePosixFD {
			if err := require(drv, dev, cuda.DeviceAttributeHandleTypePosixFD, "POSIX descriptors as handles"); err != nil {
				return nil, err
			}
		}
		var undo []func() error
		defer func() {
			if err != nil {
				err = errors.Join(err, unwind(undo))
			}
		}()
		prop := cuda.AllocationProp{Device: dev, HandleTypes: types}
		granularity, err := drv.MemGetAllocationGranularity(prop)
		if err != nil {
			return nil, err
		}
		length := max((size+granularity-1)/granularity, 1) * granularity
		handle, err := drv.MemCreate(ctx, length, prop)
		if err != nil {
			return nil, err
		}
		undo = append(undo, func() error { return drv.MemRelease(ctx, handle) })
		ptr, err := drv.MemAddressReserve(ctx, length, 0)
		if err != nil {
			return nil, err
		}
		undo = append(undo, func() error { return drv.MemAddressFree(ctx, ptr, length) })
		if err := drv.MemMap(ctx, ptr, length, 0, handle); err != nil {
			return nil, err
		}
		undo = append(undo, func() error { return drv.MemUnmap(ctx, ptr, length) })
		if err := drv.MemSetAccess(ctx, ptr, length, dev, cuda.AccessReadWrite); err != nil {
			return nil, err
		}
		return &Block{Ptr: ptr, free: func() error {
			// Unlike MemFree, MemUnmap does not wait for work in flight.
			return errors.Join(drv.CtxSynchronize(ctx), unwind(undo))
		}}, nil
	}
}

// unwind runs the steps last first; one that fails does not stop the others.
func unwind(steps []func() error) error {
	var errs []error
	for i := len(steps) - 1; i >= 0; i-- {
		errs = append(errs, steps[i]())
	}
	return errors.Join(errs...)
}

func require(drv cuda.Driver, dev cuda.Device, attr cuda.DeviceAttribute, what string) error {
	value, err := drv.DeviceGetAttribute(attr, dev)
	if err != nil {
		return err
	}
	if value == 0 {
		return fmt.Errorf("device %d has no %s: %w", dev, what, cuda.ErrNotSupported)
	}
	return nil
}
