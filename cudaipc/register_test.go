package cudaipc

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// ownerDriver is an exporter's driver with one allocation, for what a real one
// answers seldom.
type ownerDriver struct {
	*fakeDriver
	base    cuda.DevicePtr
	length  uint64
	attr    map[cuda.PointerAttribute]uint64
	missing map[cuda.PointerAttribute]bool // this driver does not know them
	exports atomic.Int32
	handles int
}

func newOwner() *ownerDriver {
	return &ownerDriver{fakeDriver: newFake(), base: 0x40000, length: mib, attr: map[cuda.PointerAttribute]uint64{
		cuda.PointerAttributeBufferID: 5, cuda.PointerAttributeMemoryType: uint64(cuda.MemoryTypeDevice),
		cuda.PointerAttributeIsLegacyIpcCapable: 1, cuda.PointerAttributeContext: uint64(fakeContext(0)),
	}, missing: map[cuda.PointerAttribute]bool{}}
}

func (d *ownerDriver) MemGetAddressRange(_ cuda.Context, p cuda.DevicePtr) (cuda.DevicePtr, uint64, error) {
	if p < d.base || p >= d.base.Add(d.length) {
		return 0, 0, cuda.Err("cuMemGetAddressRange", cuda.ErrorInvalidValue)
	}
	return d.base, d.length, nil
}

func (d *ownerDriver) PointerGetAttribute(a cuda.PointerAttribute, _ cuda.DevicePtr) (uint64, error) {
	if d.missing[a] {
		return 0, cuda.Err("cuPointerGetAttribute", cuda.ErrorInvalidValue)
	}
	return d.attr[a], nil
}

func (d *ownerDriver) PointerSetAttribute(a cuda.PointerAttribute, _ cuda.DevicePtr, v uint64) error {
	d.attr[a] = v
	return d.call("cuPointerSetAttribute")
}

func (d *ownerDriver) DeviceGetUuid(dev cuda.Device) (cuda.UUID, error) {
	return cuda.UUID{byte(dev)}, nil
}

func (d *ownerDriver) IpcGetMemHandle(cuda.Context, cuda.DevicePtr) (cuda.IpcMemHandle, error) {
	n := d.exports.Add(1)
	return cuda.IpcMemHandle{byte(n)}, d.call("cuIpcGetMemHandle")
}

func (d *ownerDriver) MemRetainAllocationHandle(cuda.Context, cuda.DevicePtr) (cuda.MemHandle, error) {
	if err := d.call("cuMemRetainAllocationHandle"); err != nil {
		return 0, err
	}
	d.handles++
	return 3, nil
}

func (d *ownerDriver) MemRelease(cuda.Context, cuda.MemHandle) error {
	d.handles--
	return d.call("cuMemRelease")
}

func (d *ownerDriver) MemExportPosixFD(cuda.Context, cuda.MemHandle) (int, error) {
	if err := d.call("cuMemExportToShareableHandle"); err != nil {
		return -1, err
	}
	return unix.MemfdCreate("exported", unix.MFD_CLOEXEC)
}

