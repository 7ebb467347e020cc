package drivertest

import (
	"bytes"
	"runtime"

	"github.com/google/go-cmp/cmp"

	"github.com/gpurma/gpurma/cuda"
)

// bytesAt reads n bytes by the synchronous copy.
func (f *fixture) bytesAt(ptr cuda.DevicePtr, n int) []byte {
	f.t.Helper()
	buf := make([]byte, n)
	f.NoError(f.drv.MemcpyDtoH(f.ctx, buf, ptr))
	return buf
}

func (f *fixture) same(want, got []byte, what string) {
	f.t.Helper()
	if !bytes.Equal(want, got) {
		at := 0
		for at < len(want) && at < len(got) && want[at] == got[at] {
			at++
		}
		f.Fail(what, "first bad offset %d: %s", at, cmp.Diff(window(want, at), window(got, at)))
	}
}

func window(b []byte, at int) []byte { return b[min(at, len(b)):min(at+16, len(b))] }

func testCopies(f *fixture) {
	const room = 3 * block
	src, dst := f.alloc(room), f.alloc(room)
	for _, n := range []int{1, 7, 4096, 4097, block + 3} {
		for _, off := range []uint64{0, 1, 4093, block - 2} {
			f.copyRoundTrip(dst, src, n, off, uint64(n))
		}
	}

	// A synchronous copy from host memory lets go of it on return.
	buf, want := make([]byte, block), make([]byte, block)
	pattern(want, 3, 0)
	copy(buf, want)
	f.NoError(f.drv.MemcpyHtoD(f.ctx, src, buf))
	clear(buf)
	f.same(want, f.bytesAt(src, block), "source overwritten after the call")

	for name, err := range map[string]error{
		"MemsetD8":        f.drv.MemsetD8(f.ctx, src, 1, 0),
		"MemcpyHtoD":      f.drv.MemcpyHtoD(f.ctx, src, nil),
		"MemcpyDtoH":      f.drv.MemcpyDtoH(f.ctx, nil, src),
		"MemcpyDtoD":      f.drv.MemcpyDtoD(f.ctx, dst, src, 0),
		"MemsetD8Async":   f.drv.MemsetD8Async(f.ctx, src, 1, 0, 0),
		"MemcpyHtoDAsync": f.drv.MemcpyHtoDAsync(f.ctx, src, nil, 0),
		"MemcpyDtoHAsync": f.drv.MemcpyDtoHAsync(f.ctx, nil, src, 0),
		"MemcpyDtoDAsync": f.drv.MemcpyDtoDAsync(f.ctx, dst, src, 0, 0),
	} {
		f.NoError(err, "%s of no bytes", name)
	}
	f.same(want, f.bytesAt(src, block), "untouched by copies of no bytes")
	f.free(src)
	f.free(dst)
}

// copyRoundTrip takes n bytes through every kind of copy, between guard bytes.
func (f *fixture) copyRoundTrip(dst, src cuda.DevicePtr, n int, off, seed uint64) {
	f.t.Helper()
	const guard = 0xa5
	want := make([]byte, n)
	pattern(want, seed, off)
	around := bytes.Repeat([]byte{guard}, n+2)
	copy(around[1:], want)

	check := func(how string, write func(to cuda.DevicePtr) error) {
		f.t.Helper()
		f.NoError(f.drv.MemsetD8(f.ctx, dst.Add(off), guard, uint64(n)+2))
		f.NoError(write(dst.Add(off + 1)))
		f.same(around, f.bytesAt(dst.Add(off), n+2), how)
	}
	check("MemcpyHtoD", func(to cuda.DevicePtr) error { return f.drv.MemcpyHtoD(f.ctx, to, want) })
	f.NoError(f.drv.MemcpyHtoD(f.ctx, src.Add(off), want))
	check("MemcpyDtoD", func(to cuda.DevicePtr) error {
		return f.drv.MemcpyDtoD(f.ctx, to, src.Add(off), uint64(n))
	})

	var pin runtime.Pinner
	defer pin.Unpin()
	back := make([]byte, n)
	pin.Pin(&want[0])
	pin.Pin(&back[0])
	stream, err := f.drv.StreamCreate(f.ctx, cuda.StreamDefault)
	f.NoError(err)
	check("MemcpyHtoDAsync", func(to cuda.DevicePtr) error {
		return f.drv.MemcpyHtoDAsync(f.ctx, to, want, stream)
	})
	check("MemcpyDtoDAsync", func(to cuda.DevicePtr) error {
		return f.drv.MemcpyDtoDAsync(f.ctx, to, src.Add(off), uint64(n), stream)
	})
	f.NoError(f.drv.MemcpyDtoHAsync(f.ctx, back, src.Add(off), stream))
	f.NoError(f.drv.StreamSynchronize(f.ctx, stream))
	f.same(want, back, "MemcpyDtoHAsync")

	for i := range want {
		around[1+i] = 0x5a
	}
	check("MemsetD8", func(to cuda.DevicePtr) error { return f.drv.MemsetD8(f.ctx, to, 0x5a, uint64(n)) })
	check("MemsetD8Async", func(to cuda.DevicePtr) error {
		return f.drv.MemsetD8Async(f.ctx, to, 0x5a, uint64(n), stream)
	})
	f.NoError(f.drv.StreamDestroy(f.ctx, stream))
}

