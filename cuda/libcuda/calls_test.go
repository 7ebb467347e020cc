//go:build cgo

package libcuda_test

import (
	"fmt"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/stretchr/testify/require"
)

// objects are what the calls of the table work on. In tests where no call gets
// as far as the driver they may be anything.
type objects struct {
	ctx    cuda.Context
	dst    cuda.DevicePtr
	src    cuda.DevicePtr
	stream cuda.Stream
	event  cuda.Event
}

func newObjects(tb testing.TB, drv cuda.Driver, ctx cuda.Context) objects {
	tb.Helper()
	o := objects{ctx: ctx}
	var err error
	o.dst, err = drv.MemAlloc(ctx, 64)
	require.NoError(tb, err)
	o.src, err = drv.MemAlloc(ctx, 64)
	require.NoError(tb, err)
	o.stream, err = drv.StreamCreate(ctx, cuda.StreamNonBlocking)
	require.NoError(tb, err)
	o.event, err = drv.EventCreate(ctx, cuda.EventDisableTiming)
	require.NoError(tb, err)
	return o
}

// driverCall is one call of the table.
type driverCall struct {
	method string
	symbol string // what the library must have for it
	// inContext: the method takes a context and must run in it.
	inContext bool
	// call makes it and says how what came back differs from what the fake
	// library gives.
	call func(cuda.Driver, objects) error
}

// want compares what a successful call returned.
func want[T comparable](got T, err error, expected T) error {
	if err == nil && got != expected {
		return fmt.Errorf("got %v, want %v", got, expected)
	}
	return err
}

const (
	fakeRange  cuda.DevicePtr = 0x7f0000000000
	fakeHandle cuda.MemHandle = 0xaaaabbbbccccdddd
	fakePool   cuda.MemPool   = 0x9001
	fakeBlock                 = 2 << 20
)

var fakeProp = cuda.AllocationProp{Device: 1, HandleTypes: cuda.HandleTypePosixFD}

func fakeIPCHandle(ptr cuda.DevicePtr) (h cuda.IpcMemHandle) {
	for i := range h {
		h[i] = byte(i)
		if i < 8 {
			h[i] = byte(ptr >> (8 * i))
		}
	}
	return h
}

func fakeUUID(b byte) (u cuda.UUID) {
	return cuda.UUID(slices.Repeat([]byte{b}, len(u)))
}

