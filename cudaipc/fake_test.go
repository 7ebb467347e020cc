package cudaipc

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

// fakeDriver is an importer's driver without memory: it knows which handles can
// be opened, counts opens as FACTS F5 says, and lets a test stand in any call.
// Only what the cache calls is there.
type fakeDriver struct {
	cuda.Driver

	// hook runs before a call, with no lock held; an error is the call's answer.
	hook func(call string) error

	mu        sync.Mutex
	single    bool // refuse overlapping opens (208)
	exports   map[cuda.IpcMemHandle]*fakeExport
	maps      map[cuda.DevicePtr]*fakeMap
	nextPtr   cuda.DevicePtr
	nextID    uint64
	primary   map[cuda.Device]int // references
	opens     int
	closes    int
	maxInside int
	inside    int
}

type fakeExport struct {
	peer   uint32
	base   cuda.DevicePtr
	length uint64
	gone   cuda.Result // what an open answers, if not Success
}

type fakeMap struct {
	handle cuda.IpcMemHandle
	size   uint64
	count  int
	opens  map[cuda.Context]int // count, by the context that opened it
}

func newFake() *fakeDriver {
	return &fakeDriver{
		exports: map[cuda.IpcMemHandle]*fakeExport{}, maps: map[cuda.DevicePtr]*fakeMap{},
		primary: map[cuda.Device]int{}, nextPtr: 0x7000_0000_0000, nextID: 1,
	}
}

// fakePeer is the identity of exporter n.
func fakePeer(n uint32) Identity {
	self, err := Self()
	if err != nil {
		panic(err)
	}
	id := Identity{System: self.System, PIDNS: self.PIDNS, PID: n, Start: uint64(n)}
	binary.LittleEndian.PutUint32(id.Nonce[:], n)
	return id
}

// export makes an allocation of the peer at base and returns a key of it.
func (d *fakeDriver) export(peer uint32, base cuda.DevicePtr, length uint64) *Key {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := d.nextID
	d.nextID++
	var h cuda.IpcMemHandle
	binary.LittleEndian.PutUint64(h[:], id)
	d.exports[h] = &fakeExport{peer: peer, base: base, length: length}
	return &Key{
		Identity: fakePeer(peer), Base: base, Length: length, UserLength: length, BufferID: id,
		Handles: []Handle{{Kind: KindLegacy, Data: h[:]}},
	}
}

// unexport makes opens of the key's handle answer r from now on.
func (d *fakeDriver) unexport(k *Key, r cuda.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.exports[cuda.IpcMemHandle(k.Handles[0].Data)].gone = r
}

func (d *fakeDriver) call(name string) error {
	if d.hook != nil {
		return d.hook(name)
	}
	return nil
}

func (d *fakeDriver) counts() (opens, closes, live int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.maps {
		live += m.count
	}
	return d.opens, d.closes, live
}

// fakeContext is the primary context of dev; user contexts are above 1000.
func fakeContext(dev cuda.Device) cuda.Context { return cuda.Context(100 + dev) }

func (d *fakeDriver) DevicePrimaryCtxGetState(dev cuda.Device) (bool, error) {
	if err := d.call("cuDevicePrimaryCtxGetState"); err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.primary[dev] > 0, nil
}

func (d *fakeDriver) DevicePrimaryCtxRetain(dev cuda.Device) (cuda.Context, error) {
	if err := d.call("cuDevicePrimaryCtxRetain"); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.primary[dev]++
	return fakeContext(dev), nil
}

