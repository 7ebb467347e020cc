package ucxlite

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite/internal/lane"
)

// OpOptions are what an operation may be told; the zero value works.
type OpOptions struct {
	// Callback runs once, after the operation is complete, in Progress, Flush
	// or Wait.
	Callback func(r *Request, err error)
}

// Put writes buf to the peer's memory at the exporter's address raddr. The
// buffer must not be written until the request is complete; then the data is in
// the peer's memory. The range is checked before the driver is called:
// ErrOutOfRange. While the endpoint connects the operation is queued.
func (e *Endpoint) Put(buf Buffer, raddr uint64, key *Rkey, opts OpOptions) (*Request, error) {
	return e.post(opPut, buf, raddr, key, opts)
}

// Get reads the peer's memory at the exporter's address raddr into buf, which
// must not be touched until the request is complete.
func (e *Endpoint) Get(buf Buffer, raddr uint64, key *Rkey, opts OpOptions) (*Request, error) {
	return e.post(opGet, buf, raddr, key, opts)
}

func (e *Endpoint) post(op opKind, buf Buffer, raddr uint64, key *Rkey, opts OpOptions) (*Request, error) {
	r := &Request{e: e, op: op, buf: buf, raddr: raddr, key: key, callback: opts.Callback, done: make(chan struct{})}
	state, err := e.admit(r)
	if err != nil {
		return nil, fmt.Errorf("%s of %s to %s: %w", op, buf, e.peer, err)
	}
	after, err := e.enqueue(r)
	if err != nil {
		return nil, fmt.Errorf("%s of %s to %s: %w", op, buf, e.peer, err)
	}
	if buf.Len() == 0 {
		r.complete(nil)
		return r, nil
	}
	// A copy of device memory on a connected endpoint starts here. All else has
	// to wait for something and does so in the background: the wire-up, a
	// descriptor from the peer, host memory, the staged lane, a fence.
	if state == EndpointConnected && !buf.onHost() && !key.needsPeer() {
		started, err := r.startDevice(after)
		if err != nil {
			r.complete(err)
			return r, nil
		}
		if started {
			return r, nil
		}
	}
	go r.run(after)
	return r, nil
}

// admit checks an operation's arguments and the state of key and endpoint.
func (e *Endpoint) admit(r *Request) (EndpointState, error) {
	switch {
	case r.key == nil:
		return 0, fmt.Errorf("%w: no key", ErrInvalidParam)
	case r.key.e != e:
		return 0, fmt.Errorf("%w: the key is of another endpoint", ErrInvalidParam)
	}
	if err := r.buf.check(); err != nil {
		return 0, err
	}
	state, err := e.status()
	if err == nil {
		err = r.key.live()
	}
	if err == nil {
		err = r.key.check(r.raddr, r.buf.Len())
	}
	return state, err
}

// enqueue makes r outstanding and returns what it must come after.
func (e *Endpoint) enqueue(r *Request) (after []*Request, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrEndpointClosed
	}
	e.outstanding[r] = struct{}{}
	kept := e.fence[:0]
	for _, f := range e.fence {
		if _, pending := e.outstanding[f]; pending {
			kept = append(kept, f)
		}
	}
	clear(e.fence[len(kept):])
	e.fence = kept
	return append(after, kept...), nil
}

// needsPeer tells whether mapping the key may have to ask the peer.
func (k *Rkey) needsPeer() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.first.used && k.key.Kind() == cudaipc.KindPosixFD
}

// startDevice starts a device copy on the ipc lane without blocking on anything
// but the driver. It is false where the operation must go another way.
func (r *Request) startDevice(after []*Request) (started bool, err error) {
	c := r.e.w.c
	dev, own, err := c.devices.of(c.drv, r.buf.ptr)
	if err != nil {
		return false, fmt.Errorf("%w: local buffer: %w", ErrInvalidParam, err)
	}
	c.devices.saw(dev, own)
	if r.e.choose(r.key, dev).Lane != lane.IPC {
		return false, nil
	}
	if err := r.key.pin(c.life, dev, own, &r.pin); err != nil {
		return false, r.e.learn(r.key, dev, err)
	}
	engine, err := r.e.w.engine(r.pin.Context())
	if err != nil {
		return false, err
	}
	for _, f := range after {
		if f.engine.Load() != engine {
			if done, _ := f.Test(); !done {
				return false, nil
			}
		}
	}
	r.e.count(lane.IPC, r)
	err = engine.Submit(r.copyDevice, r.complete)
	if err == nil {
		r.engine.Store(engine)
	}
	return err == nil, err
}

