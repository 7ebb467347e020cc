package ucxlite

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
	"github.com/stretchr/testify/require"
)

// Destroy gives the memory back, in every variant of use; and the check sees a
// key that is not destroyed.
func TestS01DestroyGivesTheMemoryBack(t *testing.T) {
	owner, importer := mustPairOf(t)
	local := importer.alloc(mib)
	e := importer.mustConnected(owner, EndpointOptions{})
	ctx := testContext(t)

	use := map[string]func(t *testing.T, k *Rkey){
		"nothing": func(*testing.T, *Rkey) {},
		"ptr":     func(t *testing.T, k *Rkey) { mustPtr(t, k, k.Address()) },
		"ptr twice": func(t *testing.T, k *Rkey) {
			a, b := mustPtr(t, k, k.Address()), mustPtr(t, k, k.Address()+4096)
			require.Equal(t, a.Add(4096), b)
		},
		"get": func(t *testing.T, k *Rkey) {
			r, err := e.Get(DeviceBuffer(local, mib), k.Address(), k, OpOptions{})
			mustWait(t, r, err)
		},
		"put": func(t *testing.T, k *Rkey) {
			r, err := e.Put(DeviceBuffer(local, mib), k.Address()+mib, k, OpOptions{})
			mustWait(t, r, err)
		},
		"list": func(t *testing.T, k *Rkey) {
			a := k.Address()
			l, err := importer.w.RemoteMemList(ctx, []RemoteMemElem{{k, a, 1}, {}, {k, a + 1, 2}, {k, a + mib, mib}})
			require.NoError(t, err)
			require.Equal(t, 4, l.Len())
			require.Zero(t, l.At(1))
			require.Equal(t, l.At(0).Ptr.Add(mib), l.At(3).Ptr)
			require.NoError(t, l.Release())
		},
	}
	all := map[string]func(*testing.T, *Rkey){"all": func(t *testing.T, k *Rkey) {
		for _, f := range use {
			f(t, k)
		}
	}}
	// round returns what is missing at the owner after it freed.
	round := func(t *testing.T, f func(*testing.T, *Rkey), destroy bool) (missing int64, k *Rkey) {
		before := owner.free()
		remote, err := owner.drv.MemAlloc(owner.cu, payload)
		require.NoError(t, err)
		m, err := owner.c.MemMap(owner.cu, remote, payload, MemMapOptions{})
		require.NoError(t, err)
		packed, err := m.PackRkey()
		require.NoError(t, err)
		k = mustUnpack(t, e, packed, UnpackOptions{})
		f(t, k)
		if destroy {
			require.NoError(t, k.Destroy())
		}
		require.NoError(t, m.Unmap(ctx))
		owner.freeMemory(remote)
		return int64(before) - int64(owner.free()), k
	}
	round(t, use["put"], true) // warm-up
	for _, uses := range []map[string]func(*testing.T, *Rkey){use, all} {
		for name, f := range uses {
			t.Run(name, func(t *testing.T) {
				opens := importer.opens()
				missing, _ := round(t, f, true)
				require.Zero(t, missing)
				require.Equal(t, importer.opens(), importer.closes())
				if name != "nothing" && name != "list" {
					require.GreaterOrEqual(t, importer.opens(), opens+1)
				}
				if name == "ptr" || name == "ptr twice" {
					require.Equal(t, opens+1, importer.opens())
				}
			})
		}
	}
	missing, k := round(t, use["ptr"], false)
	require.EqualValues(t, payload, missing, "the control must show the leak")
	before := owner.free()
	require.NoError(t, k.Destroy())
	require.EqualValues(t, payload, owner.free()-before)
}

