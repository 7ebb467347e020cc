package drivertest

import "github.com/gpurma/gpurma/cuda"

func (f *fixture) stream(flags uint32) cuda.Stream {
	f.t.Helper()
	s, err := f.drv.StreamCreate(f.ctx, flags)
	f.NoError(err)
	f.NotZero(s)
	return s
}

func (f *fixture) event() cuda.Event {
	f.t.Helper()
	e, err := f.drv.EventCreate(f.ctx, cuda.EventDisableTiming)
	f.NoError(err)
	f.NotZero(e)
	return e
}

func testStreams(f *fixture) {
	_, err := f.drv.StreamCreate(f.ctx, 0xff00)
	f.refused(cuda.ErrorInvalidValue, err, "unknown flags")
	a, b := f.stream(cuda.StreamDefault), f.stream(cuda.StreamNonBlocking)
	f.NotEqual(a, b)
	for _, s := range []cuda.Stream{a, b, 0} {
		f.NoError(f.drv.StreamQuery(f.ctx, s), "nothing submitted")
		f.NoError(f.drv.StreamSynchronize(f.ctx, s))
	}
	f.NoError(f.drv.StreamDestroy(f.ctx, a))
	f.NoError(f.drv.StreamDestroy(f.ctx, b))

	// A query answers ErrorNotReady while copies run; a wait ends that.
	size := f.opts.CopySize
	src, dst := f.filled(size, 1), f.alloc(size)
	f.underLoad("no query came while copies were in flight", func(copies int) bool {
		f.NoError(f.drv.MemsetD8(f.ctx, dst, 0, size))
		l, err := startLoad(f.drv, f.ctx, dst, src, size, copies)
		f.NoError(err)
		query := f.drv.StreamQuery(f.ctx, l.stream)
		if query != nil {
			f.refused(cuda.ErrorNotReady, query)
		}
		f.NoError(f.drv.StreamSynchronize(f.ctx, l.stream))
		f.NoError(f.drv.StreamQuery(f.ctx, l.stream))
		f.NoError(l.close())
		f.verify(dst, size, 1)
		return query != nil
	})

	// CtxSynchronize waits for every stream.
	l, err := startLoad(f.drv, f.ctx, dst, src, size, f.opts.Copies)
	f.NoError(err)
	f.NoError(f.drv.CtxSynchronize(f.ctx))
	f.NoError(f.drv.StreamQuery(f.ctx, l.stream), "after CtxSynchronize")

	// Destroying a stream with work leaves the work to be done.
	f.fill(src, size, 2)
	for range f.opts.Copies {
		f.NoError(f.drv.MemcpyDtoDAsync(f.ctx, dst, src, size, l.stream))
	}
	f.NoError(f.drv.EventRecord(f.ctx, l.event, l.stream))
	f.NoError(f.drv.StreamDestroy(f.ctx, l.stream))
	f.NoError(f.drv.EventSynchronize(f.ctx, l.event))
	f.verify(dst, size, 2)
	f.NoError(f.drv.EventDestroy(f.ctx, l.event))
	f.free(src)
	f.free(dst)
}

func testEvents(f *fixture) {
	_, err := f.drv.EventCreate(f.ctx, 0xff00)
	f.refused(cuda.ErrorInvalidValue, err, "unknown flags")
	timed, err := f.drv.EventCreate(f.ctx, cuda.EventDefault)
	f.NoError(err)
	f.NoError(f.drv.EventDestroy(f.ctx, timed))

	e := f.event()
	f.NoError(f.drv.EventQuery(f.ctx, e), "never recorded")
	f.NoError(f.drv.EventSynchronize(f.ctx, e), "never recorded")
	f.NoError(f.drv.EventRecord(f.ctx, e, 0))
	f.NoError(f.drv.EventSynchronize(f.ctx, e))
	f.NoError(f.drv.EventQuery(f.ctx, e), "waited for")

	// Recorded again behind copies it is pending again; a wait for it waits for
	// them.
	size := f.opts.CopySize
	src, dst := f.filled(size, 1), f.alloc(size)
	f.underLoad("no query came while copies were in flight", func(copies int) bool {
		f.NoError(f.drv.MemsetD8(f.ctx, dst, 0, size))
		l, err := startLoad(f.drv, f.ctx, dst, src, size, copies)
		f.NoError(err)
		f.NoError(f.drv.EventRecord(f.ctx, e, l.stream))
		query := f.drv.EventQuery(f.ctx, e)
		if query != nil {
			f.refused(cuda.ErrorNotReady, query)
		}
		f.NoError(f.drv.EventSynchronize(f.ctx, e))
		f.NoError(f.drv.EventQuery(f.ctx, e))
		f.NoError(f.drv.StreamQuery(f.ctx, l.stream), "the stream before the event")
		f.NoError(l.close())
		f.verify(dst, size, 1)
		return query != nil
	})
	f.NoError(f.drv.EventDestroy(f.ctx, e))
	f.free(src)
	f.free(dst)
}