func (r *Request) copyDevice(ctx cuda.Context, s cuda.Stream) error {
	remote := r.key.translate(&r.pin, r.raddr)
	if r.op == opPut {
		return r.e.w.c.drv.MemcpyDtoDAsync(ctx, remote, r.buf.ptr, r.buf.n, s)
	}
	return r.e.w.c.drv.MemcpyDtoDAsync(ctx, r.buf.ptr, remote, r.buf.n, s)
}

// run is the rest of an operation that has to wait, on a goroutine of its own.
func (r *Request) run(after []*Request) {
	if err := r.e.WaitConnected(context.Background()); err != nil {
		r.complete(err)
		return
	}
	for _, f := range after {
		_ = f.await(context.Background()) // its error is its own
	}
	for {
		again, err := r.runLane()
		if again {
			continue
		}
		if err != nil {
			r.complete(err)
		}
		return
	}
}

// runLane goes one lane. again says that the lane turned out unusable and was
// noted as such. On nil, false the request completes by itself or has.
func (r *Request) runLane() (again bool, err error) {
	c := r.e.w.c
	dev, own := r.key.defaultDevice(), cuda.Context(0)
	if !r.buf.onHost() {
		if dev, own, err = c.devices.of(c.drv, r.buf.ptr); err != nil {
			return false, fmt.Errorf("%w: local buffer: %w", ErrInvalidParam, err)
		}
	}
	choice := r.e.choose(r.key, dev)
	switch choice.Lane {
	case lane.None:
		return false, fmt.Errorf("%w: %s", choice.Err, choice.Reason)
	case lane.Staged:
		r.e.count(lane.Staged, r)
		return false, r.stage()
	}
	if !r.pin.Held() {
		if err := r.key.pin(c.life, dev, own, &r.pin); err != nil {
			err = r.e.learn(r.key, dev, err)
			return err == nil, err
		}
	}
	r.e.count(lane.IPC, r)
	if r.buf.onHost() {
		return false, r.copyHost()
	}
	engine, err := r.e.w.engine(r.pin.Context())
	if err != nil {
		return false, err
	}
	if err := engine.Submit(r.copyDevice, r.complete); err != nil {
		return false, err
	}
	r.engine.Store(engine)
	return false, nil
}

// copyHost copies from or to host memory, which stays pinned meanwhile, and
// completes the request.
func (r *Request) copyHost() error {
	blocking, err := r.e.w.hostEngine(r.pin.Context())
	if err != nil {
		return err
	}
	var pinner runtime.Pinner
	pinner.Pin(&r.buf.host[0])
	err = blocking.Run(func(ctx cuda.Context, s cuda.Stream) error {
		remote := r.key.translate(&r.pin, r.raddr)
		if r.op == opPut {
			return r.e.w.c.drv.MemcpyHtoDAsync(ctx, remote, r.buf.host, s)
		}
		return r.e.w.c.drv.MemcpyDtoHAsync(ctx, r.buf.host, remote, s)
	})
	pinner.Unpin()
	r.complete(err)
	return nil
}

// learn takes a failed mapping as knowledge about the peer's handles. It
// returns nil where another lane may serve, else what the operation ends with.
func (e *Endpoint) learn(k *Rkey, dev cuda.Device, err error) error {
	mayStage := errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotShareable)
	if !mayStage || errors.Is(err, ErrStale) || e.Err() != nil { // stale is the key's matter, not the peer's
		return err
	}
	for _, h := range k.key.Handles { // the cache has tried them all
		e.w.c.reach.failed(reachKey{k.key.Identity, dev, h.Kind}, err.Error())
	}
	if e.ipcOnly {
		return err
	}
	return nil
}
