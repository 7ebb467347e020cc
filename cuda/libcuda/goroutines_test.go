//go:build cgo

package libcuda_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/stretchr/testify/require"
)

// TestS15GoroutinesBounce: goroutines that move between threads from call to
// call, each in the context of its own device, never run without a context and
// leave no thread with one.
func TestS15GoroutinesBounce(t *testing.T) {
	const goroutines, rounds = 64, 20
	for _, procs := range []int{1, 4, 16} {
		t.Run(fmt.Sprintf("GOMAXPROCS=%d", procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			f := newContextFixture(t)
			hop := make(chan struct{})
			errs := make(chan error, goroutines)
			var group sync.WaitGroup
			for i := range goroutines {
				dev, ctx := cuda.Device(1), f.ctx
				if i%2 == 1 {
					dev, ctx = 0, f.other
				}
				group.Go(func() {
					for range rounds {
						if err := oneLife(f, dev, ctx, hop); err != nil {
							errs <- err
							return
						}
					}
				})
			}
			// The hops need an even number of takers and givers: one side more.
			done := make(chan struct{})
			go func() {
				for {
					select {
					case hop <- struct{}{}:
					case <-done:
						return
					}
				}
			}()
			group.Wait()
			close(done)
			close(errs)
			require.NoError(t, <-errs)

			last := make(chan error)
			go func() { last <- f.CtxSynchronize(f.ctx) }() // a goroutine that never called before
			require.NoError(t, <-last)
			r := f.report()
			require.Equal(t, "0 ", r.violations)
			require.Zero(t, r.depths)
		})
	}
}

// oneLife opens, copies and closes with something between any two calls that
// may move the goroutine to another thread.
func oneLife(d cuda.Driver, dev cuda.Device, ctx cuda.Context, hop <-chan struct{}) error {
	var ptr cuda.DevicePtr
	var err error
	steps := []func() error{
		func() error { ptr, err = d.MemAlloc(ctx, 64); return err },
		func() error { got, err := d.CtxGetDevice(ctx); return want(got, err, dev) },
		func() error { return d.MemcpyHtoD(ctx, ptr, []byte("hop")) },
		func() error {
			got := make([]byte, 3)
			err := d.MemcpyDtoH(ctx, got, ptr)
			return want(string(got), err, "hop")
		},
		func() error { return d.MemFree(ctx, ptr) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
		<-hop
		runtime.Gosched()
	}
	return nil
}

// TestBlockingCallsAreBounded: of many goroutines that wait in the driver, 64
// hold a thread; calls that only submit or ask go on meanwhile.
func TestBlockingCallsAreBounded(t *testing.T) {
	const goroutines, bound = 200, 64
	f := newContextFixture(t)
	f.command("gate cuStreamSynchronize")
	var group sync.WaitGroup
	for range goroutines {
		group.Go(func() {
			if err := f.StreamSynchronize(f.ctx, 0); err != nil {
				t.Error(err)
			}
		})
	}
	for waiting := uint64(0); waiting < bound; runtime.Gosched() {
		var err error
		waiting, _, err = f.MemGetInfo(f.ctx) // the fake's: how many wait at the gate
		require.NoError(t, err)
	}
	require.NoError(t, f.StreamQuery(f.ctx, 0))
	require.NoError(t, f.MemcpyDtoDAsync(f.ctx, 0, 0, 0, 0))
	f.openGate()
	group.Wait()
	require.Equal(t, bound, f.report().most)
}

// TestHotCallsDoNotAllocate: what every put makes, and what every poll asks.
func TestHotCallsDoNotAllocate(t *testing.T) {
	f := newContextFixture(t)
	o := newObjects(t, f, f.ctx)
	for name, call := range map[string]func() error{
		"MemcpyDtoDAsync": func() error { return f.MemcpyDtoDAsync(o.ctx, o.dst, o.src, 64, o.stream) },
		"EventRecord":     func() error { return f.EventRecord(o.ctx, o.event, o.stream) },
		"EventQuery":      func() error { return f.EventQuery(o.ctx, o.event) },
		"StreamQuery":     func() error { return f.StreamQuery(o.ctx, o.stream) },
		"PointerGetAttribute": func() error {
			_, err := f.PointerGetAttribute(cuda.PointerAttributeBufferID, o.src)
			return err
		},
		"MemGetAddressRange": func() error { _, _, err := f.MemGetAddressRange(o.ctx, o.src); return err },
		"IpcOpenMemHandle": func() error {
			_, err := f.IpcOpenMemHandle(o.ctx, fakeIPCHandle(fakeRange), cuda.IpcMemLazyEnablePeerAccess)
			return err
		},
	} {
		var err error
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if e := call(); e != nil {
				err = e
			}
		}), name)
		require.NoError(t, err, name)
	}

	f.command("fail cuEventQuery 600 1000")
	require.ErrorIs(t, f.EventQuery(o.ctx, o.event), cuda.ErrorNotReady)
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = f.EventQuery(o.ctx, o.event) }), "not ready")
}

func BenchmarkCalls(b *testing.B) {
	f := openFake(b, fakeOptions{})
	ctx, err := f.CtxCreate(1)
	require.NoError(b, err)
	o := newObjects(b, f, ctx)
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"MemcpyDtoDAsync", func() error { return f.MemcpyDtoDAsync(o.ctx, o.dst, o.src, 64, o.stream) }},
		{"EventQuery", func() error { return f.EventQuery(o.ctx, o.event) }},
		{"CtxGetCurrent", func() error { _, err := f.CtxGetCurrent(); return err }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := c.call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
