package softgpu

import (
	"sort"
	"sync"
	"sync/atomic"

	"github.com/gpurma/gpurma/cuda"
)

// kind is how an allocation came to be.
type kind uint8

const (
	native       kind = iota // MemAlloc
	imported                 // IpcOpenMemHandle
	managed                  // MemAllocManaged
	virtual                  // MemMap
	pooled                   // MemAllocFromPoolAsync
	pooledImport             // MemPoolImportPointer
)

// allocation is what an address names: memory of this process, or another one's
// that it has opened or mapped. Fields without a note never change.
type allocation struct {
	base     cuda.DevicePtr
	size     uint64
	kind     kind
	region   *region
	ctx      *context // nil for virtual and pooled memory
	device   cuda.Device
	bufferID uint64

	syncMemops atomic.Bool
	closing    bool           // under Driver.mu: no new work may use it
	inflight   sync.WaitGroup // work that uses it; begun under Driver.mu while not closing
	working    atomic.Int64   // the same as a figure

	gone  bool     // under the node lock: reclaimed
	id    uint64   // native, exported pooled: its number in the table
	slots []uint32 // and where it stands there
	from  *importOf
	mem   *physical // virtual
	pool  *pool     // pooled, pooledImport
}

// region is a run of pages backed by blocks of one device. It holds one
// allocation, or, where small is not nil, several in one page.
type region struct {
	pages  pages
	device int // of the node
	blocks []uint32
	alloc  *allocation
	small  []*allocation // sorted by address
	// access is what a device may do here, for virtual memory and that of
	// pools; nil elsewhere, where every context may do everything. Under
	// Driver.mu.
	access map[cuda.Device]cuda.AccessFlags
}

func (r *region) base() cuda.DevicePtr { return cuda.DevicePtr(r.pages.first * BlockSize) }

func (r *region) extents() (es []extent) {
	for _, b := range r.blocks {
		es = appendBlock(es, b)
	}
	return es
}

// pool returns the pool whose memory the region is; nil for none.
func (r *region) pool() *pool {
	switch {
	case r.alloc != nil:
		return r.alloc.pool
	case len(r.small) > 0:
		return r.small[0].pool
	}
	return nil
}

func blockList(es []extent) []uint32 {
	list := make([]uint32, 0, blockCount(es))
	for _, e := range es {
		for i := range e.count {
			list = append(list, e.first+i)
		}
	}
	return list
}

// begin and end surround work that uses the allocation.
func (a *allocation) begin() {
	a.inflight.Add(1)
	a.working.Add(1)
}

func (a *allocation) end() {
	a.working.Add(-1)
	a.inflight.Done()
}

// segment is a piece of a device file.
type segment struct {
	d      *deviceFile
	off, n uint64
}

func (s segment) bytes() []byte { return s.d.mem[s.off : s.off+s.n : s.off+s.n] }

// pageTable translates addresses.
type pageTable map[uint64]*region

func (pt pageTable) insert(r *region) {
	for i := range r.pages.count {
		pt[r.pages.first+i] = r
	}
}

func (pt pageTable) remove(r *region) {
	for i := range r.pages.count {
		delete(pt, r.pages.first+i)
	}
}

// find returns the allocation that ptr lies in, nil for none.
func (pt pageTable) find(ptr cuda.DevicePtr) *allocation {
	r := pt[uint64(ptr)/BlockSize]
	if r == nil {
		return nil
	}
	a := r.alloc
	if r.small != nil {
		i := sort.Search(len(r.small), func(i int) bool { return r.small[i].base > ptr })
		if i == 0 {
			return nil
		}
		a = r.small[i-1]
	}
	if a == nil || a.closing || ptr < a.base || uint64(ptr-a.base) >= a.size {
		return nil
	}
	return a
}

// span is memory that an operation works on.
type span struct {
	segments []segment
	allocs   []*allocation
}

// span translates n bytes at ptr for work of the given device. The bytes lie in
// one allocation, or in virtual memory mapped without a gap; nil where they do
// not, or where the device may not do that with them.
func (pt pageTable) span(devices []*deviceFile, dev cuda.Device, ptr cuda.DevicePtr, n uint64, write bool) *span {
	s := &span{}
	for n > 0 {
		a := pt.find(ptr)
		if a == nil || len(s.allocs) > 0 && a.kind != virtual {
			return nil
		}
		if a.region.access != nil {
			want := cuda.AccessRead
			if write {
				want = cuda.AccessReadWrite
			}
			if a.region.access[dev]&want != want {
				return nil
			}
		}
		part := min(n, a.size-uint64(ptr-a.base))
		if part < n && a.kind != virtual {
			return nil
		}
		s.allocs = append(s.allocs, a)
		s.segments = a.region.appendSegments(s.segments, devices, ptr, part)
		ptr, n = ptr.Add(part), n-part
	}
	return s
}

func (r *region) appendSegments(out []segment, devices []*deviceFile, ptr cuda.DevicePtr, n uint64) []segment {
	d := devices[r.device]
	at := uint64(ptr - r.base())
	for n > 0 {
		page, in := at/BlockSize, at%BlockSize
		part := min(n, BlockSize-in)
		off := uint64(r.blocks[page])*BlockSize + in
		if k := len(out); k > 0 && out[k-1].d == d && out[k-1].off+out[k-1].n == off {
			out[k-1].n += part
		} else {
			out = append(out, segment{d, off, part})
		}
		at, n = at+part, n-part
	}
	return out
}
