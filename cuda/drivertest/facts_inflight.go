package drivertest

import "github.com/gpurma/gpurma/cuda"

// imported is an allocation of the peer that this process has open.
type imported struct {
	theirs cuda.DevicePtr
	handle cuda.IpcMemHandle
	ptr    cuda.DevicePtr
}

// importFrom lets the peer allocate size bytes with the seed's pattern, and
// opens them.
func (f *fixture) importFrom(p *peer, size, seed uint64) imported {
	f.t.Helper()
	i := imported{theirs: p.alloc(size)}
	p.fill(i.theirs, size, seed)
	var err error
	i.handle, err = p.export(i.theirs)
	f.NoError(err)
	i.ptr = f.openHandle(i.handle)
	return i
}

// testF20: a second context of the device may not open what the first one has
// open; a copy ordered by the second through the first one's mapping works.
func testF20(f *fixture) {
	size := f.opts.Size
	p, _ := f.pair()
	second, err := f.drv.CtxCreate(f.dev)
	f.NoError(err)
	i := f.importFrom(p, size, 1)

	_, err = f.drv.IpcOpenMemHandle(f.ctx, i.handle, cuda.IpcMemLazyEnablePeerAccess)
	f.NoError(err, "first context again")
	_, err = f.drv.IpcOpenMemHandle(second, i.handle, cuda.IpcMemLazyEnablePeerAccess)
	f.refused(cuda.ErrorInvalidHandle, err, "second context")

	f.NoError(verify(f.drv, second, i.ptr, size, 1), "read by the second context")
	dst, err := f.drv.MemAlloc(second, size)
	f.NoError(err)
	f.NoError(f.drv.MemcpyDtoD(second, dst, i.ptr, size))
	f.NoError(verify(f.drv, second, dst, size, 1), "copied by the second context")
	f.NoError(fill(f.drv, second, i.ptr, size, 2))
	f.NoError(p.verify(i.theirs, size, 2), "written by the second context")

	f.NoError(f.drv.MemFree(second, dst))
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, i.ptr))
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, i.ptr))
	f.NoError(f.drv.CtxDestroy(second))
	f.NoError(p.free(i.theirs))
}

// testF21: a close with copies from the mapping in flight waits for them.
func testF21(f *fixture) {
	size := f.opts.CopySize
	p, base := f.pair()
	f.underLoad("no close came while copies were in flight", func(copies int) bool {
		i := f.importFrom(p, size, 1)
		dst := f.alloc(size)
		l, err := startLoad(f.drv, f.ctx, dst, i.ptr, size, copies)
		f.NoError(err)
		before, err := l.running()
		f.NoError(err)

		f.NoError(f.drv.IpcCloseMemHandle(f.ctx, i.ptr))

		after, err := l.running()
		f.NoError(err)
		f.False(after, "copies in flight after the close")
		f.NoError(l.close())
		f.verify(dst, size, 1)
		f.free(dst)
		f.NoError(p.free(i.theirs))
		return before
	})
	f.missing(base, 0, "in the end")
}

// testF22: a copy through a closed mapping is refused at the call, and the
// context goes on.
func testF22(f *fixture) {
	size := f.opts.CopySize
	p, _ := f.pair()
	i := f.importFrom(p, size, 1)
	local := f.filled(size, 2)
	stream, err := f.drv.StreamCreate(f.ctx, cuda.StreamNonBlocking)
	f.NoError(err)
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, i.ptr))

	host := make([]byte, 64)
	for _, c := range []struct {
		name string
		err  error
	}{
		{"DtoD from it", f.drv.MemcpyDtoD(f.ctx, local, i.ptr, block)},
		{"DtoD to it", f.drv.MemcpyDtoD(f.ctx, i.ptr, local, block)},
		{"DtoH", f.drv.MemcpyDtoH(f.ctx, host, i.ptr)},
		{"HtoD", f.drv.MemcpyHtoD(f.ctx, i.ptr, host)},
		{"asynchronous DtoD from it", f.drv.MemcpyDtoDAsync(f.ctx, local, i.ptr, block, stream)},
		{"asynchronous DtoD to it", f.drv.MemcpyDtoDAsync(f.ctx, i.ptr, local, block, stream)},
	} {
		f.refused(cuda.ErrorInvalidValue, c.err, c.name)
	}

	f.NoError(f.drv.StreamSynchronize(f.ctx, stream))
	f.NoError(f.drv.CtxSynchronize(f.ctx))
	f.verify(local, size, 2)
	f.fill(local, size, 3)
	f.verify(local, size, 3)
	f.NoError(f.drv.StreamDestroy(f.ctx, stream))
	f.free(local)
	f.NoError(p.free(i.theirs))
}

// testF23: the owner's free does not wait for an importer's copies; they go on
// and finish.
func testF23(f *fixture) {
	size := f.opts.CopySize
	p, base := f.pair()
	f.underLoad("no free returned while the importer was copying", func(copies int) bool {
		ours := f.filled(size, 1)
		theirs, err := p.open(f.handle(ours))
		f.NoError(err)
		buffer := p.startLoad(theirs, size, copies)

		f.free(ours)

		running := p.loadRunning()
		f.missing(base, 2*size, "freed, held by the importer beside its buffer")
		f.NoError(p.waitLoad())
		f.NoError(p.verify(buffer, size, 1), "what the importer copied")
		f.NoError(p.verify(theirs, size, 1), "what it has open")
		f.NoError(p.endLoad(buffer))
		f.NoError(p.close(theirs))
		return running
	})
	f.missing(base, 0, "in the end")
}
