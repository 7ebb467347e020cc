package ucxlite

import (
	"errors"
	"slices"
	"sync"

	"github.com/gpurma/gpurma/cuda"
)

// devices answers which local device and which context of it to use. It never
// makes a primary context by itself: a hidden one costs half a GiB.
type devices struct {
	known []cuda.UUID // by ordinal

	mu       sync.Mutex
	hints    map[cuda.Device]cuda.Context // a context the user was seen with
	retained map[cuda.Device]cuda.Context // active primaries that were retained
	chosen   map[cuda.UUID]cuda.Device    // by choose
}

func listDevices(drv cuda.Driver) ([]cuda.UUID, error) {
	n, err := drv.DeviceGetCount()
	if err != nil {
		return nil, err
	}
	known := make([]cuda.UUID, n)
	for i := range known {
		if known[i], err = drv.DeviceGetUuid(cuda.Device(i)); err != nil {
			return nil, err
		}
	}
	return known, nil
}

// saw remembers a context in which the user has memory on dev.
func (d *devices) saw(dev cuda.Device, ctx cuda.Context) {
	if ctx == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hints == nil {
		d.hints = map[cuda.Device]cuda.Context{}
	}
	d.hints[dev] = ctx
}

// hint is a context that was seen on dev, or 0.
func (d *devices) hint(dev cuda.Device) cuda.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hints[dev]
}

// choose picks the device on which to map memory of the device owner when no
// local buffer says it: the owner's own if it has a context here, else the
// first that has one, else the owner's own if it is visible, else the first. A
// choice of a device that had a context stands.
func (d *devices) choose(drv cuda.Driver, owner cuda.UUID) cuda.Device {
	d.mu.Lock()
	dev, ok := d.chosen[owner]
	d.mu.Unlock()
	if ok {
		return dev
	}
	dev, active := d.chooseNow(drv, owner)
	if active {
		d.mu.Lock()
		if d.chosen == nil {
			d.chosen = map[cuda.UUID]cuda.Device{}
		}
		d.chosen[owner] = dev
		d.mu.Unlock()
	}
	return dev
}

func (d *devices) chooseNow(drv cuda.Driver, owner cuda.UUID) (dev cuda.Device, active bool) {
	own := slices.Index(d.known, owner)
	if own >= 0 && d.active(drv, cuda.Device(own)) {
		return cuda.Device(own), true
	}
	for i := range d.known {
		if d.active(drv, cuda.Device(i)) {
			return cuda.Device(i), true
		}
	}
	return cuda.Device(max(own, 0)), false
}

func (d *devices) active(drv cuda.Driver, dev cuda.Device) bool {
	if active, err := drv.DevicePrimaryCtxGetState(dev); err == nil && active {
		return true
	}
	return d.hint(dev) != 0
}

// of says where the memory at ptr is: its device, and its context or 0.
func (d *devices) of(drv cuda.Driver, ptr cuda.DevicePtr) (cuda.Device, cuda.Context, error) {
	ordinal, err := drv.PointerGetAttribute(cuda.PointerAttributeDeviceOrdinal, ptr)
	if err != nil {
		return 0, 0, err
	}
	ctx, err := drv.PointerGetAttribute(cuda.PointerAttributeContext, ptr)
	if err != nil {
		ctx = 0 // memory without a context
	}
	dev := cuda.Device(int32(ordinal))
	if dev < 0 || int(dev) >= len(d.known) {
		dev = 0 // managed memory that lives on the host
	}
	return dev, cuda.Context(ctx), nil
}

// copyContext is a context in which memory on dev can be copied: own if there
// is one, else the active primary (retained until close), else one that was
// seen, else a primary that this call makes.
func (d *devices) copyContext(drv cuda.Driver, dev cuda.Device, own cuda.Context) (cuda.Context, error) {
	if own != 0 {
		return own, nil
	}
	if hint := d.hint(dev); hint != 0 {
		active, err := drv.DevicePrimaryCtxGetState(dev)
		if err != nil {
			return 0, err
		}
		if _, gone := drv.CtxGetDevice(hint); !active && gone == nil {
			return hint, nil
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if ctx := d.retained[dev]; ctx != 0 {
		return ctx, nil
	}
	ctx, err := drv.DevicePrimaryCtxRetain(dev)
	if err != nil {
		return 0, err
	}
	if d.retained == nil {
		d.retained = map[cuda.Device]cuda.Context{}
	}
	d.retained[dev] = ctx
	return ctx, nil
}

func (d *devices) close(drv cuda.Driver) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for dev := range d.retained {
		if err := drv.DevicePrimaryCtxRelease(dev); err != nil && !contextGone(err) {
			errs = append(errs, err)
		}
	}
	d.retained = nil
	return errors.Join(errs...)
}

// contextGone tells whether a call failed because the context, or the whole
// driver, ended before us and took with it what the call was to give back.
func contextGone(err error) bool {
	return errors.Is(err, cuda.ErrorContextIsDestroyed) || errors.Is(err, cuda.ErrorDeinitialized) ||
		errors.Is(err, cuda.ErrorInvalidContext)
}
