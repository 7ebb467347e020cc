package drivertest

import "github.com/gpurma/gpurma/cuda"

// observeInPeer makes a peer of its own do op, logs what it noted and ends the
// peer, whatever state it is in. It returns the error of op.
func (f *fixture) observeInPeer(r request) error {
	f.t.Helper()
	p := startPeer(f.t, f.peerEnv)
	a, err := p.do(r)
	for _, note := range a.Notes {
		f.observed("%s", note)
	}
	p.kill()
	return err
}

// observeMemsetUnfinished: a peer reads exported memory while a memset of it
// that has returned is still queued here.
func observeMemsetUnfinished(f *fixture) {
	size := f.opts.CopySize
	p, _ := f.pair()
	ours := f.filled(size, 1)
	theirs, err := p.open(f.handle(ours))
	f.NoError(err)
	src, dst := f.alloc(size), f.alloc(size)

	for range f.opts.Copies {
		f.NoError(f.drv.MemcpyDtoD(f.ctx, dst, src, size))
	}
	f.NoError(f.drv.MemsetD8(f.ctx, ours, 0, size))
	pending := f.drv.StreamQuery(f.ctx, 0)
	old := p.verify(theirs, size, 1) == nil
	f.observed("peer read the bytes of before the memset: %v (NULL stream when the memset had returned: %v, now: %v)",
		old, pending, f.drv.StreamQuery(f.ctx, 0))

	f.NoError(f.drv.CtxSynchronize(f.ctx))
	f.Error(p.verify(theirs, size, 1), "the old bytes after the owner has waited")
	f.NoError(p.close(theirs))
	for _, ptr := range []cuda.DevicePtr{ours, src, dst} {
		f.free(ptr)
	}
}

// observeUnmapInFlight: VMM memory is unmapped under copies in flight.
func observeUnmapInFlight(f *fixture) {
	f.NoError(f.observeInPeer(request{
		Op: "unmapLoaded", Size: f.opts.CopySize, Seed: 1, Count: f.opts.Copies,
	}))
}

// observeNoAccess: VMM memory that is mapped but not opened to the device
// cannot be read; with which answer is the driver's affair.
func observeNoAccess(f *fixture) {
	f.Error(f.observeInPeer(request{Op: "copyNoAccess", Size: block}), "copy without access")
	f.Error(f.observeInPeer(request{Op: "memsetBeyond", Size: block}), "memset past the end")
}

// observeOpenFreedButHeld: a handle whose owner has freed, opened again while
// the opener (or somebody else) still has it open.
func observeOpenFreedButHeld(f *fixture) {
	p, base := f.pair()
	other := startPeer(f.t, f.peerEnv)
	i := f.importFrom(p, f.opts.Size, 1)
	f.NoError(p.free(i.theirs))

	again, err := f.tryOpen(i.handle)
	f.observed("freed by its owner, opened again by who has it open: %v (the same address: %v)", verdict(err), again == i.ptr)
	if err == nil {
		f.NoError(f.drv.IpcCloseMemHandle(f.ctx, again))
	}
	theirs, err := other.open(i.handle)
	f.observed("freed by its owner, opened by a third process while held here: %v", verdict(err))
	if err == nil {
		f.NoError(other.close(theirs))
	}
	f.verify(i.ptr, f.opts.Size, 1)
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, i.ptr))
	other.end()
	f.returnsTo(base, "the third process's end")
}

// observeSecondContextAfterClose: the handle that one context had open, opened
// by another context afterwards.
func observeSecondContextAfterClose(f *fixture) {
	p, _ := f.pair()
	second, err := f.drv.CtxCreate(f.dev)
	f.NoError(err)
	i := f.importFrom(p, block, 1)
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, i.ptr))
	ptr, err := f.drv.IpcOpenMemHandle(second, i.handle, cuda.IpcMemLazyEnablePeerAccess)
	f.observed("open in a second context after the first one's close: %v", verdict(err))
	if err == nil {
		f.NoError(verify(f.drv, second, ptr, block, 1))
		f.NoError(f.drv.IpcCloseMemHandle(second, ptr))
	}
	f.NoError(f.drv.CtxDestroy(second))
	f.NoError(p.free(i.theirs))
}

// observePoolFreeInFlight: what copies see whose pool memory is freed on another
// stream.
func observePoolFreeInFlight(f *fixture) {
	f.NoError(f.observeInPeer(request{
		Op: "freePoolLoaded", Size: f.opts.CopySize, Seed: 1, Count: f.opts.Copies,
	}))
}