// One handle, a hundred keys, two endpoints, two workers: one open, one close.
// Every other key holds by its claim alone, also the one that is left.
func TestS08OneHandleManyOwners(t *testing.T) {
	owner, importer := mustPairOf(t)
	_, _, packed := owner.export(payload)
	w2 := mustWorker(t, importer.c)
	e2 := mustEndpoint(t, w2, owner.w.Address(), EndpointOptions{})
	require.NoError(t, e2.WaitConnected(testContext(t)))
	endpoints := []*Endpoint{
		importer.mustConnected(owner, EndpointOptions{}), importer.mustConnected(owner, EndpointOptions{}), e2,
	}
	var keys []*Rkey
	for i := range 100 {
		k := mustUnpack(t, endpoints[i%3], packed, UnpackOptions{Map: true})
		if i%2 == 1 {
			mustPtr(t, k, k.Address())
		}
		keys = append(keys, k)
	}
	require.Equal(t, 1, importer.opens())
	for _, k := range keys[1:] {
		require.NoError(t, k.Destroy())
	}
	require.Zero(t, importer.closes())
	require.NoError(t, keys[0].Destroy())
	require.Equal(t, 1, importer.closes())
}

// Somebody else in the process has the handle open, in a driver that counts:
// the library works beside them and closes only what it opened.
func TestS08OpenBesideTheLibrary(t *testing.T) {
	owner, importer := mustPairOf(t)
	remote, _, packed := owner.export(payload)
	want := randomBytes(8, payload)
	owner.write(remote, want)
	k := mustUnpack(t, importer.mustConnected(owner, EndpointOptions{}), packed, UnpackOptions{})
	outside, err := importer.drv.IpcOpenMemHandle(importer.cu, cuda.IpcMemHandle(k.Key().Handles[0].Data), cuda.IpcMemLazyEnablePeerAccess)
	require.NoError(t, err)
	require.Equal(t, -1, firstDifference(want, importer.read(mustPtr(t, k, k.Address()), payload)))
	require.NoError(t, k.Destroy())
	require.Equal(t, -1, firstDifference(want, importer.read(outside, payload)))
	require.NoError(t, importer.drv.IpcCloseMemHandle(importer.cu, outside))
	require.Zero(t, importer.drv.Counters().LiveMappings)
}

// Each key reaches exactly its range of the allocation, and nothing beyond it
// gets as far as the driver.
func TestS11PointersInsideAnAllocation(t *testing.T) {
	owner, importer := mustPairOf(t)
	const size = 4 * mib
	remote := owner.alloc(size)
	owner.write(remote, randomBytes(1, size))
	image := owner.read(remote, size)
	local := importer.alloc(size)
	e := importer.mustConnected(owner, EndpointOptions{})

	for i, r := range []struct{ off, n uint64 }{{0, 513}, {1, 7}, {511, 4096}, {64<<10 + 3, mib}, {size - 1, 1}} {
		_, packed := owner.register(remote.Add(r.off), r.n)
		k := mustUnpack(t, e, packed, UnpackOptions{})
		require.EqualValues(t, uint64(remote)+r.off, k.Address())
		require.Equal(t, r.n, k.Length())
		host := make([]byte, r.n)
		req, err := e.Get(HostBuffer(host), k.Address(), k, OpOptions{})
		mustWait(t, req, err)
		require.Equal(t, -1, firstDifference(image[r.off:r.off+r.n], host))
		require.Equal(t, host, importer.read(mustPtr(t, k, k.Address()), int(r.n)))

		patch := randomBytes(uint64(100+i), int(r.n))
		importer.write(local, patch)
		req, err = e.Put(DeviceBuffer(local, r.n), k.Address(), k, OpOptions{})
		mustWait(t, req, err)
		copy(image[r.off:], patch)
		require.Equal(t, -1, firstDifference(image, owner.read(remote, size)), "guard bytes around [%d, +%d)", r.off, r.n)

		calls := importer.drv.Counters().Calls
		for name, bad := range map[string]struct{ addr, n uint64 }{
			"before":   {k.Address() - 1, 1},
			"after":    {k.Address() + r.n, 1},
			"across":   {k.Address(), r.n + 1},
			"overflow": {k.Address() + r.n, 1 << 63},
			"far":      {^uint64(0), 2},
			"zero":     {0, 1},
		} {
			_, err := e.Put(DeviceBuffer(local, bad.n), bad.addr, k, OpOptions{})
			require.ErrorIs(t, err, ErrOutOfRange, name)
			if bad.addr != k.Address() && bad.addr != k.Address()+r.n {
				_, err = k.Ptr(bad.addr)
				require.ErrorIs(t, err, ErrOutOfRange, name)
			}
		}
		require.Equal(t, calls, importer.drv.Counters().Calls, "a refused range reached the driver")
		req, err = e.Put(DeviceBuffer(local, 0), k.Address()+r.n, k, OpOptions{})
		mustWait(t, req, err)
	}
	require.Equal(t, 1, importer.opens(), "one mapping for the whole allocation")
}

