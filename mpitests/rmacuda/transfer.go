package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/devmem"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
	"github.com/gpurma/gpurma/mpitests/internal/pattern"
	"github.com/gpurma/gpurma/ucxlite"
)

// transfer is one case on one rank.
type transfer struct {
	testCase
	*scene
	rank *harness.Rank

	buf       *buffer
	memory    *ucxlite.Memory // on the rank that is the target
	allocated int             // the thread that this rank's memory was allocated on
}

// offer is what the target sends.
type offer struct {
	Key []byte
	// Shareable says that the driver exports the target's memory: then the
	// transfer has to take the ipc lane.
	Shareable bool
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
	var mine, theirs offer
	err = onThread(t.drv, t.owner, func(th *thread) (err error) {
		t.allocated = th.id
		mine, err = t.prepare(th)
		return err
	})
	if errors.Is(err, devmem.ErrAbsent) {
		return harness.Skipf("%v", err)
	}
	if err != nil {
		return err
	}
	message, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	if message, err = t.rank.Exchange(message); err != nil {
		return err
	}
	if err := json.Unmarshal(message, &theirs); err != nil {
		return err
	}
	if t.initiates() {
		if err := t.move(ctx, theirs); err != nil {
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
func (t *transfer) prepare(th *thread) (o offer, err error) {
	alloc := t.recv
	if t.sends() {
		alloc = t.send
	}
	if t.buf, err = newBuffer(t.drv, t.arrangement, alloc, t.size, t.seedOf(t.sends())); err != nil {
		return o, err
	}
	if t.initiates() {
		return o, nil
	}
	if o.Shareable, err = t.buf.block.Exportable(); err != nil {
		return o, err
	}
	err = th.call("MemMap", func() (err error) {
		t.memory, err = t.lib.MemMap(t.owner, t.buf.ptr(), t.size, ucxlite.MemMapOptions{})
		return err
	})
	if err != nil {
		return o, err
	}
	err = th.call("PackRkey", func() (err error) {
		o.Key, err = t.memory.PackRkey()
		return err
	})
	return o, err
}

// move runs the operation on the initiator, in the situation's communicating
// thread.
func (t *transfer) move(ctx context.Context, o offer) error {
	start := onThread
	if t.otherThread {
		start = t.onOtherThread
	}
	err := start(t.drv, t.current, func(th *thread) error {
		var rkey *ucxlite.Rkey
		err := th.call("UnpackRkey", func() (err error) {
			rkey, err = t.endpoint.UnpackRkey(o.Key, ucxlite.UnpackOptions{})
			return err
		})
		if err != nil {
			return err
		}
		err = t.operate(ctx, th, rkey, o.Shareable)
		return errors.Join(err, th.call("Rkey.Destroy", rkey.Destroy))
	})
	if n := t.lib.Cache().Stats().Live; err == nil && n != 0 {
		err = fmt.Errorf("%d mappings are still open after the key was destroyed", n)
	}
	return err
}

// onOtherThread runs f on a thread that is not the one that allocated.
func (t *transfer) onOtherThread(drv cuda.Driver, current cuda.Context, f func(*thread) error) error {
	return onThreadOtherThan(t.allocated, drv, current, f)
}

// operate puts or gets and checks that the bytes took the lane that they should.
func (t *transfer) operate(ctx context.Context, th *thread, rkey *ucxlite.Rkey, shareable bool) error {
	local := ucxlite.DeviceBuffer(t.buf.ptr(), t.size)
	post, what := t.endpoint.Put, "Put"
	if t.op == opGet {
		post, what = t.endpoint.Get, "Get"
	}
	t.rank.Notef("%s", t.endpoint.Explain(local, rkey))
	before := t.endpoint.Stats()
	var req *ucxlite.Request
	err := th.call(what, func() (err error) {
		req, err = post(local, rkey.Address(), rkey, ucxlite.OpOptions{})
		return err
	})
	if err != nil {
		return err
	}
	err = th.call("Flush", func() error { return t.endpoint.Flush(ctx) })
	err = errors.Join(err, th.call("Request.Wait", func() error { return req.Wait(ctx) }))
	after := t.endpoint.Stats()
	want, moved := "staged", after.Staged.Bytes-before.Staged.Bytes
	if shareable {
		want, moved = "ipc", after.IPC.Bytes-before.IPC.Bytes
	}
	if err == nil && moved != t.size {
		err = fmt.Errorf("%d bytes took the %s lane, want all %d: %s", moved, want, t.size, t.endpoint.Explain(local, rkey))
	}
	return err
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