// driverCalls has every method of cuda.Driver but those of Platform and
// CurrentContext; TestEveryMethodIsInTheTable sees to it.
var driverCalls = []driverCall{
	{"DeviceGetCount", "cuDeviceGetCount", false, func(d cuda.Driver, o objects) error {
		n, err := d.DeviceGetCount()
		return want(n, err, 2)
	}},
	{"DeviceGetName", "cuDeviceGetName", false, func(d cuda.Driver, o objects) error {
		name, err := d.DeviceGetName(1)
		return want(name, err, "Fake 1")
	}},
	{"DeviceGetUuid", "cuDeviceGetUuid_v2", false, func(d cuda.Driver, o objects) error {
		uuid, err := d.DeviceGetUuid(1)
		return want(uuid, err, fakeUUID(0x21))
	}},
	{"DeviceTotalMem", "cuDeviceTotalMem_v2", false, func(d cuda.Driver, o objects) error {
		n, err := d.DeviceTotalMem(1)
		return want(n, err, 80<<30)
	}},
	{"DeviceGetAttribute", "cuDeviceGetAttribute", false, func(d cuda.Driver, o objects) error {
		v, err := d.DeviceGetAttribute(cuda.DeviceAttributePCIBusID, 1)
		if err := want(v, err, int(cuda.DeviceAttributePCIBusID)); err != nil {
			return err
		}
		v, err = d.DeviceGetAttribute(1000, 1)
		return want(v, err, -1)
	}},
	{"DeviceCanAccessPeer", "cuDeviceCanAccessPeer", false, func(d cuda.Driver, o objects) error {
		can, err := d.DeviceCanAccessPeer(0, 1)
		return want(can, err, true)
	}},

	{"DevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", false, func(d cuda.Driver, o objects) error {
		_, err := d.DevicePrimaryCtxRetain(1)
		return err
	}},
	{"DevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState", false, func(d cuda.Driver, o objects) error {
		active, err := d.DevicePrimaryCtxGetState(1)
		return want(active, err, true)
	}},
	{"DevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", false, func(d cuda.Driver, o objects) error {
		return d.DevicePrimaryCtxRelease(1)
	}},
	{"CtxCreate", "cuCtxCreate_v2", false, func(d cuda.Driver, o objects) error {
		_, err := d.CtxCreate(1)
		return err
	}},
	{"CtxDestroy", "cuCtxDestroy_v2", false, func(d cuda.Driver, o objects) error {
		ctx, err := d.CtxCreate(1)
		if err != nil { // where creating fails too
			ctx = o.ctx
		}
		return d.CtxDestroy(ctx)
	}},
	{"CtxSynchronize", "cuCtxSynchronize", true, func(d cuda.Driver, o objects) error {
		return d.CtxSynchronize(o.ctx)
	}},
	{"CtxGetDevice", "cuCtxGetDevice", true, func(d cuda.Driver, o objects) error {
		dev, err := d.CtxGetDevice(o.ctx)
		return want(dev, err, 1)
	}},

	{"MemAlloc", "cuMemAlloc_v2", true, func(d cuda.Driver, o objects) error {
		_, err := d.MemAlloc(o.ctx, 64)
		return err
	}},
	{"MemAllocManaged", "cuMemAllocManaged", true, func(d cuda.Driver, o objects) error {
		_, err := d.MemAllocManaged(o.ctx, 64, cuda.MemAttachGlobal)
		return err
	}},
	{"MemFree", "cuMemFree_v2", true, func(d cuda.Driver, o objects) error {
		return d.MemFree(o.ctx, 0)
	}},
	{"MemGetInfo", "cuMemGetInfo_v2", true, func(d cuda.Driver, o objects) error {
		free, total, err := d.MemGetInfo(o.ctx)
		return want([2]uint64{free, total}, err, [2]uint64{0, 80 << 30})
	}},
	{"MemGetAddressRange", "cuMemGetAddressRange_v2", true, func(d cuda.Driver, o objects) error {
		base, size, err := d.MemGetAddressRange(o.ctx, fakeRange+17)
		return want([2]uint64{uint64(base), size}, err, [2]uint64{uint64(fakeRange), 4096})
	}},

	{"MemsetD8", "cuMemsetD8_v2", true, func(d cuda.Driver, o objects) error {
		return d.MemsetD8(o.ctx, o.src, 0xa5, 64)
	}},
	{"MemcpyHtoD", "cuMemcpyHtoD_v2", true, func(d cuda.Driver, o objects) error {
		return d.MemcpyHtoD(o.ctx, o.src, []byte("sixteen of bytes"))
	}},
	{"MemcpyDtoD", "cuMemcpyDtoD_v2", true, func(d cuda.Driver, o objects) error {
		return d.MemcpyDtoD(o.ctx, o.dst, o.src, 64)
	}},
	{"MemcpyDtoH", "cuMemcpyDtoH_v2", true, func(d cuda.Driver, o objects) error {
		got := make([]byte, 17)
		err := d.MemcpyDtoH(o.ctx, got, o.dst)
		return want(string(got), err, "sixteen of bytes\xa5")
	}},
	{"MemsetD8Async", "cuMemsetD8Async", true, func(d cuda.Driver, o objects) error {
		return d.MemsetD8Async(o.ctx, o.src, 0x5a, 64, o.stream)
	}},
	{"MemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", true, func(d cuda.Driver, o objects) error {
		return d.MemcpyHtoDAsync(o.ctx, o.src, []byte("async"), o.stream)
	}},
	{"MemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2", true, func(d cuda.Driver, o objects) error {
		return d.MemcpyDtoDAsync(o.ctx, o.dst, o.src, 64, o.stream)
	}},
	{"MemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", true, func(d cuda.Driver, o objects) error {
		got := make([]byte, 6)
		err := d.MemcpyDtoHAsync(o.ctx, got, o.dst, o.stream)
		return want(string(got), err, "async\x5a")
	}},

	{"PointerGetAttribute", "cuPointerGetAttribute", false, func(d cuda.Driver, o objects) error {
		id, err := d.PointerGetAttribute(cuda.PointerAttributeBufferID, o.src)
		return want(id, err, 0xfedcba9876543210)
	}},
	{"PointerSetAttribute", "cuPointerSetAttribute", false, func(d cuda.Driver, o objects) error {
		return d.PointerSetAttribute(cuda.PointerAttributeSyncMemops, o.src, 1)
	}},

	{"IpcGetMemHandle", "cuIpcGetMemHandle", true, func(d cuda.Driver, o objects) error {
		h, err := d.IpcGetMemHandle(o.ctx, fakeRange)
		return want(h, err, fakeIPCHandle(fakeRange))
	}},
	{"IpcOpenMemHandle", "cuIpcOpenMemHandle_v2", true, func(d cuda.Driver, o objects) error {
		ptr, err := d.IpcOpenMemHandle(o.ctx, fakeIPCHandle(fakeRange), cuda.IpcMemLazyEnablePeerAccess)
		return want(ptr, err, fakeRange)
	}},
	{"IpcCloseMemHandle", "cuIpcCloseMemHandle", true, func(d cuda.Driver, o objects) error {
		return d.IpcCloseMemHandle(o.ctx, fakeRange)
	}},

	{"StreamCreate", "cuStreamCreate", true, func(d cuda.Driver, o objects) error {
		_, err := d.StreamCreate(o.ctx, cuda.StreamNonBlocking)
		return err
	}},
	{"StreamDestroy", "cuStreamDestroy_v2", true, func(d cuda.Driver, o objects) error {
		return d.StreamDestroy(o.ctx, 0)
	}},
	{"StreamSynchronize", "cuStreamSynchronize", true, func(d cuda.Driver, o objects) error {
		return d.StreamSynchronize(o.ctx, o.stream)
	}},
	{"StreamQuery", "cuStreamQuery", true, func(d cuda.Driver, o objects) error {
		return d.StreamQuery(o.ctx, o.stream)
	}},
	{"StreamWaitEvent", "cuStreamWaitEvent", true, func(d cuda.Driver, o objects) error {
		return d.StreamWaitEvent(o.ctx, o.stream, o.event)
	}},
	{"EventCreate", "cuEventCreate", true, func(d cuda.Driver, o objects) error {
		_, err := d.EventCreate(o.ctx, cuda.EventDisableTiming)
		return err
	}},
	{"EventDestroy", "cuEventDestroy_v2", true, func(d cuda.Driver, o objects) error {
		e, err := d.EventCreate(o.ctx, cuda.EventDefault)
		if err != nil {
			e = o.event
		}
		return d.EventDestroy(o.ctx, e)
	}},
	{"EventRecord", "cuEventRecord", true, func(d cuda.Driver, o objects) error {
		return d.EventRecord(o.ctx, o.event, o.stream)
	}},
	{"EventQuery", "cuEventQuery", true, func(d cuda.Driver, o objects) error {
		return d.EventQuery(o.ctx, o.event)
	}},
	{"EventSynchronize", "cuEventSynchronize", true, func(d cuda.Driver, o objects) error {
		return d.EventSynchronize(o.ctx, o.event)
	}},

	{"MemGetAllocationGranularity", "cuMemGetAllocationGranularity", false, func(d cuda.Driver, o objects) error {
		n, err := d.MemGetAllocationGranularity(fakeProp)
		return want(n, err, fakeBlock)
	}},
	{"MemCreate", "cuMemCreate", true, func(d cuda.Driver, o objects) error {
		h, err := d.MemCreate(o.ctx, fakeBlock, fakeProp)
		return want(h, err, fakeHandle)
	}},
	{"MemRelease", "cuMemRelease", true, func(d cuda.Driver, o objects) error {
		return d.MemRelease(o.ctx, fakeHandle)
	}},
	{"MemAddressReserve", "cuMemAddressReserve", true, func(d cuda.Driver, o objects) error {
		ptr, err := d.MemAddressReserve(o.ctx, fakeBlock, 0)
		return want(ptr, err, fakeRange)
	}},
	{"MemAddressFree", "cuMemAddressFree", true, func(d cuda.Driver, o objects) error {
		return d.MemAddressFree(o.ctx, fakeRange, fakeBlock)
	}},
	{"MemMap", "cuMemMap", true, func(d cuda.Driver, o objects) error {
		return d.MemMap(o.ctx, fakeRange, fakeBlock, 0, fakeHandle)
	}},
	{"MemUnmap", "cuMemUnmap", true, func(d cuda.Driver, o objects) error {
		return d.MemUnmap(o.ctx, fakeRange, fakeBlock)
	}},
	{"MemSetAccess", "cuMemSetAccess", true, func(d cuda.Driver, o objects) error {
		return d.MemSetAccess(o.ctx, fakeRange, fakeBlock, 1, cuda.AccessReadWrite)
	}},
	{"MemRetainAllocationHandle", "cuMemRetainAllocationHandle", true, func(d cuda.Driver, o objects) error {
		h, err := d.MemRetainAllocationHandle(o.ctx, fakeRange)
		return want(h, err, fakeHandle)
	}},
	{"MemExportPosixFD", "cuMemExportToShareableHandle", true, func(d cuda.Driver, o objects) error {
		fd, err := d.MemExportPosixFD(o.ctx, fakeHandle)
		if err != nil {
			return err
		}
		return syscall.Close(fd)
	}},
	{"MemImportPosixFD", "cuMemImportFromShareableHandle", true, func(d cuda.Driver, o objects) error {
		h, err := d.MemImportPosixFD(o.ctx, 0)
		return want(h, err, fakeHandle)
	}},

	{"MemPoolCreate", "cuMemPoolCreate", true, func(d cuda.Driver, o objects) error {
		pool, err := d.MemPoolCreate(o.ctx, cuda.MemPoolProp{Device: 1, HandleTypes: cuda.HandleTypePosixFD})
		return want(pool, err, fakePool)
	}},
	{"MemPoolDestroy", "cuMemPoolDestroy", true, func(d cuda.Driver, o objects) error {
		return d.MemPoolDestroy(o.ctx, fakePool)
	}},
	{"MemPoolTrimTo", "cuMemPoolTrimTo", true, func(d cuda.Driver, o objects) error {
		return d.MemPoolTrimTo(o.ctx, fakePool, 5<<30)
	}},
	{"MemPoolSetAccess", "cuMemPoolSetAccess", true, func(d cuda.Driver, o objects) error {
		return d.MemPoolSetAccess(o.ctx, fakePool, 1, cuda.AccessReadWrite)
	}},
	{"MemPoolExportPosixFD", "cuMemPoolExportToShareableHandle", true, func(d cuda.Driver, o objects) error {
		fd, err := d.MemPoolExportPosixFD(o.ctx, fakePool)
		if err != nil {
			return err
		}
		return syscall.Close(fd)
	}},
	{"MemPoolImportPosixFD", "cuMemPoolImportFromShareableHandle", true, func(d cuda.Driver, o objects) error {
		pool, err := d.MemPoolImportPosixFD(o.ctx, 0)
		return want(pool, err, fakePool)
	}},
	{"MemPoolExportPointer", "cuMemPoolExportPointer", true, func(d cuda.Driver, o objects) error {
		data, err := d.MemPoolExportPointer(o.ctx, fakeRange)
		return want(data, err, cuda.MemPoolPtrExportData(fakeIPCHandle(fakeRange)))
	}},
	{"MemPoolImportPointer", "cuMemPoolImportPointer", true, func(d cuda.Driver, o objects) error {
		ptr, err := d.MemPoolImportPointer(o.ctx, fakePool, cuda.MemPoolPtrExportData(fakeIPCHandle(fakeRange)))
		return want(ptr, err, fakeRange)
	}},
	{"MemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", true, func(d cuda.Driver, o objects) error {
		ptr, err := d.MemAllocFromPoolAsync(o.ctx, 5<<30, fakePool, o.stream)
		return want(ptr, err, fakeRange)
	}},
	{"MemFreeAsync", "cuMemFreeAsync", true, func(d cuda.Driver, o objects) error {
		return d.MemFreeAsync(o.ctx, fakeRange, o.stream)
	}},
}

