package dma

import (
	"errors"
	"sync"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/stretchr/testify/require"
)

// fakeStreams is a driver of streams and events only: an event is done when the
// test says so.
type fakeStreams struct {
	cuda.Driver

	mu      sync.Mutex
	next    uintptr
	events  map[cuda.Event]bool // live events: done
	streams map[cuda.Stream]bool
	fail    map[string]cuda.Result
	syncs   int
}

func newFake() *fakeStreams {
	return &fakeStreams{events: map[cuda.Event]bool{}, streams: map[cuda.Stream]bool{}, fail: map[string]cuda.Result{}}
}

func (f *fakeStreams) call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	return cuda.Err(name, f.fail[name])
}

func (f *fakeStreams) StreamCreate(cuda.Context, uint32) (cuda.Stream, error) {
	err := f.call("cuStreamCreate")
	f.streams[cuda.Stream(f.next)] = true
	return cuda.Stream(f.next), err
}

func (f *fakeStreams) StreamDestroy(_ cuda.Context, s cuda.Stream) error {
	delete(f.streams, s)
	return f.call("cuStreamDestroy")
}

func (f *fakeStreams) StreamSynchronize(cuda.Context, cuda.Stream) error {
	f.syncs++
	return f.call("cuStreamSynchronize")
}

func (f *fakeStreams) EventCreate(cuda.Context, uint32) (cuda.Event, error) {
	err := f.call("cuEventCreate")
	f.events[cuda.Event(f.next)] = true
	return cuda.Event(f.next), err
}

func (f *fakeStreams) EventDestroy(_ cuda.Context, e cuda.Event) error {
	delete(f.events, e)
	return f.call("cuEventDestroy")
}

func (f *fakeStreams) EventRecord(_ cuda.Context, e cuda.Event, _ cuda.Stream) error {
	f.events[e] = false
	return f.call("cuEventRecord")
}

func (f *fakeStreams) EventQuery(_ cuda.Context, e cuda.Event) error {
	if err := f.call("cuEventQuery"); err != nil {
		return err
	}
	if !f.events[e] {
		return cuda.Err("cuEventQuery", cuda.ErrorNotReady)
	}
	return nil
}

func submit(tb testing.TB, e *Engine, done func(error)) cuda.Event {
	tb.Helper()
	require.NoError(tb, e.Submit(func(cuda.Context, cuda.Stream) error { return nil }, done))
	return e.queue[len(e.queue)-1].event
}

func TestEngineCompletesInOrder(t *testing.T) {
	drv := newFake()
	e, err := New(drv, 1)
	require.NoError(t, err)
	var order []int
	note := func(i int) func(error) {
		return func(err error) {
			require.NoError(t, err)
			order = append(order, i)
			require.Zero(t, e.Poll(), "done may poll: no lock is held")
		}
	}
	first, second := submit(t, e, note(1)), submit(t, e, note(2))
	drv.events[second] = true
	require.Zero(t, e.Poll(), "the stream is in order: the second cannot be done before the first")
	require.Equal(t, 2, e.InFlight())
	drv.events[first] = true
	require.Equal(t, 2, e.Poll())
	require.Equal(t, []int{1, 2}, order)
	again := submit(t, e, func(error) {})
	require.Contains(t, []cuda.Event{first, second}, again, "events are used again")
	drv.events[again] = true
	require.Equal(t, 1, e.Poll())
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.Empty(t, drv.events)
	require.Empty(t, drv.streams)
	require.ErrorIs(t, e.Submit(nil, nil), ErrClosed)
}

// A copy that could not be submitted is over when Submit returns.
func TestEngineSubmitFails(t *testing.T) {
	drv := newFake()
	e, err := New(drv, 1)
	require.NoError(t, err)
	broken := errors.New("broken")
	never := func(error) { t.Error("done was called") }
	require.ErrorIs(t, e.Submit(func(cuda.Context, cuda.Stream) error { return broken }, never), broken)
	require.Equal(t, 1, drv.syncs)
	drv.fail["cuEventRecord"] = cuda.ErrorUnknown
	require.ErrorIs(t, e.Submit(func(cuda.Context, cuda.Stream) error { return nil }, never), cuda.ErrorUnknown)
	require.Equal(t, 2, drv.syncs)
	require.Zero(t, e.Poll())
	require.NoError(t, e.Close())
	require.Empty(t, drv.events)
}

// A lost context fails everything in flight and everything later, and closing
// what it took with it is quiet.
func TestEngineContextLost(t *testing.T) {
	drv := newFake()
	e, err := New(drv, 1)
	require.NoError(t, err)
	var got []error
	for range 3 {
		submit(t, e, func(err error) { got = append(got, err) })
	}
	drv.fail["cuEventQuery"] = cuda.ErrorContextIsDestroyed
	require.Equal(t, 3, e.Poll())
	require.Len(t, got, 3)
	for _, err := range got {
		require.ErrorIs(t, err, cuda.ErrorContextIsDestroyed)
	}
	require.ErrorIs(t, e.Submit(nil, nil), cuda.ErrorContextIsDestroyed)
	require.Len(t, e.free, 3, "the events stay the engine's")
	drv.fail["cuStreamDestroy"], drv.fail["cuEventDestroy"] = cuda.ErrorContextIsDestroyed, cuda.ErrorContextIsDestroyed
	require.NoError(t, e.Close())

	b, err := NewBlocking(drv, 1)
	require.NoError(t, err)
	drv.fail["cuStreamSynchronize"] = cuda.ErrorContextIsDestroyed
	require.ErrorIs(t, b.Run(func(cuda.Context, cuda.Stream) error { return nil }), cuda.ErrorContextIsDestroyed)
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Run(nil), ErrClosed)
	drv.fail["cuStreamDestroy"] = cuda.ErrorUnknown
	c, err := New(drv, 1)
	require.NoError(t, err)
	require.ErrorIs(t, c.Close(), cuda.ErrorUnknown)
}