func (d *fakeDriver) DevicePrimaryCtxRelease(dev cuda.Device) error {
	if err := d.call("cuDevicePrimaryCtxRelease"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.primary[dev]--
	return nil
}

func (d *fakeDriver) CtxGetDevice(ctx cuda.Context) (cuda.Device, error) {
	if err := d.call("cuCtxGetDevice"); err != nil {
		return 0, err
	}
	if ctx >= 1000 {
		return cuda.Device(ctx - 1000), nil
	}
	return cuda.Device(ctx - 100), nil
}

func (d *fakeDriver) IpcOpenMemHandle(ctx cuda.Context, h cuda.IpcMemHandle, flags uint32) (cuda.DevicePtr, error) {
	d.mu.Lock()
	d.inside++
	d.maxInside = max(d.maxInside, d.inside)
	d.mu.Unlock()
	defer func() { d.mu.Lock(); d.inside--; d.mu.Unlock() }()
	if err := d.call("cuIpcOpenMemHandle"); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.exports[h]
	if x == nil {
		return 0, cuda.Err("cuIpcOpenMemHandle", cuda.ErrorInvalidValue)
	}
	for ptr, m := range d.maps {
		o := d.exports[m.handle]
		switch {
		case d.single && o.peer == x.peer && o.base < x.base.Add(x.length) && x.base < o.base.Add(o.length):
			return 0, cuda.Err("cuIpcOpenMemHandle", cuda.ErrorAlreadyMapped)
		case m.handle == h:
			m.count++
			m.opens[ctx]++
			d.opens++
			return ptr, nil
		}
	}
	if x.gone != cuda.Success {
		return 0, cuda.Err("cuIpcOpenMemHandle", x.gone)
	}
	ptr := d.nextPtr
	d.nextPtr = ptr.Add(x.length + 4096)
	d.maps[ptr] = &fakeMap{handle: h, size: x.length, count: 1, opens: map[cuda.Context]int{ctx: 1}}
	d.opens++
	return ptr, nil
}

func (d *fakeDriver) IpcCloseMemHandle(ctx cuda.Context, ptr cuda.DevicePtr) error {
	if err := d.call("cuIpcCloseMemHandle"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.maps[ptr]
	if m == nil || m.opens[ctx] == 0 { // another context's is not known to be refused: a careful program leaves it
		return cuda.Err("cuIpcCloseMemHandle", cuda.ErrorInvalidValue)
	}
	d.closes++
	m.opens[ctx]--
	if m.count--; m.count == 0 {
		delete(d.maps, ptr)
	}
	return nil
}

func (d *fakeDriver) MemGetAddressRange(ctx cuda.Context, ptr cuda.DevicePtr) (cuda.DevicePtr, uint64, error) {
	if err := d.call("cuMemGetAddressRange"); err != nil {
		return 0, 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.maps[ptr]; m != nil {
		return ptr, m.size, nil
	}
	return 0, 0, cuda.Err("cuMemGetAddressRange", cuda.ErrorInvalidValue)
}

// mapped tells whether ptr is open, and of which handle.
func (d *fakeDriver) mapped(ptr cuda.DevicePtr, k *Key) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.maps[ptr]
	if m == nil {
		return fmt.Errorf("%s is not mapped", ptr)
	}
	if m.handle != cuda.IpcMemHandle(k.Handles[0].Data) {
		return fmt.Errorf("%s is a mapping of other memory than %s", ptr, k)
	}
	return nil
}

// mustCache returns a cache whose bookkeeping is checked at the end, when
// nothing may be left in it or in the driver.
func mustCache(tb testing.TB, drv cuda.Driver, opts CacheOptions) *Cache {
	tb.Helper()
	c, err := NewCache(drv, opts)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, c.CheckInvariants())
		require.NoError(tb, c.Close())
		require.NoError(tb, c.CheckInvariants())
		s := c.Stats()
		require.Zero(tb, s.Live, "mappings left: %+v", s)
		if f, ok := drv.(*fakeDriver); ok {
			opens, closes, live := f.counts()
			require.Zero(tb, live)
			require.Equal(tb, opens, closes)
			for dev, n := range f.primary {
				require.Zero(tb, n, "primary context of device %d still retained", dev)
			}
		}
	})
	return c
}

func mustMap(tb testing.TB, c *Cache, k *Key, opts MapOptions) *Mapping {
	tb.Helper()
	m, err := c.Map(tb.Context(), k, opts)
	require.NoError(tb, err)
	return m
}