// TestEveryMethodIsInTheTable keeps the table whole when the interface grows.
func TestEveryMethodIsInTheTable(t *testing.T) {
	elsewhere := map[string]bool{}
	for _, part := range []reflect.Type{reflect.TypeFor[cuda.Platform](), reflect.TypeFor[cuda.CurrentContext]()} {
		for i := range part.NumMethod() {
			elsewhere[part.Method(i).Name] = true
		}
	}
	var methods, listed []string
	all := reflect.TypeFor[cuda.Driver]()
	for i := range all.NumMethod() {
		if name := all.Method(i).Name; !elsewhere[name] {
			methods = append(methods, name)
		}
	}
	for _, c := range driverCalls {
		listed = append(listed, c.method)
	}
	require.ElementsMatch(t, methods, listed)
}

// TestCallsReachTheDriver: every call goes through with its arguments and
// results whole, in the context it was given.
func TestCallsReachTheDriver(t *testing.T) {
	f := openFake(t, fakeOptions{})
	ctx, err := f.CtxCreate(1)
	require.NoError(t, err)
	o := newObjects(t, f, ctx)
	for _, c := range driverCalls {
		f.command("reset")
		require.NoError(t, c.call(f, o), c.method)
		seen := f.report().calls[c.symbol]
		require.NotZero(t, seen.count, c.symbol)
		if c.inContext {
			require.Equal(t, ctx, seen.context, c.method)
		}
	}
	require.Equal(t, "0 ", f.report().violations)
}
