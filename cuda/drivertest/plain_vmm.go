package drivertest

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

func testManaged(f *fixture) {
	size := uint64(2 * block)
	ptr, err := f.drv.MemAllocManaged(f.ctx, size, cuda.MemAttachGlobal)
	f.NoError(err)
	f.EqualValues(1, f.attribute(cuda.PointerAttributeIsManaged, ptr))
	f.observed("memory type of managed memory: %d", f.attribute(cuda.PointerAttributeMemoryType, ptr))
	start, n, err := f.drv.MemGetAddressRange(f.ctx, ptr.Add(size-1))
	f.NoError(err)
	f.Equal(ptr, start)
	f.Equal(size, n)
	f.fill(ptr, size, 1)
	plain := f.alloc(size)
	f.NoError(f.drv.MemcpyDtoD(f.ctx, plain, ptr, size))
	f.verify(plain, size, 1)
	f.fill(plain, size, 2)
	f.NoError(f.drv.MemcpyDtoD(f.ctx, ptr, plain, size))
	f.verify(ptr, size, 2)
	f.free(plain)
	f.free(ptr)
	_, err = f.drv.PointerGetAttribute(cuda.PointerAttributeBufferID, ptr)
	f.refused(cuda.ErrorInvalidValue, err, "freed")
	_, err = f.drv.MemAllocManaged(f.ctx, 0, cuda.MemAttachGlobal)
	f.refused(cuda.ErrorInvalidValue, err, "no bytes")
	_, err = f.drv.MemAllocManaged(f.ctx, block, 0xff00)
	f.refused(cuda.ErrorInvalidValue, err, "unknown flags")
}

// testVMM: physical memory is taken at creation and given back when no handle,
// mapping or descriptor holds it.
func testVMM(f *fixture) {
	size := f.opts.Size
	base := f.freeBytes()
	prop := cuda.AllocationProp{Device: f.dev, HandleTypes: cuda.HandleTypePosixFD}
	mem, err := f.drv.MemCreate(f.ctx, size, prop)
	f.NoError(err)
	f.missing(base, size, "created")
	ptr, err := mapRange(f.drv, f.ctx, f.dev, size, mem)
	f.NoError(err)
	f.missing(base, size, "mapped")
	for attr, want := range map[cuda.PointerAttribute]uint64{
		cuda.PointerAttributeMemoryType:    uint64(cuda.MemoryTypeDevice),
		cuda.PointerAttributeDeviceOrdinal: uint64(f.dev),
		cuda.PointerAttributeIsManaged:     0,
		cuda.PointerAttributeMapped:        1,
	} {
		f.Equal(want, f.attribute(attr, ptr), "attribute %d", attr)
	}
	f.observed("VMM memory: context %#x, allowed handle types %#x, range %#x+%d",
		f.attribute(cuda.PointerAttributeContext, ptr), f.attribute(cuda.PointerAttributeAllowedHandleTypes, ptr),
		f.attribute(cuda.PointerAttributeRangeStart, ptr), f.attribute(cuda.PointerAttributeRangeSize, ptr))
	f.fill(ptr, size, 1)
	f.verify(ptr, size, 1)

	// The same memory at a second address.
	alias, err := mapRange(f.drv, f.ctx, f.dev, size, mem)
	f.NoError(err)
	f.verify(alias, size, 1)
	f.fill(alias, size, 2)
	f.verify(ptr, size, 2)
	f.NoError(unmapRange(f.drv, f.ctx, alias, size))

	// Two handles' memory side by side in one range.
	f.mapJoined()

	// A retained handle is a reference of its own.
	f.NoError(f.drv.MemRelease(f.ctx, mem))
	f.missing(base, size, "released, still mapped")
	kept, err := f.drv.MemRetainAllocationHandle(f.ctx, ptr)
	f.NoError(err)
	f.observed("retained handle equals the released one: %v", kept == mem)
	f.NoError(unmapRange(f.drv, f.ctx, ptr, size))
	f.missing(base, size, "unmapped, handle retained")

	// So is a descriptor.
	fd, err := f.drv.MemExportPosixFD(f.ctx, kept)
	f.NoError(err)
	f.NoError(f.drv.MemRelease(f.ctx, kept))
	f.missing(base, size, "only the descriptor left")
	back, err := f.drv.MemImportPosixFD(f.ctx, fd)
	f.NoError(err)
	f.NoError(unix.Close(fd))
	ptr, err = mapRange(f.drv, f.ctx, f.dev, size, back)
	f.NoError(err)
	f.verify(ptr, size, 2)
	f.NoError(f.drv.MemRelease(f.ctx, back))
	f.NoError(unmapRange(f.drv, f.ctx, ptr, size))
	f.missing(base, 0, "in the end")
}

