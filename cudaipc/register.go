package cudaipc

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/gpurma/gpurma/cuda"
)

// RegisterOptions configures a registration; the zero value works.
type RegisterOptions struct {
	// Identity is the exporter as keys name it; nil is [Self].
	Identity *Identity
	// Slot and Generation go into the key, for revocation by the layer above.
	Slot, Generation uint32
	// KeepMemopsAsync leaves SYNC_MEMOPS of the allocation as it is. Otherwise it
	// is set, and stays set: copies and memsets of the memory are then complete
	// when their call returns, so that a key sent afterwards shows them.
	KeepMemopsAsync bool
}

// Registration is a range of memory that this process exports. It owns what
// must stay open for that, until its Close.
type Registration struct {
	key    Key
	reason string
	export *export
	ended  atomic.Bool
}

// Register exports the allocation that [ptr, ptr+size) lies in. ctx is a context
// of the memory's device.
//
// Memory that no handle can share is registered too, as KindNone with a Reason;
// its key names the memory and cannot be mapped by another process. However
// often an allocation is registered, it is exported once. A range that is not
// memory known to the driver, or reaches past its allocation, is an error that
// matches cuda.ErrorInvalidValue.
func Register(drv cuda.Driver, ctx cuda.Context, ptr cuda.DevicePtr, size uint64, opts RegisterOptions) (*Registration, error) {
	r, err := register(drv, ctx, ptr, size, opts)
	if err != nil {
		return nil, fmt.Errorf("register %s+%d: %w", ptr, size, err)
	}
	return r, nil
}

func register(drv cuda.Driver, ctx cuda.Context, ptr cuda.DevicePtr, size uint64, opts RegisterOptions) (*Registration, error) {
	switch {
	case drv == nil:
		return nil, cuda.ErrNoDriver
	case forked():
		return nil, ErrForked
	case ptr == 0 || size == 0 || size > math.MaxUint64-uint64(ptr):
		return nil, fmt.Errorf("not a range of memory: %w", cuda.ErrorInvalidValue)
	}
	id, err := identityOr(opts.Identity)
	if err != nil {
		return nil, err
	}
	a, err := inspect(drv, ctx, ptr)
	if err != nil {
		return nil, err
	}
	var x *export
	reason := ""
	if off := uint64(ptr - a.base); off > a.length || size > a.length-off {
		if !a.vmm() {
			return nil, fmt.Errorf("range reaches past its allocation of %d bytes at %s: %w", a.length, a.base, cuda.ErrorInvalidValue)
		}
		// The key then names the user's range alone.
		reason = "the range spans several physical allocations"
		a.base, a.length = ptr, size
	} else if x, err = exports.acquire(drv, ctx, a); err != nil {
		return nil, err
	} else {
		reason = x.reason
	}
	r := &Registration{export: x, reason: reason, key: Key{
		Identity: id, Slot: opts.Slot, Generation: opts.Generation,
		Device: a.uuid, Base: a.base, Length: a.length,
		Offset: uint64(ptr - a.base), UserLength: size, BufferID: a.buffer,
	}}
	if x != nil {
		r.key.Handles = x.handles
	}
	if len(r.key.Handles) > 0 && !opts.KeepMemopsAsync {
		if err := drv.PointerSetAttribute(cuda.PointerAttributeSyncMemops, ptr, 1); err != nil && a.legacy {
			_ = r.Close() // the first error is the one to report
			return nil, fmt.Errorf("set SYNC_MEMOPS: %w", err)
		}
	}
	return r, nil
}

// Key is the key of the range. It stays what it is after Close, and then names
// memory that cannot be mapped any more.
func (r *Registration) Key() Key { return r.key.clone() }

// AppendKey appends the packed key to b. It is ErrReleased after Close.
func (r *Registration) AppendKey(b []byte) ([]byte, error) {
	if r.ended.Load() {
		return b, fmt.Errorf("pack key: registration: %w", ErrReleased)
	}
	return r.key.AppendBinary(b)
}

// Kind says how the memory is shared; KindNone if it is not.
func (r *Registration) Kind() Kind { return r.key.Kind() }

// Reason says why the kind is KindNone; otherwise it is empty.
func (r *Registration) Reason() string { return r.reason }

// Close ends the registration. The last one of an allocation ends its export;
// that takes nothing from those who have it mapped. Close is idempotent.
func (r *Registration) Close() error {
	if r == nil || r.ended.Swap(true) || r.export == nil {
		return nil
	}
	if forked() {
		return ErrForked
	}
	return exports.release(r.export)
}

// allocation is what the driver says of an allocation of this process.
type allocation struct {
	base    cuda.DevicePtr
	length  uint64
	buffer  uint64
	device  cuda.Device
	uuid    cuda.UUID
	kind    cuda.MemoryType
	managed bool
	legacy  bool
	allowed cuda.HandleType
	context cuda.Context
}

// vmm tells whether the memory may be one of several pieces that lie side by
// side: VMM memory belongs to no context.
func (a *allocation) vmm() bool { return !a.legacy && !a.managed && a.context == 0 }

func inspect(drv cuda.Driver, ctx cuda.Context, ptr cuda.DevicePtr) (*allocation, error) {
	a := new(allocation)
	var err error
	var kind, device, managed, legacy, allowed, owner uint64
	for _, q := range []struct {
		attr     cuda.PointerAttribute
		value    *uint64
		optional bool // an older driver does not know it
	}{
		{cuda.PointerAttributeBufferID, &a.buffer, false},
		{cuda.PointerAttributeMemoryType, &kind, false},
		{cuda.PointerAttributeDeviceOrdinal, &device, false},
		{cuda.PointerAttributeIsManaged, &managed, true},
		{cuda.PointerAttributeIsLegacyIpcCapable, &legacy, true},
		{cuda.PointerAttributeAllowedHandleTypes, &allowed, true},
		{cuda.PointerAttributeContext, &owner, true},
	} {
		if *q.value, err = drv.PointerGetAttribute(q.attr, ptr); err != nil && !q.optional {
			return nil, fmt.Errorf("ask for pointer attribute %d: %w", q.attr, err)
		} else if err != nil && q.attr == cuda.PointerAttributeIsLegacyIpcCapable {
			legacy = 1 // only trying tells
		}
	}
	if a.base, a.length, err = drv.MemGetAddressRange(ctx, ptr); err != nil {
		return nil, fmt.Errorf("find allocation: %w", err)
	}
	if a.base > ptr {
		return nil, fmt.Errorf("find allocation: the driver says %s for %s: %w", a.base, ptr, cuda.ErrorInvalidValue)
	}
	a.kind, a.device, a.managed = cuda.MemoryType(kind), cuda.Device(device), managed != 0
	a.legacy, a.allowed, a.context = legacy != 0, cuda.HandleType(allowed), cuda.Context(owner)
	if a.uuid, err = drv.DeviceGetUuid(a.device); err != nil {
		return nil, fmt.Errorf("identify device %d: %w", a.device, err)
	}
	return a, nil
}
