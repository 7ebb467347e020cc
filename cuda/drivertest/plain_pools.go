package drivertest

import (
	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

func testPools(f *fixture) {
	size := f.opts.Size
	warm := f.pool(cuda.HandleTypeNone)
	f.poolFree(f.poolAlloc(warm, block))
	f.NoError(f.drv.MemPoolDestroy(f.ctx, warm))
	base := f.freeBytes()

	pool, other := f.pool(cuda.HandleTypeNone), f.pool(sharedPool)
	f.NotEqual(pool, other)
	f.missing(base, 0, "empty pools")
	ptr := f.poolAlloc(pool, size)
	f.fill(ptr, size, 1)
	f.verify(ptr, size, 1)
	f.missing(base, size, "allocated")
	start, n, err := f.drv.MemGetAddressRange(f.ctx, ptr.Add(4096))
	f.NoError(err)
	f.Equal(ptr, start)
	f.Equal(size, n)
	f.Equal(uint64(cuda.MemoryTypeDevice), f.attribute(cuda.PointerAttributeMemoryType, ptr))
	f.EqualValues(f.dev, f.attribute(cuda.PointerAttributeDeviceOrdinal, ptr))
	f.Zero(f.attribute(cuda.PointerAttributeIsManaged, ptr))
	f.observed("context of pool memory: %v, the primary one is %v", f.attribute(cuda.PointerAttributeContext, ptr), f.ctx)

	// Copied and freed in the order of a stream.
	stream, err := f.drv.StreamCreate(f.ctx, cuda.StreamNonBlocking)
	f.NoError(err)
	dst, err := f.drv.MemAllocFromPoolAsync(f.ctx, block, pool, stream)
	f.NoError(err)
	host := make([]byte, 4096)
	f.NoError(f.drv.MemcpyDtoDAsync(f.ctx, dst, ptr, block, stream))
	f.NoError(f.drv.MemcpyDtoHAsync(f.ctx, host, dst, stream))
	f.NoError(f.drv.MemFreeAsync(f.ctx, dst, stream))
	f.NoError(f.drv.MemFreeAsync(f.ctx, ptr, stream))
	f.NoError(f.drv.StreamSynchronize(f.ctx, stream))
	want := make([]byte, len(host))
	pattern(want, 1, 0)
	f.Equal(want, host, "copied before the free")
	f.missing(base, 0, "a private pool gives back at the next wait")

	// A free that waits works too, and a pool may go before its memory.
	ptr = f.poolAlloc(pool, size)
	f.free(ptr)
	f.missing(base, 0, "freed by MemFree")
	ptr = f.poolAlloc(pool, size)
	f.fill(ptr, size, 2)
	f.NoError(f.drv.MemPoolDestroy(f.ctx, pool))
	f.verify(ptr, size, 2)
	f.missing(base, size, "in use after the pool's end")
	f.poolFree(ptr)
	f.missing(base, 0, "freed after the pool's end")

	f.NoError(f.drv.MemPoolDestroy(f.ctx, other))
	f.NoError(f.drv.StreamDestroy(f.ctx, stream))
	f.missing(base, 0, "in the end")
}

func testPoolsRefused(f *fixture) {
	private, shared := f.pool(cuda.HandleTypeNone), f.pool(sharedPool)
	ptr, exported := f.poolAlloc(private, block), f.poolAlloc(shared, block)

	// F10 and what the pointer says of itself.
	for _, p := range []cuda.DevicePtr{ptr, exported} {
		_, err := f.drv.IpcGetMemHandle(f.ctx, p)
		f.refused(cuda.ErrorInvalidValue, err, "legacy handle of pool memory")
		f.Zero(f.attribute(cuda.PointerAttributeIsLegacyIpcCapable, p))
	}
	f.EqualValues(cuda.HandleTypeNone, f.attribute(cuda.PointerAttributeAllowedHandleTypes, ptr))
	f.EqualValues(sharedPool, f.attribute(cuda.PointerAttributeAllowedHandleTypes, exported))

	_, err := f.drv.MemPoolExportPosixFD(f.ctx, private)
	f.refused(cuda.ErrorInvalidValue, err, "export of a private pool")
	_, err = f.drv.MemPoolExportPointer(f.ctx, ptr)
	f.refusedSomehow("pointer of a private pool", err)
	_, err = f.drv.MemAllocFromPoolAsync(f.ctx, 0, private, 0)
	f.refused(cuda.ErrorInvalidValue, err, "no bytes")
	_, err = f.drv.MemAllocFromPoolAsync(f.ctx, 1<<62, private, 0)
	f.refused(cuda.ErrorOutOfMemory, err, "too many bytes")
	_, err = f.drv.MemPoolCreate(f.ctx, cuda.MemPoolProp{Device: 1000})
	f.refusedSomehow("pool of no device", err)

	file, err := unix.MemfdCreate("not a pool", unix.MFD_CLOEXEC)
	f.NoError(err)
	_, err = f.drv.MemPoolImportPosixFD(f.ctx, file)
	f.refusedSomehow("import of a file", err)
	f.NoError(unix.Close(file))

	// The descriptors of memory and of pools are two things.
	mem, err := f.drv.MemCreate(f.ctx, block, cuda.AllocationProp{Device: f.dev, HandleTypes: cuda.HandleTypePosixFD})
	f.NoError(err)
	fd, err := f.drv.MemExportPosixFD(f.ctx, mem)
	f.NoError(err)
	_, err = f.drv.MemPoolImportPosixFD(f.ctx, fd)
	f.refusedSomehow("import of memory as a pool", err)
	f.NoError(unix.Close(fd))
	f.NoError(f.drv.MemRelease(f.ctx, mem))

	f.NoError(f.drv.MemFreeAsync(f.ctx, ptr, 0))
	f.NoError(f.drv.CtxSynchronize(f.ctx))
	f.refused(cuda.ErrorInvalidValue, f.drv.MemFreeAsync(f.ctx, ptr, 0), "second free")
	f.poolFree(exported)
	native := f.alloc(block)
	f.observed("asynchronous free of memory that is not a pool's: %v", f.drv.MemFreeAsync(f.ctx, native, 0))
	f.NoError(f.drv.CtxSynchronize(f.ctx))
	f.observed("and its free afterwards: %v", f.drv.MemFree(f.ctx, native))
	f.NoError(f.drv.MemPoolDestroy(f.ctx, private))
	f.NoError(f.drv.MemPoolDestroy(f.ctx, shared))
}

// testPoolsShared: what the two sides of a shared pool may do.
func testPoolsShared(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	e := p.poolExport(f, size, 1)
	pool := f.importPool(p, e.fd)

	_, err := f.drv.MemAllocFromPoolAsync(f.ctx, block, pool, 0)
	f.refusedSomehow("allocation from an imported pool", err)
	_, err = f.drv.MemPoolExportPosixFD(f.ctx, pool)
	f.refusedSomehow("export of an imported pool", err)
	_, err = f.drv.MemPoolImportPointer(f.ctx, pool, cuda.MemPoolPtrExportData{})
	f.refusedSomehow("import of no pointer", err)

	ptr, err := f.drv.MemPoolImportPointer(f.ctx, pool, e.data)
	f.NoError(err)
	f.verify(ptr, size, 1)
	f.fill(ptr, size, 2)
	f.NoError(f.drv.CtxSynchronize(f.ctx))
	f.NoError(p.verify(e.ptr, size, 2), "written by the importer")
	f.missing(base, size, "shared")
	again, err := f.drv.MemPoolImportPointer(f.ctx, pool, e.data)
	f.observed("second import of a pointer: %v, the first is at %v: %v", again, ptr, err)
	if err == nil && again != ptr {
		f.poolFree(again)
	}
	_, err = f.drv.IpcGetMemHandle(f.ctx, ptr)
	f.refused(cuda.ErrorInvalidValue, err, "legacy handle of an imported pointer")

	// Of a second allocation the owner's data comes too late.
	late, data := p.poolAlloc(f, e.pool, block, 3)
	p.must(f, request{Op: "poolFree", Ptr: late})
	stale, err := f.drv.MemPoolImportPointer(f.ctx, pool, data)
	f.observed("import of a pointer that its owner has freed: %v, %v", stale, err)
	if err == nil {
		f.poolFree(stale)
	}

	f.poolFree(ptr)
	p.must(f, request{Op: "poolFree", Ptr: e.ptr})
	f.NoError(f.drv.MemPoolDestroy(f.ctx, pool))
	p.must(f, request{Op: "closeFD", FD: e.fd})
	p.must(f, request{Op: "poolDestroy", Pool: e.pool})
	f.missing(base, 0, "in the end")
}