// Good order of free and close is clean, and the bad one is seen; an unmap with
// keys out harms none of them.
func TestS14OrderOfFreeAndClose(t *testing.T) {
	first := softgputest.New(t, func(c *softgpu.Config) { c.Strict = true })
	softgputest.Tolerate(first) // the bad order, on purpose
	owner, importer := mustSide(t, first), mustSide(t, softgputest.Attach(t, first.NodePath()))
	remote, m, packed := owner.export(payload)
	want := randomBytes(14, payload)
	owner.write(remote, want)
	e := importer.mustConnected(owner, EndpointOptions{})
	k := mustUnpack(t, e, packed, UnpackOptions{})
	p := mustPtr(t, k, k.Address())
	require.NoError(t, m.Unmap(testContext(t)))
	require.Equal(t, -1, firstDifference(want, importer.read(p, payload)), "a live key survives the unmap")
	local := importer.alloc(payload)
	r, err := e.Get(DeviceBuffer(local, payload), k.Address(), k, OpOptions{})
	mustWait(t, r, err)
	require.Equal(t, -1, firstDifference(want, importer.read(local, payload)), "and works")
	require.NoError(t, k.Destroy())
	owner.freeMemory(remote)
	require.Empty(t, owner.drv.Counters().Violations)

	remote, _, packed = owner.export(payload)
	k = mustUnpack(t, e, packed, UnpackOptions{Map: true})
	owner.freeMemory(remote)
	require.NoError(t, k.Destroy())
	require.Len(t, owner.drv.Counters().Violations, 1)
}

// Goroutines without a thread of their own, on two devices; nothing depends on
// a current context, and none is left behind.
func TestS15GoroutinesAndContexts(t *testing.T) {
	owner, importer := mustPairOf(t)
	contexts := []cuda.Context{importer.cu, mustPrimary(t, importer.drv, 1)}
	remote, _, packed := owner.export(payload)
	want := randomBytes(15, payload)
	owner.write(remote, want)
	e := importer.mustConnected(owner, EndpointOptions{})
	for _, procs := range []int{1, 4, 16} {
		t.Run(fmt.Sprint("GOMAXPROCS ", procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			hop := make(chan struct{}, 1)
			var all sync.WaitGroup
			for i := range 64 {
				all.Go(func() {
					dev := cuda.Device(i % 2)
					if err := useOnce(importer, e, packed, dev, contexts[dev], uint64(i*4096), want, hop); err != nil {
						t.Errorf("goroutine %d: %v", i, err)
					}
				})
			}
			all.Wait()
			require.Equal(t, importer.opens(), importer.closes())
			require.Zero(t, importer.drv.Counters().LiveMappings)
		})
	}
}