// testCopiesRefused: a copy that leaves its allocation, or has an end that is
// no memory, is refused and moves nothing.
func testCopiesRefused(f *fixture) {
	ptr, other := f.filled(block, 1), f.filled(block, 2)
	long := make([]byte, block+1)
	last := ptr.Add(block - 16)
	for name, err := range map[string]error{
		"HtoD one byte too long":       f.drv.MemcpyHtoD(f.ctx, ptr, long),
		"HtoD over the end":            f.drv.MemcpyHtoD(f.ctx, last, long[:32]),
		"DtoH one byte too long":       f.drv.MemcpyDtoH(f.ctx, long, ptr),
		"DtoH over the end":            f.drv.MemcpyDtoH(f.ctx, long[:32], last),
		"DtoD from over the end":       f.drv.MemcpyDtoD(f.ctx, other, last, 32),
		"DtoD to over the end":         f.drv.MemcpyDtoD(f.ctx, last, other, 32),
		"DtoD, a size beyond all":      f.drv.MemcpyDtoD(f.ctx, ptr, other, 1<<63),
		"DtoD from no memory":          f.drv.MemcpyDtoD(f.ctx, ptr, unknownPtr, 32),
		"DtoD to no memory":            f.drv.MemcpyDtoD(f.ctx, unknownPtr, ptr, 32),
		"HtoD to no memory":            f.drv.MemcpyHtoD(f.ctx, unknownPtr, long[:32]),
		"DtoH from no memory":          f.drv.MemcpyDtoH(f.ctx, long[:32], unknownPtr),
		"DtoDAsync from over the end":  f.drv.MemcpyDtoDAsync(f.ctx, other, last, 32, 0),
		"DtoDAsync to over the end":    f.drv.MemcpyDtoDAsync(f.ctx, last, other, 32, 0),
		"DtoDAsync, no memory at last": f.drv.MemcpyDtoDAsync(f.ctx, ptr, unknownPtr, 32, 0),
	} {
		f.refused(cuda.ErrorInvalidValue, err, name)
	}
	f.NoError(f.drv.CtxSynchronize(f.ctx), "the context goes on")
	f.verify(ptr, block, 1)
	f.verify(other, block, 2)
	f.free(ptr)
	f.free(other)
}

// testSyncMemops: copies and memsets of memory with the attribute are complete
// when they return.
func testSyncMemops(f *fixture) {
	size := f.opts.CopySize
	src, dst := f.filled(size, 1), f.alloc(size)
	f.NoError(f.drv.MemcpyDtoD(f.ctx, dst, src, size))
	f.observed("NULL stream after a plain copy has returned: %v", f.drv.StreamQuery(f.ctx, 0))
	f.NoError(f.drv.MemsetD8(f.ctx, dst, 1, size))
	f.observed("NULL stream after a plain memset has returned: %v", f.drv.StreamQuery(f.ctx, 0))

	f.Zero(f.attribute(cuda.PointerAttributeSyncMemops, dst))
	f.NoError(f.drv.PointerSetAttribute(cuda.PointerAttributeSyncMemops, dst.Add(4096), 1))
	f.EqualValues(1, f.attribute(cuda.PointerAttributeSyncMemops, dst), "set for the whole allocation")
	for range 3 {
		f.NoError(f.drv.MemcpyDtoD(f.ctx, dst, src, size))
		f.NoError(f.drv.StreamQuery(f.ctx, 0), "after a copy")
		f.NoError(f.drv.MemsetD8(f.ctx, dst, 1, size))
		f.NoError(f.drv.StreamQuery(f.ctx, 0), "after a memset")
	}
	f.refusedSomehow("set the attribute of no memory", f.drv.PointerSetAttribute(cuda.PointerAttributeSyncMemops, unknownPtr, 1))
	f.refusedSomehow("set another attribute", f.drv.PointerSetAttribute(cuda.PointerAttributeBufferID, dst, 1))
	f.free(src)
	f.free(dst)
}
