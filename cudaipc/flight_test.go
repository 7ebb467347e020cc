package cudaipc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

// S25: all who need an allocation at once share one open; opens of different
// allocations overlap. No clock: every open waits until 64 are inside.
func TestS25FirstUseRace(t *testing.T) {
	const n = 64
	d := newFake()
	var inside atomic.Int32
	all := make(chan struct{})
	d.hook = func(call string) error {
		if call == "cuIpcOpenMemHandle" {
			if inside.Add(1) == n {
				close(all)
			}
			<-all
		}
		return nil
	}
	c := mustCache(t, d, CacheOptions{})
	shared := d.export(7, 0x1000, kib)
	keys := []*Key{}
	for i := range n - 1 {
		keys = append(keys, d.export(7, cuda.DevicePtr(0x10000*(i+1)), kib))
	}
	var wg sync.WaitGroup
	for i := range 2 * n {
		k := shared
		if i%2 == 0 && i/2 < len(keys) {
			k = keys[i/2]
		}
		wg.Go(func() {
			m, err := c.Map(t.Context(), k, MapOptions{})
			if err == nil {
				err = errors.Join(d.mapped(m.Ptr(), k), m.Release(Retain))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	requireCounts(t, c, counts{Opens: n, Idle: n, Live: n})
	require.Equal(t, n, d.maxInside)
}

// S25: waiters share the error too, and it is not kept.
func TestS25SharedError(t *testing.T) {
	d := newFake()
	k := d.export(7, 0x1000, kib)
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		calls := 0
		d.hook = func(call string) error {
			if call == "cuIpcOpenMemHandle" {
				calls++
				<-gate
				return cuda.Err(call, cuda.ErrorInvalidHandle)
			}
			return nil
		}
		c := mustCache(t, d, CacheOptions{})
		errs := make(chan error, 8)
		for range cap(errs) {
			go func() {
				_, err := c.Map(t.Context(), k, MapOptions{})
				errs <- err
			}()
		}
		synctest.Wait() // all are waiting
		require.EqualValues(t, 7, c.Stats().Shared)
		close(gate)
		for range cap(errs) {
			err := <-errs
			require.ErrorIs(t, err, ErrUnreachable)
			require.ErrorIs(t, err, cuda.ErrorInvalidHandle)
		}
		require.Equal(t, 1, calls)
		d.hook = nil
		require.NoError(t, mustMap(t, c, k, MapOptions{}).Release(FreeUnused))
		requireCounts(t, c, counts{Opens: 1, Closes: 1})
	})
}

// The one who started an open may leave; those who wait get it. When all leave,
// the mapping is closed on arrival.
func TestCancelDoesNotCancelTheOpen(t *testing.T) {
	for _, stays := range []bool{true, false} {
		t.Run(fmt.Sprintf("somebody stays %t", stays), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newFake()
				k := d.export(7, 0x1000, kib)
				gate := make(chan struct{})
				d.hook = func(call string) error {
					if call == "cuIpcOpenMemHandle" {
						<-gate
					}
					return nil
				}
				c := mustCache(t, d, CacheOptions{})
				ctx, cancel := context.WithCancel(t.Context())
				left, got := make(chan error), make(chan *Mapping)
				go func() {
					_, err := c.Map(ctx, k, MapOptions{})
					left <- err
				}()
				synctest.Wait()
				if stays {
					go func() {
						m, err := c.Map(t.Context(), k, MapOptions{})
						if err != nil {
							t.Error(err)
						}
						got <- m
					}()
					synctest.Wait()
				}
				cancel()
				require.ErrorIs(t, <-left, context.Canceled)
				require.Equal(t, 1, c.Stats().Opening)
				close(gate)
				if stays {
					m := <-got
					require.NoError(t, d.mapped(m.Ptr(), k))
					require.NoError(t, m.Release(FreeUnused))
				}
				synctest.Wait()
				requireCounts(t, c, counts{Opens: 1, Closes: 1})
			})
		})
	}
}

// The function that fetches a descriptor runs detached as well.
func TestCancelDoesNotReachFetchFD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustCache(t, newFake(), CacheOptions{})
		k := &Key{Identity: fakePeer(7), Base: 0x1000, Length: kib, Handles: []Handle{{KindPosixFD, make([]byte, 4)}}}
		noFD := errors.New("no descriptor")
		gate := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		opts := MapOptions{FetchFD: func(ctx context.Context, got *Key) (int, error) {
			<-gate
			return -1, errors.Join(noFD, ctx.Err())
		}}
		errs := make(chan error)
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				_, err := c.Map(ctx, k, opts)
				errs <- err
			}()
			synctest.Wait()
		}
		cancel()
		require.ErrorIs(t, <-errs, context.Canceled)
		close(gate)
		err := <-errs
		require.ErrorIs(t, err, noFD)
		require.ErrorIs(t, err, ErrUnreachable)
		require.NotErrorIs(t, err, context.Canceled)
	})
}

// A Map that meets a closing entry waits for it and opens anew.
func TestMapMeetsClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFake()
		d.single = true
		k := d.export(7, 0x1000, kib)
		c := mustCache(t, d, CacheOptions{})
		m := mustMap(t, c, k, MapOptions{})
		gate := make(chan struct{})
		d.hook = func(call string) error {
			if call == "cuIpcCloseMemHandle" {
				<-gate
			}
			return nil
		}
		done := make(chan error, 1)
		go func() { done <- m.Release(FreeUnused) }()
		synctest.Wait()

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.Map(ctx, k, MapOptions{})
		require.ErrorIs(t, err, context.Canceled)
		got := make(chan *Mapping)
		go func() { got <- mustMap(t, c, k, MapOptions{}) }()
		synctest.Wait()
		require.Equal(t, 1, c.Stats().Closing)
		require.NoError(t, c.CheckInvariants())
		close(gate)
		require.NoError(t, <-done)
		again := <-got
		require.NoError(t, d.mapped(again.Ptr(), k))
		require.NoError(t, again.Release(FreeUnused))
		requireCounts(t, c, counts{Opens: 2, Closes: 2})
	})
}