// testStreamOrder: work of one stream is done in its order, an event carries
// the order to another, and the NULL stream and blocking streams wait for each
// other.
func testStreamOrder(f *fixture) {
	size := f.opts.CopySize
	src, busy := f.alloc(size), f.alloc(size)
	x, y := f.alloc(block), f.alloc(block)
	// behind submits copies to s and, behind them, a memset of x.
	behind := func(s cuda.Stream, value byte) {
		f.t.Helper()
		for range f.opts.Copies {
			f.NoError(f.drv.MemcpyDtoDAsync(f.ctx, busy, src, size, s))
		}
		f.NoError(f.drv.MemsetD8Async(f.ctx, x, value, block, s))
	}
	holds := func(ptr cuda.DevicePtr, value byte, when string) {
		f.t.Helper()
		want := make([]byte, block)
		for i := range want {
			want[i] = value
		}
		f.same(want, f.bytesAt(ptr, block), when)
	}

	s, other := f.stream(cuda.StreamNonBlocking), f.stream(cuda.StreamNonBlocking)
	behind(s, 1)
	f.NoError(f.drv.MemcpyDtoDAsync(f.ctx, y, x, block, s))
	f.NoError(f.drv.MemsetD8Async(f.ctx, x, 2, block, s))
	f.NoError(f.drv.StreamSynchronize(f.ctx, s))
	holds(y, 1, "copied between two memsets of its source")
	holds(x, 2, "the last memset")

	e := f.event()
	behind(s, 3)
	f.NoError(f.drv.EventRecord(f.ctx, e, s))
	f.NoError(f.drv.StreamWaitEvent(f.ctx, other, e))
	f.NoError(f.drv.MemcpyDtoDAsync(f.ctx, y, x, block, other))
	f.NoError(f.drv.StreamSynchronize(f.ctx, other))
	holds(y, 3, "copied by a stream that waits for the event")

	// The wait is for what was recorded when it was submitted.
	f.NoError(f.drv.StreamSynchronize(f.ctx, s))
	f.NoError(f.drv.StreamWaitEvent(f.ctx, other, e))
	behind(s, 4)
	f.NoError(f.drv.EventRecord(f.ctx, e, s))
	f.NoError(f.drv.StreamSynchronize(f.ctx, other), "not kept by the later record")
	f.NoError(f.drv.EventSynchronize(f.ctx, e))

	blocking := f.stream(cuda.StreamDefault)
	behind(blocking, 5)
	holds(x, 5, "NULL stream after a blocking stream")
	behind(0, 6)
	f.NoError(f.drv.MemcpyDtoDAsync(f.ctx, y, x, block, blocking))
	f.NoError(f.drv.StreamSynchronize(f.ctx, blocking))
	holds(y, 6, "blocking stream after the NULL stream")

	f.NoError(f.drv.EventDestroy(f.ctx, e))
	for _, stream := range []cuda.Stream{s, other, blocking} {
		f.NoError(f.drv.StreamDestroy(f.ctx, stream))
	}
	for _, ptr := range []cuda.DevicePtr{src, busy, x, y} {
		f.free(ptr)
	}
}
