package ucxlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/stretchr/testify/require"
)

// memoryKind is a way to allocate.
type memoryKind struct {
	name string
	kind cudaipc.Kind // how it can be shared
	make func(s *side, n uint64) cuda.DevicePtr
}

var memoryKinds = []memoryKind{
	{"plain", cudaipc.KindLegacy, (*side).alloc},
	{"managed", cudaipc.KindNone, (*side).allocManaged},
	{"vmm", cudaipc.KindNone, func(s *side, n uint64) cuda.DevicePtr { return s.allocVMM(n, cuda.HandleTypeNone) }},
	{"vmm fd", cudaipc.KindPosixFD, func(s *side, n uint64) cuda.DevicePtr { return s.allocVMM(n, cuda.HandleTypePosixFD) }},
}

func (s *side) allocManaged(n uint64) cuda.DevicePtr {
	s.tb.Helper()
	p, err := s.drv.MemAllocManaged(s.cu, n, cuda.MemAttachGlobal)
	require.NoError(s.tb, err)
	s.tb.Cleanup(func() { require.NoError(s.tb, s.drv.MemFree(s.cu, p)) })
	return p
}

func (s *side) allocVMM(n uint64, types cuda.HandleType) cuda.DevicePtr {
	s.tb.Helper()
	prop := cuda.AllocationProp{HandleTypes: types}
	granularity, err := s.drv.MemGetAllocationGranularity(prop)
	require.NoError(s.tb, err)
	n = (n + granularity - 1) / granularity * granularity
	h, err := s.drv.MemCreate(s.cu, n, prop)
	require.NoError(s.tb, err)
	p, err := s.drv.MemAddressReserve(s.cu, n, 0)
	require.NoError(s.tb, err)
	require.NoError(s.tb, s.drv.MemMap(s.cu, p, n, 0, h))
	require.NoError(s.tb, s.drv.MemSetAccess(s.cu, p, n, 0, cuda.AccessReadWrite))
	require.NoError(s.tb, s.drv.MemRelease(s.cu, h))
	s.tb.Cleanup(func() {
		require.NoError(s.tb, errors.Join(s.drv.MemUnmap(s.cu, p, n), s.drv.MemAddressFree(s.cu, p, n)))
	})
	return p
}

// Every local memory × every remote memory × put and get × edge sizes and
// offsets, with guard bytes.
func TestPutGetAllMemories(t *testing.T) {
	owner, importer := mustPairOf(t, func(c *Config) { c.StagedSlots, c.StagedSlotSize = 2, 768<<10 })
	const size = 4 * mib
	const guard = 256
	e := importer.mustConnected(owner, EndpointOptions{})
	locals := append([]memoryKind{{name: "host"}}, memoryKinds...)
	for _, rk := range memoryKinds {
		remote := rk.make(owner, size)
		m, packed := owner.register(remote, size)
		require.Equal(t, rk.kind, m.Kind(), "%s: %s", rk.name, m.Reason())
		k := mustUnpack(t, e, packed, UnpackOptions{})
		for _, lk := range locals {
			t.Run(lk.name+" with "+rk.name, func(t *testing.T) {
				var local cuda.DevicePtr
				if lk.make != nil {
					local = lk.make(importer, size)
				}
				before := e.Stats()
				seed := uint64(0)
				for _, n := range []int{0, 1, 8, 4095, 2*mib - 1, 2 * mib, 2*mib + 1} {
					for _, off := range []int{0, guard + 1} {
						seed++
						want := randomBytes(seed, n)
						check(t, owner, importer, e, k, remote, local, want, off, guard, lk.make == nil)
					}
				}
				after := e.Stats()
				if rk.kind == cudaipc.KindNone {
					require.Greater(t, after.Staged.Puts, before.Staged.Puts)
					require.Equal(t, before.IPC, after.IPC)
				} else {
					require.Greater(t, after.IPC.Gets, before.IPC.Gets)
					require.Equal(t, before.Staged, after.Staged)
				}
			})
		}
	}
}

