package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
	"github.com/gpurma/gpurma/mpitests/internal/pattern"
	"github.com/gpurma/gpurma/ucxlite"
)

// transfer is one case on one rank.
type transfer struct {
	testCase
	*scene
	rank *harness.Rank

	buf    *buffer
	memory *ucxlite.Memory // on the rank that is the target
}

func (t *transfer) sends() bool     { return t.rank.Index() == t.sender }
func (t *transfer) initiates() bool { return t.rank.Index() == t.initiator() }

// seedOf is the seed of what a side's buffer is filled with at first.
func (t *transfer) seedOf(sender bool) uint64 {
	part := t.Name()
	if !sender {
		part += " before"
	}
	return pattern.Derive(t.rank.Seed, part)
}

// run moves the sender's bytes to the receiver and checks them, the guards of
// both buffers, the calling thread's current context after each call, and that
// the initiator has no mapping left.
func (t *transfer) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, t.cleanUp(ctx)) }()
	var key []byte
	err = onThread(t.drv, t.owner, false, func(th *thread) (err error) {
		key, err = t.prepare(th)
		return err
	})
	if errors.Is(err, cuda.ErrNotSupported) {
		return harness.Skipf("%v", err)
	}
	if err != nil {
		return err
	}
	peerKey, err := t.rank.Exchange(key)
	if err != nil {
		return err
	}
	if t.initiates() {
		if err := t.move(ctx, peerKey); err != nil {
			return err
		}
	}
	if err := t.rank.Barrier(); err != nil {
		return err
	}
	return t.verify()
}

// prepare allocates and fills this rank's buffer, and on the target maps it
// and packs its key.
func (t *transfer) prepare(th *thread) (key []byte, err error) {
	alloc := t.recv
	if t.sends() {
		alloc = t.send
	}
	if t.buf, err = newBuffer(t.drv, t.arrangement, alloc, t.size, t.seedOf(t.sends())); err != nil {
		return nil, err
	}
	if t.initiates() {
		return nil, nil
	}
	err = th.call("MemMap", func() (err error) {
		t.memory, err = t.lib.MemMap(t.owner, t.buf.ptr(), t.size, ucxlite.MemMapOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	err = th.call("PackRkey", func() (err error) {
		key, err = t.memory.PackRkey()
		return err
	})
	return key, err
}

// move runs the operation on the initiator, in the situation's communicating
// thread.
func (t *transfer) move(ctx context.Context, packed []byte) error {
	err := onThread(t.drv, t.current, t.otherThread, func(th *thread) error {
		var rkey *ucxlite.Rkey
		err := th.call("UnpackRkey", func() (err error) {
			rkey, err = t.endpoint.UnpackRkey(packed, ucxlite.UnpackOptions{})
			return err
		})
		if err != nil {
			return err
		}
		err = t.operate(ctx, th, rkey)
		return errors.Join(err, th.call("Rkey.Destroy", rkey.Destroy))
	})
	if n := t.lib.Cache().Stats().Live; err == nil && n != 0 {
		err = fmt.Errorf("%d mappings are still open after the key was destroyed", n)
	}
	return err
}

func (t *transfer) operate(ctx context.Context, th *thread, rkey *ucxlite.Rkey) error {
	local := ucxlite.DeviceBuffer(t.buf.ptr(), t.size)
	post, what := t.endpoint.Put, "Put"
	if t.op == opGet {
		post, what = t.endpoint.Get, "Get"
	}
	t.rank.Notef("%s", t.endpoint.Explain(local, rkey))
	var req *ucxlite.Request
	err := th.call(what, func() (err error) {
		req, err = post(local, rkey.Address(), rkey, ucxlite.OpOptions{})
		return err
	})
	if err != nil {
		return err
	}
	err = th.call("Flush", func() error { return t.endpoint.Flush(ctx) })
	return errors.Join(err, th.call("Request.Wait", func() error { return req.Wait(ctx) }))
}

// verify reads this rank's buffer back. The receiver expects the sender's
// bytes; the sender that its own are untouched.
func (t *transfer) verify() error {
	want, side := t.buf.payload(t.buf.image), "sender"
	if !t.sends() {
		want, side = make([]byte, t.size), "receiver"
		pattern.Fill(want, t.seedOf(true))
	}
	if err := t.buf.check(want); err != nil {
		return fmt.Errorf("%s's buffer: %w", side, err)
	}
	return nil
}

func (t *transfer) cleanUp(ctx context.Context) error {
	var errs []error
	if t.memory != nil {
		if err := t.memory.Unmap(ctx); err != nil {
			errs = append(errs, fmt.Errorf("unmap: %w", err))
		}
	}
	if err := t.buf.free(); err != nil {
		errs = append(errs, fmt.Errorf("free: %w", err))
	}
	return errors.Join(errs...)
}
