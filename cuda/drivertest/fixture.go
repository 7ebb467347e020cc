package drivertest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

// fixture is what a test starts from: the driver, its first device and that
// device's primary context, warmed up.
type fixture struct {
	*require.Assertions
	t       *testing.T
	open    Opener
	opts    Options
	drv     cuda.Driver
	peerEnv []string
	dev     cuda.Device
	ctx     cuda.Context
}

func newFixture(t *testing.T, open Opener, opts Options) *fixture {
	f := &fixture{Assertions: require.New(t), t: t, open: open, opts: opts}
	f.drv, f.peerEnv = open(t)
	var err error
	f.ctx, err = f.drv.DevicePrimaryCtxRetain(f.dev)
	f.NoError(err)
	t.Cleanup(func() {
		if err := f.drv.DevicePrimaryCtxRelease(f.dev); err != nil {
			t.Errorf("release primary context: %v", err)
		}
	})
	f.NoError(warmUp(f.drv, f.ctx, f.dev))
	return f
}

// warmUp uses each kind of call once, so that what a driver takes at its first
// use is taken before a baseline.
func warmUp(drv cuda.Driver, ctx cuda.Context, dev cuda.Device) error {
	a, err := drv.MemAlloc(ctx, 2*block)
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error { return fill(drv, ctx, a, 2*block, 1) },
		func() error { return drv.MemsetD8(ctx, a, 0, block) },
		func() error { return drv.MemcpyDtoD(ctx, a.Add(block), a, block) },
		func() error { return drv.CtxSynchronize(ctx) },
		func() error { return drv.MemcpyDtoH(ctx, make([]byte, 64), a) },
		func() error { _, err := drv.IpcGetMemHandle(ctx, a); return err },
		func() error {
			l, err := startLoad(drv, ctx, a.Add(block), a, block, 1)
			if err != nil {
				return err
			}
			return l.close()
		},
		func() error { return drv.MemFree(ctx, a) },
		func() error { return warmUpVMM(drv, ctx, dev) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func warmUpVMM(drv cuda.Driver, ctx cuda.Context, dev cuda.Device) error {
	mem, err := drv.MemCreate(ctx, block, cuda.AllocationProp{Device: dev, HandleTypes: cuda.HandleTypePosixFD})
	if err != nil {
		return err
	}
	ptr, err := mapRange(drv, ctx, dev, block, mem)
	if err != nil {
		return err
	}
	if err := unmapRange(drv, ctx, ptr, block); err != nil {
		return err
	}
	return drv.MemRelease(ctx, mem)
}

// pair starts a peer, opens a mapping in each direction once, and returns the
// peer and the baseline of free memory.
func (f *fixture) pair() (*peer, uint64) {
	f.t.Helper()
	p := startPeer(f.t, f.peerEnv)
	theirs := p.alloc(block)
	h, err := p.export(theirs)
	f.NoError(err)
	ptr := f.openHandle(h)
	f.NoError(f.drv.IpcCloseMemHandle(f.ctx, ptr))
	f.NoError(p.free(theirs))
	ours := f.alloc(block)
	ptr, err = p.open(f.handle(ours))
	f.NoError(err)
	f.NoError(p.close(ptr))
	f.free(ours)
	return p, f.freeBytes()
}

// observed logs what the driver answered where the suite asserts nothing.
func (f *fixture) observed(format string, args ...any) {
	f.t.Helper()
	f.t.Logf("observed: "+format, args...)
}

// refused asserts that err is a driver's refusal with the given result.
func (f *fixture) refused(want cuda.Result, err error, msgAndArgs ...any) {
	f.t.Helper()
	f.ErrorIs(err, want, msgAndArgs...)
}

// refusedSomehow asserts that err is a refusal and logs which one.
func (f *fixture) refusedSomehow(what string, err error) {
	f.t.Helper()
	var call *cuda.CallError
	f.ErrorAs(err, &call, what)
	f.observed("%s: %v", what, err)
}

func (f *fixture) alloc(size uint64) cuda.DevicePtr {
	f.t.Helper()
	ptr, err := f.drv.MemAlloc(f.ctx, size)
	f.NoError(err)
	f.NotZero(ptr)
	return ptr
}

func (f *fixture) free(ptr cuda.DevicePtr) {
	f.t.Helper()
	f.NoError(f.drv.MemFree(f.ctx, ptr))
}

// filled allocates size bytes that hold the seed's pattern.
func (f *fixture) filled(size, seed uint64) cuda.DevicePtr {
	f.t.Helper()
	ptr := f.alloc(size)
	f.fill(ptr, size, seed)
	return ptr
}

func (f *fixture) fill(ptr cuda.DevicePtr, size, seed uint64) {
	f.t.Helper()
	f.NoError(fill(f.drv, f.ctx, ptr, size, seed))
}

func (f *fixture) verify(ptr cuda.DevicePtr, size, seed uint64) {
	f.t.Helper()
	f.NoError(verify(f.drv, f.ctx, ptr, size, seed))
}

func (f *fixture) handle(ptr cuda.DevicePtr) cuda.IpcMemHandle {
	f.t.Helper()
	h, err := f.drv.IpcGetMemHandle(f.ctx, ptr)
	f.NoError(err)
	return h
}

func (f *fixture) openHandle(h cuda.IpcMemHandle) cuda.DevicePtr {
	f.t.Helper()
	ptr, err := f.tryOpen(h)
	f.NoError(err)
	return ptr
}

func (f *fixture) tryOpen(h cuda.IpcMemHandle) (cuda.DevicePtr, error) {
	return f.drv.IpcOpenMemHandle(f.ctx, h, cuda.IpcMemLazyEnablePeerAccess)
}

func (f *fixture) attribute(attr cuda.PointerAttribute, ptr cuda.DevicePtr) uint64 {
	f.t.Helper()
	v, err := f.drv.PointerGetAttribute(attr, ptr)
	f.NoError(err)
	return v
}

func (f *fixture) freeBytes() uint64 {
	f.t.Helper()
	free, _, err := f.drv.MemGetInfo(f.ctx)
	f.NoError(err)
	return free
}

// missing asserts that want bytes, but for the slack, are gone since the
// baseline.
func (f *fixture) missing(baseline uint64, want uint64, when string) {
	f.t.Helper()
	gone := int64(baseline) - int64(f.freeBytes())
	if !f.within(gone - int64(want)) {
		f.Equal(int64(want), gone, "bytes missing %s", when)
	}
}

func (f *fixture) within(off int64) bool { return max(off, -off) <= int64(f.opts.Slack) }

// returnsTo waits until free memory is want, but for the slack: after a process died, its
// memory comes back at once or a little later, never with a signal of its own.
func (f *fixture) returnsTo(want uint64, when string) {
	f.t.Helper()
	deadline := time.NewTimer(5 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for !f.within(int64(want) - int64(f.freeBytes())) {
		select {
		case <-poll.C:
		case <-deadline.C:
			f.missing(want, 0, when+", 5 s later")
			return
		}
	}
}

// underLoad calls attempt with a growing load until it saw, while the load was
// running, what it looks for; it fails the test when it never did.
func (f *fixture) underLoad(never string, attempt func(copies int) (seen bool)) {
	f.t.Helper()
	const growth = 6
	for n := range growth {
		if attempt(f.opts.Copies << n) {
			return
		}
	}
	f.Fail(never, "with up to %d copies of %d bytes", f.opts.Copies<<(growth-1), f.opts.CopySize)
}