// check puts want at off of remote and gets it back, and looks at the bytes
// around on both sides.
func check(t *testing.T, owner, importer *side, e *Endpoint, k *Rkey, remote, local cuda.DevicePtr, want []byte, off, guard int, host bool) {
	t.Helper()
	n := len(want)
	window := n + 2*guard
	blank := randomBytes(999, window)
	from := max(0, off-guard)
	owner.write(remote.Add(uint64(from)), blank)
	raddr := k.Address() + uint64(off)

	var buf Buffer
	hostBytes := make([]byte, window)
	if host {
		copy(hostBytes[guard:], want)
		buf = HostBuffer(hostBytes[guard : guard+n])
	} else {
		importer.write(local.Add(uint64(guard)), want)
		buf = DeviceBuffer(local.Add(uint64(guard)), uint64(n))
	}
	r, err := e.Put(buf, raddr, k, OpOptions{})
	mustWait(t, r, err)
	image := append([]byte(nil), blank...)
	copy(image[off-from:], want)
	require.Equal(t, -1, firstDifference(image, owner.read(remote.Add(uint64(from)), window)), "put of %d at %d", n, off)

	if host {
		copy(hostBytes, blank)
	} else {
		importer.write(local, blank)
	}
	r, err = e.Get(buf, raddr, k, OpOptions{})
	mustWait(t, r, err)
	image = append([]byte(nil), blank...)
	copy(image[guard:], want)
	got := hostBytes
	if !host {
		got = importer.read(local, window)
	}
	require.Equal(t, -1, firstDifference(image, got), "get of %d at %d", n, off)
}

func TestExplainAndRequireIPC(t *testing.T) {
	owner, importer := mustPairOf(t)
	local := importer.alloc(4096)
	_, plain := owner.register(owner.alloc(4096), 4096)
	_, managed := owner.register(owner.allocManaged(4096), 4096)
	e := importer.mustConnected(owner, EndpointOptions{})
	strict := importer.mustConnected(owner, EndpointOptions{RequireIPC: true})
	buf := DeviceBuffer(local, 8)

	k := mustUnpack(t, e, plain, UnpackOptions{})
	require.Contains(t, e.Explain(buf, k), "ipc: mapped by its legacy handle")
	k = mustUnpack(t, e, managed, UnpackOptions{})
	require.Contains(t, e.Explain(buf, k), "staged: no handle can share the memory")
	_, err := k.Ptr(k.Address())
	require.ErrorIs(t, err, ErrNotShareable)

	k = mustUnpack(t, strict, managed, UnpackOptions{})
	require.Contains(t, strict.Explain(buf, k), "none: no handle can share the memory")
	r, err := strict.Put(buf, k.Address(), k, OpOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, r.Wait(testContext(t)), ErrNotShareable)

	var log bytes.Buffer
	importer.c.log = slog.New(slog.NewTextHandler(&log, nil))
	// An open that fails makes the kind unreachable, with its reason, and the
	// operation goes the other way.
	for _, e := range []*Endpoint{strict, e} {
		importer.c.reach.forget()
		importer.failOpen(1)
		k = mustUnpack(t, e, plain, UnpackOptions{})
		r, err = e.Put(buf, k.Address(), k, OpOptions{})
		require.NoError(t, err)
		if e == strict {
			require.ErrorIs(t, r.Wait(testContext(t)), ErrUnreachable)
			require.ErrorIs(t, r.err, cuda.ErrorInvalidDevice)
			continue
		}
		require.NoError(t, r.Wait(testContext(t)))
		require.Contains(t, e.Explain(buf, k), "staged: legacy handle: ")
		require.EqualValues(t, 1, e.Stats().Staged.Puts)
		r, err = e.Put(buf, k.Address(), k, OpOptions{})
		mustWait(t, r, err)
		require.Equal(t, 1, strings.Count(log.String(), "slow lane"), "one warning an endpoint")
	}
}

