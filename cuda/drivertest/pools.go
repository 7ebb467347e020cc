package drivertest

import (
	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

var sharedPool = cuda.HandleTypePosixFD

func (f *fixture) pool(types cuda.HandleType) cuda.MemPool {
	f.t.Helper()
	pool, err := f.drv.MemPoolCreate(f.ctx, cuda.MemPoolProp{Device: f.dev, HandleTypes: types})
	f.NoError(err)
	f.NotZero(pool)
	return pool
}

func (f *fixture) poolAlloc(pool cuda.MemPool, size uint64) cuda.DevicePtr {
	f.t.Helper()
	ptr, err := poolAlloc(f.drv, f.ctx, pool, size)
	f.NoError(err)
	f.NotZero(ptr)
	return ptr
}

func (f *fixture) poolFree(ptr cuda.DevicePtr) {
	f.t.Helper()
	f.NoError(poolFree(f.drv, f.ctx, ptr))
}

// poolExport is an allocation of an exported pool of the peer.
type poolExport struct {
	pool cuda.MemPool
	fd   int // its number in the peer
	ptr  cuda.DevicePtr
	data cuda.MemPoolPtrExportData
}

func (p *peer) poolExport(f *fixture, size, seed uint64) poolExport {
	f.t.Helper()
	var e poolExport
	e.pool = p.must(f, request{Op: "poolCreate", Types: sharedPool}).Pool
	e.fd = p.must(f, request{Op: "poolExportFD", Pool: e.pool}).FD
	e.ptr, e.data = p.poolAlloc(f, e.pool, size, seed)
	return e
}

// poolAlloc allocates from an exported pool of the peer, fills and exports.
func (p *peer) poolAlloc(f *fixture, pool cuda.MemPool, size, seed uint64) (cuda.DevicePtr, cuda.MemPoolPtrExportData) {
	f.t.Helper()
	ptr := p.must(f, request{Op: "poolAlloc", Pool: pool, Size: size}).Ptr
	p.fill(ptr, size, seed)
	return ptr, cuda.MemPoolPtrExportData(p.must(f, request{Op: "poolExport", Ptr: ptr}).Handle)
}

// importPool imports a pool by the number of its descriptor in the peer.
func (f *fixture) importPool(p *peer, fd int) cuda.MemPool {
	f.t.Helper()
	own := p.fetchFD(fd)
	pool, err := f.drv.MemPoolImportPosixFD(f.ctx, own)
	f.NoError(err)
	f.NoError(unix.Close(own), "the import left the descriptor to its owner")
	return pool
}

func (p *peer) must(f *fixture, r request) answer {
	f.t.Helper()
	a, err := p.do(r)
	f.NoError(err, r.Op)
	return a
}

// testF13: what an exported pool has allocated once returns when its owner
// destroys the pool, and not before.
func testF13(f *fixture) {
	size := f.opts.Size
	p, base := f.pair()
	e := p.poolExport(f, size, 1)
	f.missing(base, size, "allocated")
	pool := f.importPool(p, e.fd)
	ptr, err := f.drv.MemPoolImportPointer(f.ctx, pool, e.data)
	f.NoError(err)
	f.verify(ptr, size, 1)
	f.missing(base, size, "imported")

	p.must(f, request{Op: "poolFree", Ptr: e.ptr})
	f.missing(base, size, "freed by its owner")
	p.must(f, request{Op: "poolTrim", Pool: e.pool})
	f.missing(base, size, "trimmed by its owner")
	f.verify(ptr, size, 1)
	f.poolFree(ptr)
	f.NoError(f.drv.MemPoolDestroy(f.ctx, pool))
	f.missing(base, size, "freed and destroyed by the importer")
	p.must(f, request{Op: "poolTrim", Pool: e.pool})
	f.missing(base, size, "trimmed again")
	p.must(f, request{Op: "closeFD", FD: e.fd})
	p.must(f, request{Op: "poolDestroy", Pool: e.pool})
	f.missing(base, 0, "destroyed by its owner")
}
