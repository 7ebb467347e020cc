// Package devmem allocates device memory in every way that the programs try:
// by the plain call, managed, and by the virtual memory calls with and without
// a shareable handle. A [Block] owns what it allocated until Free.
package devmem

import (
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
	"golang.org/x/sys/unix"
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

	free   func() error
	export func() error // exports the memory and drops what comes of it
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

// ErrAbsent says that a device has no memory of the kind asked for, by its own
// attributes. A device that has it and cannot give it returns other errors.
var ErrAbsent = errors.New("no such memory on this device")

// Exportable tells whether the driver exports the memory to other processes, by
// trying it.
func (b *Block) Exportable() (bool, error) {
	err := b.export()
	for _, refused := range []error{cuda.ErrorInvalidValue, cuda.ErrNotSupported, cuda.ErrorNotPermitted} {
		if errors.Is(err, refused) {
			return false, nil
		}
	}
	return err == nil, err
}

// Alloc allocates size bytes on dev in ctx, a context of that device.
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
	return legacyBlock(drv, ctx, ptr), nil
}

// legacyBlock is memory that MemFree frees and a legacy handle may export.
func legacyBlock(drv cuda.Driver, ctx cuda.Context, ptr cuda.DevicePtr) *Block {
	return &Block{
		Ptr:  ptr,
		free: func() error { return drv.MemFree(ctx, ptr) },
		export: func() error {
			_, err := drv.IpcGetMemHandle(ctx, ptr)
			return err
		},
	}
}

func allocManaged(drv cuda.Driver, ctx cuda.Context, dev cuda.Device, size uint64) (*Block, error) {
	if err := needs(drv, dev, cuda.DeviceAttributeManagedMemory, "managed memory"); err != nil {
		return nil, err
	}
	ptr, err := drv.MemAllocManaged(ctx, size, cuda.MemAttachGlobal)
	if err != nil {
		return nil, err
	}
	return legacyBlock(drv, ctx, ptr), nil
}

// allocVMM returns the allocator that makes, reserves, maps and opens up memory
// step by step, and undoes the steps taken when one fails.
func allocVMM(types cuda.HandleType) func(cuda.Driver, cuda.Context, cuda.Device, uint64) (*Block, error) {
	return func(drv cuda.Driver, ctx cuda.Context, dev cuda.Device, size uint64) (_ *Block, err error) {
		if err := needs(drv, dev, cuda.DeviceAttributeVirtualMemoryManagement, "virtual memory management"); err != nil {
			return nil, err
		}
		if types == cuda.HandleTypePosixFD {
			if err := needs(drv, dev, cuda.DeviceAttributeHandleTypePosixFD, "POSIX descriptors as handles"); err != nil {
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
		free := func() error {
			// Unlike MemFree, MemUnmap does not wait for work in flight.
			return errors.Join(drv.CtxSynchronize(ctx), unwind(undo))
		}
		export := func() error {
			fd, err := drv.MemExportPosixFD(ctx, handle)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}
		return &Block{Ptr: ptr, free: free, export: export}, nil
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

func needs(drv cuda.Driver, dev cuda.Device, attr cuda.DeviceAttribute, what string) error {
	value, err := drv.DeviceGetAttribute(attr, dev)
	if err != nil {
		return err
	}
	if value == 0 {
		return fmt.Errorf("%w: found device %d without %s, need it", ErrAbsent, dev, what)
	}
	return nil
}
