package drivertest

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// vmmExport is VMM memory of the peer with a POSIX descriptor, mapped there.
type vmmExport struct {
	mem cuda.MemHandle
	ptr cuda.DevicePtr
	fd  int // its number in the peer
}

func (p *peer) vmmExport(f *fixture, size, seed uint64) vmmExport {
	f.t.Helper()
	a, err := p.do(request{Op: "vmmCreate", Size: size, Types: cuda.HandleTypePosixFD})
	f.NoError(err)
	v := vmmExport{mem: a.Mem}
	a, err = p.do(request{Op: "vmmMap", Size: size, Mem: v.mem})
	f.NoError(err)
	v.ptr = a.Ptr
	p.fill(v.ptr, size, seed)
	a, err = p.do(request{Op: "vmmExportFD", Mem: v.mem})
	f.NoError(err)
	v.fd = a.FD
	return v
}

// drop unmaps, releases and closes everything the peer has of v.
func (p *peer) drop(f *fixture, v vmmExport, size uint64) {
	f.t.Helper()
	for _, r := range []request{
		{Op: "vmmUnmap", Ptr: v.ptr, Size: size},
		{Op: "vmmRelease", Mem: v.mem},
		{Op: "closeFD", FD: v.fd},
	} {
		_, err := p.do(r)
		f.NoError(err, r.Op)
	}
}

// testF10: no legacy handle of VMM or managed memory.
func testF10(f *fixture) {
	for _, types := range []cuda.HandleType{cuda.HandleTypeNone, cuda.HandleTypePosixFD} {
		mem, err := f.drv.MemCreate(f.ctx, block, cuda.AllocationProp{Device: f.dev, HandleTypes: types})
		f.NoError(err)
		ptr, err := mapRange(f.drv, f.ctx, f.dev, block, mem)
		f.NoError(err)
		_, err = f.drv.IpcGetMemHandle(f.ctx, ptr)
		f.refused(cuda.ErrorInvalidValue, err, "VMM memory, handle types %v", types)
		f.Zero(f.attribute(cuda.PointerAttributeIsLegacyIpcCapable, ptr))
		f.NoError(unmapRange(f.drv, f.ctx, ptr, block))
		f.NoError(f.drv.MemRelease(f.ctx, mem))
	}

	ptr, err := f.drv.MemAllocManaged(f.ctx, block, cuda.MemAttachGlobal)
	f.NoError(err)
	_, err = f.drv.IpcGetMemHandle(f.ctx, ptr)
	f.refused(cuda.ErrorInvalidValue, err, "managed memory")
	f.Zero(f.attribute(cuda.PointerAttributeIsLegacyIpcCapable, ptr))
	f.free(ptr)
}

// testF11: the owner unmaps, releases and closes its descriptor while the
// importer has the memory mapped; the bytes return with the importer's unmap.
func testF11(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	v := p.vmmExport(f, size, 1)
	f.missing(base, size, "created")

	fd := p.fetchFD(v.fd)
	mem, err := f.drv.MemImportPosixFD(f.ctx, fd)
	f.NoError(err)
	f.NoError(unix.Close(fd), "the import left the descriptor to its owner")
	ptr, err := mapRange(f.drv, f.ctx, f.dev, size, mem)
	f.NoError(err)
	f.NoError(f.drv.MemRelease(f.ctx, mem))
	f.missing(base, size, "imported and mapped")

	p.drop(f, v, size)
	f.missing(base, size, "dropped by its owner")
	f.verify(ptr, size, 1)
	f.NoError(f.drv.MemUnmap(f.ctx, ptr, size))
	f.missing(base, 0, "unmapped by the importer")
	f.NoError(f.drv.MemAddressFree(f.ctx, ptr, size))
}

// testF12: the minimum granularity of VMM memory is 2 MiB.
func testF12(f *fixture) {
	for _, types := range []cuda.HandleType{cuda.HandleTypeNone, cuda.HandleTypePosixFD} {
		n, err := f.drv.MemGetAllocationGranularity(cuda.AllocationProp{Device: f.dev, HandleTypes: types})
		f.NoError(err)
		f.EqualValues(2<<20, n)
	}
}

// testF15: without an IMEX channel fabric memory is announced and refused.
func testF15(f *fixture) {
	const channels = "/dev/nvidia-caps-imex-channels"
	if entries, err := os.ReadDir(channels); err == nil && len(entries) > 0 {
		f.t.Skipf("found an IMEX channel in %s, need none", channels)
	}
	has := func(attr cuda.DeviceAttribute) int {
		v, err := f.drv.DeviceGetAttribute(attr, f.dev)
		f.NoError(err)
		return v
	}
	f.Equal(1, has(cuda.DeviceAttributeHandleTypePosixFD))
	fabric := has(cuda.DeviceAttributeHandleTypeFabricSupported)
	pools := cuda.HandleType(has(cuda.DeviceAttributeMempoolSupportedHandles))
	f.Equal(cuda.HandleTypePosixFD, pools&cuda.HandleTypePosixFD)
	f.observed("fabric handles announced: %d, pool handle types: %v", fabric, pools)
	if fabric == 0 {
		f.t.Skip("found a device without fabric handles, need one with them")
	}
	_, err := f.drv.MemCreate(f.ctx, block, cuda.AllocationProp{Device: f.dev, HandleTypes: cuda.HandleTypeFabric})
	f.refused(cuda.ErrorNotPermitted, err)

	// A pool for fabric handles is made, and its pointers promise them.
	pool := f.pool(cuda.HandleTypeFabric)
	ptr := f.poolAlloc(pool, block)
	f.EqualValues(cuda.HandleTypeFabric, f.attribute(cuda.PointerAttributeAllowedHandleTypes, ptr))
	f.poolFree(ptr)
	f.NoError(f.drv.MemPoolDestroy(f.ctx, pool))
}

// testF24: a descriptor imported twice gives two handles, each released once.
func testF24(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	v := p.vmmExport(f, size, 1)
	fd := p.fetchFD(v.fd)
	first, err := f.drv.MemImportPosixFD(f.ctx, fd)
	f.NoError(err)
	second, err := f.drv.MemImportPosixFD(f.ctx, fd)
	f.NoError(err)
	f.NoError(unix.Close(fd))
	f.NotEqual(first, second)

	f.NoError(f.drv.MemRelease(f.ctx, first))
	f.refused(cuda.ErrorInvalidValue, f.drv.MemRelease(f.ctx, first), "second release of the first")
	ptr, err := mapRange(f.drv, f.ctx, f.dev, size, second)
	f.NoError(err, "the second handle lives")
	f.verify(ptr, size, 1)
	f.NoError(f.drv.MemRelease(f.ctx, second))
	f.refused(cuda.ErrorInvalidValue, f.drv.MemRelease(f.ctx, second), "second release of the second")

	p.drop(f, v, size)
	f.missing(base, size, "only the mapping is left")
	f.NoError(unmapRange(f.drv, f.ctx, ptr, size))
	f.missing(base, 0, "in the end")
}
