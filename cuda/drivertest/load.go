package drivertest

import (
	"errors"

	"github.com/gpurma/gpurma/cuda"
)

// load keeps a device busy: copies on a stream of its own, an event before the
// last of them. So whoever has waited for the copies has the event behind it,
// though not necessarily what the stream still has to do after a copy.
type load struct {
	drv    cuda.Driver
	ctx    cuda.Context
	stream cuda.Stream
	event  cuda.Event
}

// startLoad submits count copies of size bytes from src to dst and returns
// while they run.
func startLoad(drv cuda.Driver, ctx cuda.Context, dst, src cuda.DevicePtr, size uint64, count int) (_ *load, err error) {
	l := &load{drv: drv, ctx: ctx}
	if l.stream, err = drv.StreamCreate(ctx, cuda.StreamNonBlocking); err != nil {
		return nil, err
	}
	if l.event, err = drv.EventCreate(ctx, cuda.EventDisableTiming); err != nil {
		return nil, errors.Join(err, drv.StreamDestroy(ctx, l.stream))
	}
	for i := range count {
		if i == count-1 {
			err = drv.EventRecord(ctx, l.event, l.stream)
		}
		if err == nil {
			err = drv.MemcpyDtoDAsync(ctx, dst, src, size, l.stream)
		}
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

// running tells whether copies before the last one are still to be done.
func (l *load) running() (bool, error) {
	err := l.drv.EventQuery(l.ctx, l.event)
	if errors.Is(err, cuda.ErrorNotReady) {
		return true, nil
	}
	return false, err
}

// close waits for the load and destroys its stream and event.
func (l *load) close() error {
	return errors.Join(
		l.drv.StreamSynchronize(l.ctx, l.stream),
		l.drv.EventDestroy(l.ctx, l.event),
		l.drv.StreamDestroy(l.ctx, l.stream))
}