// useOnce unpacks, takes a pointer, gets, destroys, and moves between threads.
func useOnce(s *side, e *Endpoint, packed []byte, dev cuda.Device, cu cuda.Context, off uint64, want []byte, hop chan struct{}) error {
	move := func() {
		select {
		case hop <- struct{}{}:
		case <-hop:
		default:
		}
		runtime.Gosched()
	}
	local, err := s.drv.MemAlloc(cu, 4096)
	if err != nil {
		return err
	}
	defer func() { _ = s.drv.MemFree(cu, local) }()
	k, err := e.UnpackRkey(packed, UnpackOptions{Device: &dev})
	if err != nil {
		return err
	}
	defer func() { _ = k.Destroy() }()
	move()
	p, err := k.Ptr(k.Address() + off)
	if err != nil {
		return err
	}
	if ctx, err := s.drv.PointerGetAttribute(cuda.PointerAttributeContext, p); err != nil || cuda.Context(ctx) != cu {
		return fmt.Errorf("mapped in context %#x, want that of device %d, %#x; %v", ctx, dev, cu, err)
	}
	move()
	r, err := e.Get(DeviceBuffer(local, 4096), k.Address()+off, k, OpOptions{})
	if err != nil {
		return err
	}
	move()
	if err := r.Wait(testContext(s.tb)); err != nil {
		return err
	}
	got := make([]byte, 4096)
	if err := s.drv.MemcpyDtoH(cu, got, local); err != nil {
		return err
	}
	if i := firstDifference(want[off:off+4096], got); i >= 0 {
		return fmt.Errorf("byte %d differs", i)
	}
	move()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if cur, err := s.drv.CtxGetCurrent(); err != nil || cur != 0 {
		return fmt.Errorf("current context %#x left behind, %v", cur, err)
	}
	return k.Destroy()
}

// Closing one endpoint ends its keys, each reference once, and nothing else.
func TestS17EndpointCloseIsLocal(t *testing.T) {
	for _, form := range []string{"one worker", "two workers"} {
		t.Run(form, func(t *testing.T) {
			owner, importer := mustPairOf(t)
			gate := importer.gateEvents()
			remote, _, packed := owner.export(payload)
			want := randomBytes(17, payload)
			owner.write(remote, want)
			local := importer.alloc(payload)
			w2 := importer.w
			if form == "two workers" {
				w2 = mustWorker(t, importer.c)
			}
			e1 := importer.mustConnected(owner, EndpointOptions{})
			e2 := mustEndpoint(t, w2, owner.w.Address(), EndpointOptions{})
			require.NoError(t, e2.WaitConnected(testContext(t)))
			k1 := mustUnpack(t, e1, packed, UnpackOptions{})
			unused := mustUnpack(t, e1, packed, UnpackOptions{Policy: policy(Retain)})
			k2 := mustUnpack(t, e2, packed, UnpackOptions{})
			mustPtr(t, k1, k1.Address())

			gate.close()
			r, err := e2.Get(DeviceBuffer(local, payload), k2.Address(), k2, OpOptions{})
			require.NoError(t, err)
			require.NoError(t, e1.Close())
			for _, k := range []*Rkey{k1, unused} {
				_, err = k.Ptr(k.Address())
				require.ErrorIs(t, err, ErrEndpointClosed)
				_, err = e1.Get(DeviceBuffer(local, 8), k.Address(), k, OpOptions{})
				require.ErrorIs(t, err, ErrEndpointClosed)
				require.NoError(t, k.Destroy())
			}
			_, err = e1.UnpackRkey(packed, UnpackOptions{})
			require.ErrorIs(t, err, ErrEndpointClosed)
			gate.open()
			mustWait(t, r, nil)
			require.Equal(t, -1, firstDifference(want, importer.read(local, payload)))
			require.Equal(t, 1, importer.opens())
			require.Zero(t, importer.closes(), "the other endpoint's key still claims it")
			require.NoError(t, k2.Destroy())
			require.Equal(t, 1, importer.closes())
		})
	}
}

// Same process: the raw pointer, no open.
func TestS21SameProcess(t *testing.T) {
	owner, _ := mustPairOf(t)
	w2 := mustWorker(t, owner.c)
	remote, _, packed := owner.export(payload)
	want := randomBytes(21, payload)
	local := owner.alloc(payload)
	owner.write(local, want)
	e := mustEndpoint(t, w2, owner.w.Address(), EndpointOptions{})
	require.NoError(t, e.WaitConnected(testContext(t)))
	k := mustUnpack(t, e, packed, UnpackOptions{})
	require.Equal(t, remote, mustPtr(t, k, k.Address()))
	r, err := e.Put(DeviceBuffer(local, payload), k.Address(), k, OpOptions{})
	mustWait(t, r, err)
	require.Equal(t, -1, firstDifference(want, owner.read(remote, payload)))
	host := make([]byte, payload)
	r, err = e.Get(HostBuffer(host), k.Address(), k, OpOptions{})
	mustWait(t, r, err)
	require.Equal(t, -1, firstDifference(want, host))
	require.NoError(t, k.Destroy())
	require.Zero(t, owner.opens())
}

