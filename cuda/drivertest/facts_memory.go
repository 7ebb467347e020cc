package drivertest

import "github.com/gpurma/gpurma/cuda"

// exported is an allocation of this process that the peer has open.
type exported struct {
	ptr    cuda.DevicePtr
	handle cuda.IpcMemHandle
	theirs cuda.DevicePtr
}

// exportTo allocates opts.Size bytes with the seed's pattern and lets the peer
// open them.
func (f *fixture) exportTo(p *peer, seed uint64) exported {
	f.t.Helper()
	e := exported{ptr: f.filled(f.opts.Size, seed)}
	e.handle = f.handle(e.ptr)
	var err error
	e.theirs, err = p.open(e.handle)
	f.NoError(err)
	f.NotZero(e.theirs)
	return e
}

// testF1: the owner frees while a peer has the handle open. The free succeeds,
// the bytes stay missing, the peer reads on.
func testF1(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	e := f.exportTo(p, 1)
	f.missing(base, size, "allocated and opened")
	f.free(e.ptr)
	f.missing(base, size, "freed while open")
	f.NoError(p.verify(e.theirs, size, 1))
	f.NoError(p.close(e.theirs))
	f.missing(base, 0, "closed")
}

// testF2: the next allocation gets the freed address again with another handle,
// and the bytes of both are missing.
func testF2(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	e := f.exportTo(p, 1)
	f.free(e.ptr)
	again := f.filled(size, 2)
	f.Equal(e.ptr, again, "address of the next allocation")
	f.NotEqual(e.handle, f.handle(again), "its handle")
	f.missing(base, 2*size, "old one held by the peer, new one allocated")
	f.NoError(p.verify(e.theirs, size, 1))
	f.verify(again, size, 2)
	f.free(again)
	f.NoError(p.close(e.theirs))
	f.missing(base, 0, "in the end")
}

// testF3: the peer opens the new handle beside the stale one; both read their
// own bytes.
func testF3(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	stale := f.exportTo(p, 1)
	f.free(stale.ptr)
	fresh := f.exportTo(p, 2)
	f.Equal(stale.ptr, fresh.ptr, "the owner's address")
	f.NotEqual(stale.theirs, fresh.theirs, "the peer's addresses")
	f.NoError(p.verify(stale.theirs, size, 1))
	f.NoError(p.verify(fresh.theirs, size, 2))
	f.NoError(p.close(stale.theirs))
	f.NoError(p.close(fresh.theirs))
	f.free(fresh.ptr)
	f.missing(base, 0, "in the end")
}

// testF4: each close returns exactly its bytes, in either order.
func testF4(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	stale := f.exportTo(p, 1)
	f.free(stale.ptr)
	fresh := f.exportTo(p, 2)
	f.missing(base, 2*size, "both open")
	f.NoError(p.close(stale.theirs))
	f.missing(base, size, "stale one closed")
	f.NoError(p.verify(fresh.theirs, size, 2))
	f.NoError(p.close(fresh.theirs))
	f.missing(base, size, "new one closed, still allocated")
	f.free(fresh.ptr)
	f.missing(base, 0, "freed")

	stale = f.exportTo(p, 3)
	f.free(stale.ptr)
	fresh = f.exportTo(p, 4)
	f.NoError(p.close(fresh.theirs))
	f.free(fresh.ptr)
	f.missing(base, size, "new one gone first")
	f.NoError(p.verify(stale.theirs, size, 3))
	f.NoError(p.close(stale.theirs))
	f.missing(base, 0, "in the end")
}

// testF5: opening again returns the same pointer and counts; the close that is
// one too many is refused.
func testF5(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	theirs := p.alloc(size)
	p.fill(theirs, size, 1)
	h, err := p.export(theirs)
	f.NoError(err)

	first := f.openHandle(h)
	f.Equal(first, f.openHandle(h), "pointer of the second open")
	f.missing(base, size, "opened twice")
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, first))
	f.verify(first, size, 1)
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, first))
	f.refused(cuda.ErrorInvalidValue, f.drv.IpcCloseMemHandle(f.ctx, first), "third close")

	f.NoError(p.free(theirs))
	f.missing(base, 0, "in the end")
}