func TestRegisterOnOddDrivers(t *testing.T) {
	fails := func(name string, r cuda.Result) func(*ownerDriver) {
		return func(d *ownerDriver) {
			d.hook = func(call string) error {
				if call == name {
					return cuda.Err(call, r)
				}
				return nil
			}
		}
	}
	posix := func(d *ownerDriver) {
		d.attr[cuda.PointerAttributeIsLegacyIpcCapable] = 0
		d.attr[cuda.PointerAttributeContext] = 0
		d.attr[cuda.PointerAttributeAllowedHandleTypes] = uint64(cuda.HandleTypePosixFD)
	}
	for _, tc := range []struct {
		name   string
		change []func(d *ownerDriver)
		kind   Kind
		reason string // of KindNone, or part of the error
		err    error
	}{
		{name: "plain", kind: KindLegacy},
		{name: "too old to know the attributes", kind: KindLegacy, change: []func(*ownerDriver){func(d *ownerDriver) {
			d.missing[cuda.PointerAttributeIsLegacyIpcCapable] = true
			d.missing[cuda.PointerAttributeAllowedHandleTypes] = true
		}}},
		{name: "no legacy IPC", kind: KindNone, reason: "NOT_SUPPORTED",
			change: []func(*ownerDriver){fails("cuIpcGetMemHandle", cuda.ErrorNotSupported)}},
		{name: "export fails", err: cuda.ErrorUnknown,
			change: []func(*ownerDriver){fails("cuIpcGetMemHandle", cuda.ErrorUnknown)}},
		{name: "SYNC_MEMOPS fails", err: cuda.ErrorUnknown, reason: "SYNC_MEMOPS",
			change: []func(*ownerDriver){fails("cuPointerSetAttribute", cuda.ErrorUnknown)}},
		{name: "host memory", kind: KindNone, reason: "not device memory", change: []func(*ownerDriver){func(d *ownerDriver) {
			d.attr[cuda.PointerAttributeMemoryType] = uint64(cuda.MemoryTypeHost)
		}}},
		{name: "fabric only", kind: KindNone, reason: "fabric", change: []func(*ownerDriver){posix, func(d *ownerDriver) {
			d.attr[cuda.PointerAttributeAllowedHandleTypes] = uint64(cuda.HandleTypeFabric)
		}}},
		{name: "descriptor", kind: KindPosixFD, change: []func(*ownerDriver){posix}},
		{name: "descriptor, no SYNC_MEMOPS", kind: KindPosixFD,
			change: []func(*ownerDriver){posix, fails("cuPointerSetAttribute", cuda.ErrorNotSupported)}},
		{name: "pool memory", kind: KindNone, reason: "pool",
			change: []func(*ownerDriver){posix, fails("cuMemRetainAllocationHandle", cuda.ErrorInvalidValue)}},
		{name: "no right to export", kind: KindNone, reason: "NOT_PERMITTED",
			change: []func(*ownerDriver){posix, fails("cuMemExportToShareableHandle", cuda.ErrorNotPermitted)}},
		{name: "descriptor export fails", err: cuda.ErrorUnknown,
			change: []func(*ownerDriver){posix, fails("cuMemExportToShareableHandle", cuda.ErrorUnknown)}},
		{name: "handle is not released", err: cuda.ErrorUnknown, reason: "release allocation handle",
			change: []func(*ownerDriver){posix, fails("cuMemRelease", cuda.ErrorUnknown)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newOwner()
			for _, f := range tc.change {
				f(d)
			}
			fds := openFDs()
			r, err := Register(d, fakeContext(0), d.base+8, 16, RegisterOptions{Slot: 4, Generation: 2})
			if tc.err != nil {
				require.ErrorIs(t, err, tc.err)
				require.ErrorContains(t, err, tc.reason)
			} else {
				require.NoError(t, err)
				require.Equal(t, tc.kind, r.Kind())
				require.Contains(t, r.Reason(), tc.reason)
				k := r.Key()
				require.EqualValues(t, []uint64{4, 2, 8, 16}, []uint64{uint64(k.Slot), uint64(k.Generation), k.Offset, k.UserLength})
				require.NoError(t, r.Close())
			}
			require.Equal(t, fds, openFDs())
			require.Zero(t, d.handles)
			require.Empty(t, exports.byID)
		})
	}
}

// A range of several physical pieces is not cut short: it is not shared.
func TestRegisterSeveralPieces(t *testing.T) {
	d := newOwner()
	d.attr[cuda.PointerAttributeIsLegacyIpcCapable] = 0
	d.attr[cuda.PointerAttributeContext] = 0
	d.attr[cuda.PointerAttributeAllowedHandleTypes] = uint64(cuda.HandleTypePosixFD)
	r, err := Register(d, fakeContext(0), d.base+16, mib, RegisterOptions{})
	require.NoError(t, err)
	require.Equal(t, KindNone, r.Kind())
	require.Contains(t, r.Reason(), "several")
	k := r.Key()
	require.Equal(t, []uint64{uint64(d.base + 16), mib, 0, mib}, []uint64{uint64(k.Base), k.Length, k.Offset, k.UserLength})
	_, err = k.MarshalBinary()
	require.NoError(t, err)
	require.NoError(t, r.Close())
}

// Registrations that come at once share one export, or its error, which is not
// kept.
func TestRegisterAtOnce(t *testing.T) {
	d := newOwner()
	refuse := errors.New("not now")
	d.hook = func(call string) error {
		if call == "cuIpcGetMemHandle" {
			return refuse
		}
		return nil
	}
	_, err := Register(d, 0, d.base, 1, RegisterOptions{KeepMemopsAsync: true})
	require.ErrorIs(t, err, refuse)
	d.hook = nil
	d.exports.Store(0)

	rs := make([]*Registration, 32)
	var wg sync.WaitGroup
	for i := range rs {
		wg.Go(func() {
			var err error
			if rs[i], err = Register(d, 0, d.base.Add(uint64(i)), 1, RegisterOptions{KeepMemopsAsync: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, d.exports.Load())
	for _, r := range rs {
		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
	}
	require.Empty(t, exports.byID)
}

// A driver that cannot be a map key works, without sharing.
func TestRegisterUncomparableDriver(t *testing.T) {
	type odd struct {
		*ownerDriver
		_ []int
	}
	d := odd{ownerDriver: newOwner()}
	for range 2 {
		r, err := Register(d, 0, d.base, 1, RegisterOptions{})
		require.NoError(t, err)
		require.NoError(t, r.Close())
	}
	require.EqualValues(t, 2, d.exports.Load())
}