// mapJoined maps two allocations next to each other and copies across the seam.
func (f *fixture) mapJoined() {
	f.t.Helper()
	range2, err := f.drv.MemAddressReserve(f.ctx, 2*block, block)
	f.NoError(err)
	f.Zero(range2 % block)
	for i := range uint64(2) {
		mem, err := f.drv.MemCreate(f.ctx, block, cuda.AllocationProp{Device: f.dev})
		f.NoError(err)
		f.NoError(f.drv.MemMap(f.ctx, range2.Add(i*block), block, 0, mem))
		f.NoError(f.drv.MemRelease(f.ctx, mem))
	}
	f.NoError(f.drv.MemSetAccess(f.ctx, range2, 2*block, f.dev, cuda.AccessReadWrite))
	f.fill(range2, 2*block, 3)
	f.verify(range2, 2*block, 3)
	f.NoError(f.drv.MemUnmap(f.ctx, range2, 2*block))
	f.NoError(f.drv.MemAddressFree(f.ctx, range2, 2*block))
}

func testVMMRefused(f *fixture) {
	base := f.freeBytes()
	prop := cuda.AllocationProp{Device: f.dev}
	for _, size := range []uint64{0, 1, block - 4096, block + 1} {
		_, err := f.drv.MemCreate(f.ctx, size, prop)
		f.refused(cuda.ErrorInvalidValue, err, "create %d bytes", size)
	}
	_, err := f.drv.MemAddressReserve(f.ctx, 0, 0)
	f.refused(cuda.ErrorInvalidValue, err, "reserve nothing")
	_, err = f.drv.MemAddressReserve(f.ctx, block+1, 0)
	f.refused(cuda.ErrorInvalidValue, err, "reserve an odd size")
	_, err = f.drv.MemAddressReserve(f.ctx, block, 3)
	f.refused(cuda.ErrorInvalidValue, err, "alignment that is no power of two")
	_, err = f.drv.MemCreate(f.ctx, block, cuda.AllocationProp{Device: -1})
	f.refusedSomehow("create on no device", err)
	_, err = f.drv.MemGetAllocationGranularity(cuda.AllocationProp{Device: -1})
	f.observed("granularity of no device: %v", err)

	mem, err := f.drv.MemCreate(f.ctx, 2*block, prop)
	f.NoError(err)
	ptr, err := f.drv.MemAddressReserve(f.ctx, 4*block, 0)
	f.NoError(err)
	f.refusedSomehow("map with an offset", f.drv.MemMap(f.ctx, ptr, block, block, mem))
	f.refusedSomehow("map an odd size", f.drv.MemMap(f.ctx, ptr, block+1, 0, mem))
	f.refusedSomehow("map at an odd address", f.drv.MemMap(f.ctx, ptr.Add(4096), block, 0, mem))
	f.refusedSomehow("map more than there is", f.drv.MemMap(f.ctx, ptr, 4*block, 0, mem))
	f.refusedSomehow("map where nothing is reserved", f.drv.MemMap(f.ctx, ptr.Add(1<<40), 2*block, 0, mem))
	f.refusedSomehow("set access of what is not mapped", f.drv.MemSetAccess(f.ctx, ptr, 2*block, f.dev, cuda.AccessReadWrite))
	f.refusedSomehow("unmap what is not mapped", f.drv.MemUnmap(f.ctx, ptr, 2*block))
	f.NoError(f.drv.MemMap(f.ctx, ptr, 2*block, 0, mem))
	f.refusedSomehow("map over a mapping", f.drv.MemMap(f.ctx, ptr, 2*block, 0, mem))
	f.refusedSomehow("unmap a part", f.drv.MemUnmap(f.ctx, ptr, block))
	f.refusedSomehow("free addresses that are mapped", f.drv.MemAddressFree(f.ctx, ptr, 4*block))
	f.NoError(f.drv.MemUnmap(f.ctx, ptr, 2*block))
	f.refusedSomehow("free a part of the addresses", f.drv.MemAddressFree(f.ctx, ptr, block))
	_, err = f.drv.MemRetainAllocationHandle(f.ctx, ptr)
	f.refused(cuda.ErrorInvalidValue, err, "handle of what is not mapped")
	f.NoError(f.drv.MemAddressFree(f.ctx, ptr, 4*block))
	_, err = f.drv.MemExportPosixFD(f.ctx, mem)
	f.refusedSomehow("export memory made without handle types", err)
	f.NoError(f.drv.MemRelease(f.ctx, mem))

	f.refused(cuda.ErrorInvalidValue, f.drv.MemFree(f.ctx, ptr), "MemFree of a VMM address")
	r, w, err := os.Pipe()
	f.NoError(err)
	_, err = f.drv.MemImportPosixFD(f.ctx, int(r.Fd()))
	f.refusedSomehow("import a pipe", err)
	_, err = f.drv.MemImportPosixFD(f.ctx, -1)
	f.refusedSomehow("import no descriptor", err)
	f.NoError(r.Close())
	f.NoError(w.Close())
	f.missing(base, 0, "in the end")
}