// testF6: two small allocations share a block; each is an allocation of its own
// in every other respect.
func testF6(f *fixture) {
	const small = 4096
	p, base := f.pair()
	a, b := f.filled(small, 1), f.filled(small, 2)
	f.Equal(a/block, b/block, "the block of %v and of %v", a, b)
	f.missing(base, block, "both allocated")

	ha, hb := f.handle(a), f.handle(b)
	f.NotEqual(ha, hb, "handles")
	f.NotEqual(f.attribute(cuda.PointerAttributeBufferID, a), f.attribute(cuda.PointerAttributeBufferID, b), "buffer ids")
	for _, ours := range []cuda.DevicePtr{a, b} {
		start, size, err := f.drv.MemGetAddressRange(f.ctx, ours.Add(small-1))
		f.NoError(err)
		f.Equal(ours, start)
		f.EqualValues(small, size)
	}

	pa, err := p.open(ha)
	f.NoError(err)
	pb, err := p.open(hb)
	f.NoError(err)
	f.Equal(a%block, pa%block, "offset of the first in its block, at the peer")
	f.Equal(b%block, pb%block, "offset of the second in its block, at the peer")
	f.NoError(p.verify(pa, small, 1))
	f.NoError(p.verify(pb, small, 2))
	start, size, err := p.addressRange(pb.Add(small - 1))
	f.NoError(err)
	f.Equal(pb, start)
	f.EqualValues(small, size)
	f.missing(base, block, "both opened")
	f.NoError(p.close(pa))
	f.NoError(p.verify(pb, small, 2))
	f.NoError(p.close(pb))

	f.free(a)
	f.missing(base, block, "first one freed")
	f.verify(b, small, 2)
	f.free(b)
	f.missing(base, 0, "second one freed")
}

// testF7: the handle of an interior pointer is the allocation's; opening it
// gives the base.
func testF7(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	ptr := f.filled(size, 1)
	h := f.handle(ptr)
	for _, off := range []uint64{1, 4096, block, size/2 + 12345, size - 1} {
		f.Equal(h, f.handle(ptr.Add(off)), "handle of offset %d", off)
	}
	theirs, err := p.open(f.handle(ptr.Add(size / 2)))
	f.NoError(err)
	start, n, err := p.addressRange(theirs)
	f.NoError(err)
	f.Equal(theirs, start)
	f.Equal(size, n)
	f.NoError(p.verify(theirs, size, 1))
	f.NoError(p.close(theirs))
	f.free(ptr)
	f.missing(base, 0, "in the end")
}

// testF8: a process cannot open its own handle.
func testF8(f *fixture) {
	ptr := f.filled(block, 1)
	_, err := f.tryOpen(f.handle(ptr))
	f.refused(cuda.ErrorInvalidContext, err)
	f.verify(ptr, block, 1)
	f.free(ptr)
}

// testF9: a handle whose allocation is gone opens no more. The answer tells
// whether another allocation is at its address (F2: the same one is used again).
func testF9(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	theirs := p.alloc(size)
	never, err := p.export(theirs)
	f.NoError(err)
	f.NoError(p.free(theirs))
	_, err = f.tryOpen(never)
	f.refused(cuda.ErrorInvalidValue, err, "handle that was never opened")

	theirs = p.alloc(size)
	closed, err := p.export(theirs)
	f.NoError(err)
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, f.openHandle(closed)))
	f.NoError(p.free(theirs))
	_, err = f.tryOpen(closed)
	f.refused(cuda.ErrorInvalidValue, err, "handle that was opened and closed before")

	theirs = p.alloc(size)
	_, err = f.tryOpen(closed)
	f.refused(cuda.ErrorNotPermitted, err, "old handle, another allocation at the address")
	f.NoError(p.free(theirs))
	f.missing(base, 0, "in the end")
}
