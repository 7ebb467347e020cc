package drivertest

import "github.com/gpurma/gpurma/cuda"

// testF14: an importer's death closes its mappings; their bytes and the cost of
// its context return.
func testF14(f *fixture) {
	size := f.opts.Size
	f.pair() // a first peer, so that this process has exported and imported
	alone := f.freeBytes()

	p, base := f.pair()
	f.Less(base, alone, "free memory beside a second peer's context")
	e := f.exportTo(p, 1)
	f.free(e.ptr)
	kept := f.exportTo(p, 2)
	theirs := p.alloc(size)
	p.fill(theirs, size, 3)
	f.missing(base, 3*size, "held open after the free, allocated, and the peer's own")
	p.kill()
	f.returnsTo(alone-size, "the peer's death")
	f.verify(kept.ptr, size, 2)
	f.free(kept.ptr)
	f.missing(alone, 0, "in the end")
}

// testF16: a process's context costs device memory from its first use to its
// end.
func testF16(f *fixture) {
	f.pair()
	alone := f.freeBytes()
	p := startPeer(f.t, f.peerEnv)
	with := f.freeBytes()
	f.Less(with, alone)
	f.observed("context cost: %d bytes", alone-with)
	p.end()
	f.returnsTo(alone, "the peer's end")
}

// testF25: the owner is killed while its memory is open here.
func testF25(f *fixture) {
	size := f.opts.Size
	f.pair()
	alone := f.freeBytes()

	p, base := f.pair()
	i := f.importFrom(p, size, 1)
	other := p.alloc(size)
	p.fill(other, size, 2)
	f.missing(base, 2*size, "opened, and the owner's own")
	p.kill()
	f.returnsTo(alone-size, "the owner's death")
	f.verify(i.ptr, size, 1)

	again, err := f.tryOpen(i.handle)
	f.NoError(err, "open again while open here")
	f.Equal(i.ptr, again)
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, i.ptr))
	f.verify(i.ptr, size, 1)
	f.missing(alone, size, "closed once of twice")
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, i.ptr))
	f.missing(alone, 0, "closed")

	_, err = f.tryOpen(i.handle)
	f.refused(cuda.ErrorInvalidHandle, err, "open after the last close, owner dead")
}
