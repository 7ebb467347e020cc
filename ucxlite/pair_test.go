package ucxlite

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
	"github.com/gpurma/gpurma/ucxlite/internal/control"
	"github.com/stretchr/testify/require"
)

const (
	mib     = 1 << 20
	payload = 8 * mib
)

// side is one of two processes, as far as driver and library can tell.
type side struct {
	tb  testing.TB
	drv *softgpu.Driver
	cu  cuda.Context // primary of device 0
	c   *Context
	w   *Worker
}

// mustSide is a process on drv with the primary context of device 0 active.
func mustSide(tb testing.TB, drv *softgpu.Driver, change ...func(*Config)) *side {
	tb.Helper()
	s := &side{tb: tb, drv: drv, cu: mustPrimary(tb, drv, 0)}
	s.c = mustContext(tb, drv, change...)
	s.w = mustWorker(tb, s.c)
	return s
}

func mustPrimary(tb testing.TB, drv cuda.Driver, dev cuda.Device) cuda.Context {
	tb.Helper()
	cu, err := drv.DevicePrimaryCtxRetain(dev)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, drv.DevicePrimaryCtxRelease(dev)) })
	return cu
}

// mustPairOf is an owner and an importer on one node of two devices.
func mustPairOf(tb testing.TB, change ...func(*Config)) (owner, importer *side) {
	tb.Helper()
	first := softgputest.New(tb, func(c *softgpu.Config) { c.Devices = 2 })
	second := softgputest.Attach(tb, first.NodePath())
	return mustSide(tb, first, change...), mustSide(tb, second, change...)
}

// mustConnected is an endpoint to s2's worker, wired up.
func (s *side) mustConnected(to *side, opts EndpointOptions) *Endpoint {
	s.tb.Helper()
	e := mustEndpoint(s.tb, s.w, to.w.Address(), opts)
	require.NoError(s.tb, e.WaitConnected(testContext(s.tb)))
	return e
}

// alloc is device memory that lives until free or the test's end.
func (s *side) alloc(n uint64) cuda.DevicePtr {
	s.tb.Helper()
	p, err := s.drv.MemAlloc(s.cu, n)
	require.NoError(s.tb, err)
	s.tb.Cleanup(func() { _ = s.drv.MemFree(s.cu, p) })
	return p
}

func (s *side) freeMemory(p cuda.DevicePtr) {
	s.tb.Helper()
	require.NoError(s.tb, s.drv.MemFree(s.cu, p))
}

// export allocates, maps and packs.
func (s *side) export(n uint64) (cuda.DevicePtr, *Memory, []byte) {
	s.tb.Helper()
	p := s.alloc(n)
	m, b := s.register(p, n)
	return p, m, b
}

func (s *side) register(p cuda.DevicePtr, n uint64) (*Memory, []byte) {
	s.tb.Helper()
	m, err := s.c.MemMap(s.cu, p, n, MemMapOptions{})
	require.NoError(s.tb, err)
	s.tb.Cleanup(func() { require.NoError(s.tb, m.Unmap(context.Background())) })
	b, err := m.PackRkey()
	require.NoError(s.tb, err)
	return m, b
}

// write and read move bytes by the driver alone.
func (s *side) write(p cuda.DevicePtr, b []byte) {
	s.tb.Helper()
	require.NoError(s.tb, s.drv.MemcpyHtoD(s.cu, p, b))
	require.NoError(s.tb, s.drv.CtxSynchronize(s.cu))
}

func (s *side) read(p cuda.DevicePtr, n int) []byte {
	s.tb.Helper()
	b := make([]byte, n)
	require.NoError(s.tb, s.drv.MemcpyDtoH(s.cu, b, p))
	return b
}

// free is the free memory of device 0 as s sees it.
func (s *side) free() uint64 {
	s.tb.Helper()
	free, _, err := s.drv.MemGetInfo(s.cu)
	require.NoError(s.tb, err)
	return free
}

// opens and closes count the driver's IPC calls of s.
func (s *side) opens() int  { return int(s.drv.Counters().Calls["cuIpcOpenMemHandle"]) }
func (s *side) closes() int { return int(s.drv.Counters().Calls["cuIpcCloseMemHandle"]) }

// gate makes copies look unfinished to the library while it is closed.
type gate struct{ shut atomic.Bool }

func (g *gate) close() { g.shut.Store(true) }
func (g *gate) open()  { g.shut.Store(false) }

func (s *side) gateEvents() *gate {
	g := new(gate)
	s.drv.SetHook(func(call string) cuda.Result {
		if call == "cuEventQuery" && g.shut.Load() {
			return cuda.ErrorNotReady
		}
		return cuda.Success
	})
	s.tb.Cleanup(func() { s.drv.SetHook(nil) })
	return g
}

// failOpen makes the n-th open from now fail as an unreachable device does.
func (s *side) failOpen(n int64) {
	var count atomic.Int64
	s.drv.SetHook(func(call string) cuda.Result {
		if call == "cuIpcOpenMemHandle" && count.Add(1) == n {
			return cuda.ErrorInvalidDevice
		}
		return cuda.Success
	})
	s.tb.Cleanup(func() { s.drv.SetHook(nil) })
}

// silent is a peer that never answers.
func silent(*control.Conn) {}

// mustAddressOf is an address that names s but leads to another's socket.
func mustAddressOf(s *side, other WorkerAddress) WorkerAddress {
	s.tb.Helper()
	info, err := ParseWorkerAddress(s.w.Address())
	require.NoError(s.tb, err)
	lead, err := ParseWorkerAddress(other)
	require.NoError(s.tb, err)
	info.Socket = lead.Socket
	return info.pack()
}

func mustUnpack(tb testing.TB, e *Endpoint, b []byte, opts UnpackOptions) *Rkey {
	tb.Helper()
	k, err := e.UnpackRkey(b, opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, k.Destroy()) })
	return k
}

func mustPtr(tb testing.TB, k *Rkey, raddr uint64) cuda.DevicePtr {
	tb.Helper()
	p, err := k.Ptr(raddr)
	require.NoError(tb, err)
	return p
}

// mustWait posts nothing itself: it waits for what a Put or Get returned.
func mustWait(tb testing.TB, r *Request, err error) {
	tb.Helper()
	require.NoError(tb, err)
	require.NoError(tb, r.Wait(testContext(tb)))
}

func policy(p Policy) *Policy { return &p }

// randomBytes are the same for the same seed.
func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	var s [32]byte
	s[0], s[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(s).Read(b)
	return b
}

// firstDifference is the offset of the first byte that differs, or -1.
func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