// Staged operations on memory that is unmapped are stale, and an Unmap waits
// for those that run.
func TestStagedAgainstUnmap(t *testing.T) {
	owner, importer := mustPairOf(t)
	remote := owner.allocManaged(4096)
	m, packed := owner.register(remote, 4096)
	e := importer.mustConnected(owner, EndpointOptions{})
	k := mustUnpack(t, e, packed, UnpackOptions{})
	host := make([]byte, 4096)
	require.True(t, m.enter())
	soon, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, m.Unmap(soon), ErrBusy)
	m.leave()
	require.NoError(t, m.Unmap(testContext(t)))
	require.NoError(t, m.Unmap(testContext(t)))
	for name, op := range map[string]func(Buffer, uint64, *Rkey, OpOptions) (*Request, error){"put": e.Put, "get": e.Get} {
		r, err := op(HostBuffer(host), k.Address(), k, OpOptions{})
		require.NoError(t, err)
		require.ErrorIs(t, r.Wait(testContext(t)), ErrStale, name)
	}
	// The slot's next registration is another generation.
	_, again := owner.register(remote, 4096)
	k2 := mustUnpack(t, e, again, UnpackOptions{})
	require.Equal(t, k.Key().Slot, k2.Key().Slot)
	require.NotEqual(t, k.Key().Generation, k2.Key().Generation)
	r, err := e.Get(HostBuffer(host), k2.Address(), k2, OpOptions{})
	mustWait(t, r, err)
	r, err = e.Get(HostBuffer(host), k.Address(), k, OpOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, r.Wait(testContext(t)), ErrStale)
}

// A fence orders puts of different lanes and streams to one place.
func TestFence(t *testing.T) {
	owner, importer := mustPairOf(t)
	remote, _, packed := owner.export(mib)
	e := importer.mustConnected(owner, EndpointOptions{})
	k := mustUnpack(t, e, packed, UnpackOptions{})
	local := importer.alloc(mib)
	importer.write(local, randomBytes(1, mib))
	for i := range 20 {
		host := randomBytes(uint64(i+2), mib)
		bufs := []Buffer{HostBuffer(host), DeviceBuffer(local, mib)}
		if i%2 == 1 {
			bufs[0], bufs[1] = bufs[1], bufs[0]
		}
		for _, b := range bufs {
			_, err := e.Put(b, k.Address(), k, OpOptions{})
			require.NoError(t, err)
			e.Fence()
		}
		require.NoError(t, e.Flush(testContext(t)))
		want := host
		if i%2 == 0 {
			want = randomBytes(1, mib)
		}
		require.Equal(t, -1, firstDifference(want, owner.read(remote, mib)), fmt.Sprint("round ", i))
	}
	require.NoError(t, importer.w.Flush(testContext(t)))
}

// Callbacks run once, in Progress, Flush or Wait, and may use the library.
func TestCallbacks(t *testing.T) {
	owner, importer := mustPairOf(t)
	_, _, packed := owner.export(mib)
	e := importer.mustConnected(owner, EndpointOptions{})
	k := mustUnpack(t, e, packed, UnpackOptions{})
	local := importer.alloc(mib)
	calls := 0
	count := OpOptions{Callback: func(r *Request, err error) {
		calls++
		done, same := r.Test()
		require.True(t, done)
		require.Equal(t, err, same)
	}}
	r, err := e.Put(DeviceBuffer(local, 8), k.Address(), k, count)
	mustWait(t, r, err)
	require.Equal(t, 1, calls)
	importer.w.Progress()
	require.Equal(t, 1, calls, "once")

	r, err = e.Put(DeviceBuffer(local, 8), k.Address(), k, count)
	require.NoError(t, err)
	for done := false; !done; done, _ = r.Test() {
	}
	require.Equal(t, 1, calls, "Test runs none")
	importer.w.Progress()
	require.Equal(t, 2, calls)

	// Destroying the key inside a flush's callback is safe.
	_, err = e.Put(DeviceBuffer(local, 8), k.Address(), k, OpOptions{Callback: func(*Request, error) {
		calls++
		require.NoError(t, k.Destroy())
	}})
	require.NoError(t, err)
	require.NoError(t, importer.w.Flush(testContext(t)))
	require.Equal(t, 3, calls)
	require.Zero(t, importer.c.Cache().Stats().Live)
}