// The list is refused until the wire-up is done; the loop is seen to turn.
func TestP7RetryUntilConnected(t *testing.T) {
	owner, importer := mustPairOf(t, func(c *Config) { c.WireupDelay = 30 * time.Millisecond })
	_, _, packed := owner.export(payload)
	e := mustEndpoint(t, importer.w, owner.w.Address(), EndpointOptions{})
	k := mustUnpack(t, e, packed, UnpackOptions{})
	elems := []RemoteMemElem{{k, k.Address(), payload}}
	refused := 0
	deadline := time.Now().Add(testTimeout)
	for {
		l, err := importer.w.TryRemoteMemList(elems)
		if err == nil {
			require.NoError(t, l.Release())
			break
		}
		require.ErrorIs(t, err, ErrNotConnected)
		require.Nil(t, l)
		require.True(t, time.Now().Before(deadline))
		refused++
		importer.w.Progress()
		runtime.Gosched()
	}
	require.Positive(t, refused)

	// A peer that never answers ends the loop.
	dead := mustEndpoint(t, importer.w, mustAddressOf(owner, fakePeer(t, silent)), EndpointOptions{Timeout: 20 * time.Millisecond})
	k = mustUnpack(t, dead, packed, UnpackOptions{})
	for {
		_, err := importer.w.TryRemoteMemList([]RemoteMemElem{{k, k.Address(), payload}})
		if err != nil && dead.State() == EndpointConnecting {
			continue
		}
		_, err = importer.w.TryRemoteMemList([]RemoteMemElem{{k, k.Address(), payload}})
		require.ErrorIs(t, err, ErrEndpointTimeout)
		break
	}
	_, err := importer.w.RemoteMemList(testContext(t), []RemoteMemElem{{k, k.Address(), payload}})
	require.ErrorIs(t, err, ErrEndpointTimeout)
}

// A list during wire-up maps nothing, also beside a ready endpoint; a failure
// in its middle gives back what came before.
func TestS31DeviceListDuringWireup(t *testing.T) {
	owner, importer := mustPairOf(t)
	_, _, packed := owner.export(payload)
	ready := importer.mustConnected(owner, EndpointOptions{})
	waiting := mustEndpoint(t, importer.w, mustAddressOf(owner, fakePeer(t, silent)), EndpointOptions{})
	k1 := mustUnpack(t, ready, packed, UnpackOptions{})
	k2 := mustUnpack(t, waiting, packed, UnpackOptions{})
	_, err := importer.w.TryRemoteMemList([]RemoteMemElem{{k1, k1.Address(), 8}, {k2, k2.Address(), 8}})
	require.ErrorIs(t, err, ErrNotConnected)
	require.Zero(t, importer.opens())

	// Element 5 of 8 cannot be opened.
	var elems []RemoteMemElem
	for range 8 {
		_, _, b := owner.export(4096)
		k := mustUnpack(t, ready, b, UnpackOptions{})
		elems = append(elems, RemoteMemElem{k, k.Address(), 4096})
	}
	importer.failOpen(5)
	_, err = importer.w.TryRemoteMemList(elems)
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorContains(t, err, "element 4")
	require.Equal(t, 0, importer.c.Cache().Stats().InUse)
	importer.drv.SetHook(nil)

	l, err := importer.w.RemoteMemList(testContext(t), elems)
	require.NoError(t, err)
	require.NoError(t, l.Release())
	for _, el := range elems {
		require.NoError(t, el.Rkey.Destroy())
	}
	require.Zero(t, importer.c.Cache().Stats().Live)
}
