package drivertest

import "github.com/gpurma/gpurma/cuda"

// testF18: a buffer id is new for each allocation, for each mapping of VMM
// memory, and for each imported pointer.
func testF18(f *fixture) {
	p, _ := f.pair()
	id := func(ptr cuda.DevicePtr) uint64 { return f.attribute(cuda.PointerAttributeBufferID, ptr) }

	a := f.alloc(f.opts.Size)
	first := id(a)
	f.Equal(first, id(a.Add(f.opts.Size-1)), "id of an interior pointer")
	f.free(a)
	b := f.alloc(f.opts.Size)
	f.Equal(a, b, "address of the next allocation")
	f.NotEqual(first, id(b), "id at the same address")
	f.free(b)

	mem, err := f.drv.MemCreate(f.ctx, block, cuda.AllocationProp{Device: f.dev})
	f.NoError(err)
	at, err := mapRange(f.drv, f.ctx, f.dev, block, mem)
	f.NoError(err)
	first = id(at)
	f.NoError(f.drv.MemUnmap(f.ctx, at, block))
	f.NoError(f.drv.MemMap(f.ctx, at, block, 0, mem))
	f.NoError(f.drv.MemSetAccess(f.ctx, at, block, f.dev, cuda.AccessReadWrite))
	f.NotEqual(first, id(at), "id of the same memory mapped again at the same address")
	f.NoError(unmapRange(f.drv, f.ctx, at, block))
	f.NoError(f.drv.MemRelease(f.ctx, mem))

	// The owner takes its two ids one after the other; the importer takes
	// another one between its two. Ids carried over would be equal in both
	// pairs; ids of the importer's own numbering cannot be.
	var theirs, ours [2]uint64
	var owned, opened [2]cuda.DevicePtr
	for i := range theirs {
		owned[i] = p.alloc(block)
		theirs[i], err = p.attribute(cuda.PointerAttributeBufferID, owned[i])
		f.NoError(err)
	}
	between := cuda.DevicePtr(0)
	for i := range ours {
		h, err := p.export(owned[i])
		f.NoError(err)
		opened[i] = f.openHandle(h)
		ours[i] = id(opened[i])
		if i == 0 {
			between = f.alloc(block)
		}
	}
	f.NotEqual(theirs, ours, "ids at the owner and at the importer")
	f.NotEqual(ours[0], ours[1])
	f.NotContains(ours, id(between))
	f.free(between)
	for i := range opened {
		f.NoError(f.drv.IpcCloseMemHandle(f.ctx, opened[i]))
		f.NoError(p.free(owned[i]))
	}
}

// testF19: what an imported pointer answers, and what it refuses.
func testF19(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	theirs := p.alloc(size)
	p.fill(theirs, size, 1)
	h, err := p.export(theirs)
	f.NoError(err)
	ptr := f.openHandle(h)

	for _, off := range []uint64{0, 1, size / 2, size - 1} {
		start, n, err := f.drv.MemGetAddressRange(f.ctx, ptr.Add(off))
		f.NoError(err)
		f.Equal(ptr, start, "base, asked at offset %d", off)
		f.Equal(size, n, "length, asked at offset %d", off)
	}
	_, err = f.drv.IpcGetMemHandle(f.ctx, ptr)
	f.refused(cuda.ErrorInvalidValue, err, "handle of an imported pointer")
	f.refused(cuda.ErrorInvalidValue, f.drv.MemFree(f.ctx, ptr), "free of an imported pointer")
	f.Zero(f.attribute(cuda.PointerAttributeIsLegacyIpcCapable, ptr), "legacy capable")

	f.verify(ptr, size, 1)
	f.fill(ptr, size, 2)
	f.NoError(p.verify(theirs, size, 2), "what the importer wrote")
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, ptr))
	f.NoError(p.free(theirs))
	f.missing(base, 0, "in the end")
}
