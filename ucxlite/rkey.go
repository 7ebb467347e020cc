package ucxlite

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
)

// UnpackOptions are what an unpack may be told; the zero value works.
type UnpackOptions struct {
	// Policy is the key's policy; nil takes the endpoint's.
	Policy *Policy
	// Map maps at once instead of at the first use, and fails where that fails.
	Map bool
	// Device is the local device on which pointers and list elements of the key
	// are mapped; nil chooses. Operations use their local buffer's device.
	Device *cuda.Device
}

// Rkey is the right to a range of a peer's memory. One that was only unpacked
// holds nothing; see the package comment for what the first use changes.
type Rkey struct {
	e      *Endpoint
	key    cudaipc.Key
	policy Policy
	device *cuda.Device

	mu    sync.Mutex
	ended error // nil, ErrDestroyed or ErrEndpointClosed
	first hold  // the common case: one local device
	more  []*hold
}

// hold is what a key has on one local device.
type hold struct {
	used  bool
	dev   cuda.Device
	claim cudaipc.Claim
	ptr   cudaipc.Mapping // the pin of a pointer that was handed out
}

// UnpackRkey reads a packed key of the endpoint's peer. It never calls the
// driver, unless options ask for the mapping. Bytes that are no key, and a key
// of another process than the peer, are ErrInvalidKey.
func (e *Endpoint) UnpackRkey(b []byte, opts UnpackOptions) (*Rkey, error) {
	key, err := cudaipc.ParseKey(b)
	if err != nil {
		return nil, fmt.Errorf("unpack key of %s: %w", e.peer, err)
	}
	if key.Identity != e.peer.name.id {
		return nil, fmt.Errorf("unpack key of %s: %w: its exporter is %s", e.peer, ErrInvalidKey, key.Identity)
	}
	if opts.Device != nil && (*opts.Device < 0 || int(*opts.Device) >= len(e.w.c.devices.known)) {
		return nil, fmt.Errorf("unpack key of %s: %w: no device %d", e.peer, ErrInvalidParam, *opts.Device)
	}
	k := &Rkey{e: e, key: key, policy: e.policy, device: opts.Device}
	if opts.Policy != nil {
		k.policy = *opts.Policy
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, fmt.Errorf("unpack key of %s: %w", e.peer, ErrEndpointClosed)
	}
	e.keys[k] = struct{}{}
	e.mu.Unlock()
	if opts.Map {
		if err := k.mapNow(); err != nil {
			return nil, errors.Join(err, k.Destroy())
		}
	}
	return k, nil
}

// Address is the exporter's address of the range.
func (k *Rkey) Address() uint64 { return uint64(k.key.Address()) }

// Length is the size of the range in bytes.
func (k *Rkey) Length() uint64 { return k.key.UserLength }

// Policy is what the key's last use does with its mapping.
func (k *Rkey) Policy() Policy { return k.policy }

// Key is the key as it was unpacked, for people and tools to look at. It must
// not be changed.
func (k *Rkey) Key() *cudaipc.Key { return &k.key }

func (k *Rkey) String() string { return k.key.String() }

// Ptr returns the address here of the exporter's address raddr, which may also
// be the end of the range. The first call maps the memory and pins it: the
// pointer lives until Destroy, or until the endpoint closes. Where the memory
// cannot be mapped it is ErrUnreachable or ErrNotShareable with the reason.
func (k *Rkey) Ptr(raddr uint64) (cuda.DevicePtr, error) {
	ptr, err := k.pointer(raddr)
	if err != nil {
		return 0, fmt.Errorf("pointer to %#x: %w", raddr, translate(err))
	}
	return ptr, nil
}

func (k *Rkey) pointer(raddr uint64) (cuda.DevicePtr, error) {
	if err := k.check(raddr, 0); err != nil {
		return 0, err
	}
	dev := k.defaultDevice()
	k.mu.Lock()
	if k.ended != nil {
		defer k.mu.Unlock()
		return 0, k.why()
	}
	if h := k.find(dev); h != nil && h.ptr.Held() {
		defer k.mu.Unlock()
		return k.translate(&h.ptr, raddr), nil
	}
	k.mu.Unlock()

	var m cudaipc.Mapping
	if err := k.pin(k.e.w.c.life, dev, 0, &m); err != nil {
		return 0, err
	}
	// What is left in m is released: another pointer's pin came first, or the
	// key ended meanwhile.
	defer m.Release(k.policy)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended != nil {
		return 0, k.why()
	}
	h := k.find(dev)                               // there is one: pin has claimed
	if !h.ptr.Held() && !h.claim.PinInto(&h.ptr) { // m pins what is claimed
		return 0, ErrStale
	}
	return k.translate(&h.ptr, raddr), nil
}

// translate is the address in m of the exporter's raddr.
func (k *Rkey) translate(m *cudaipc.Mapping, raddr uint64) cuda.DevicePtr {
	return m.Ptr().Add(raddr - uint64(k.key.Base))
}

// check tells whether [raddr, raddr+n) is within the key's range.
func (k *Rkey) check(raddr, n uint64) error {
	start, length := k.Address(), k.Length()
	if raddr < start || raddr-start > length || n > length-(raddr-start) {
		return fmt.Errorf("%w: [%#x, +%d) is not in [%#x, +%d)", ErrOutOfRange, raddr, n, start, length)
	}
	return nil
}

// live is why the key cannot be used any more, or nil.
func (k *Rkey) live() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.why()
}

// why is ended with the key's name, or nil. k.mu is held.
func (k *Rkey) why() error {
	if k.ended == nil {
		return nil
	}
	return fmt.Errorf("key of %s: %w", k.e.peer, k.ended)
}

// mapNow maps and claims, without a pin.
func (k *Rkey) mapNow() error {
	var m cudaipc.Mapping
	if err := k.pin(k.e.w.c.life, k.defaultDevice(), 0, &m); err != nil {
		return fmt.Errorf("map key of %s: %w", k.e.peer, translate(err))
	}
	return m.Release(k.policy)
}

// pin pins the allocation, mapped on dev, into m, and leaves the key with a
// claim of it. Only the first time does it call the driver.
func (k *Rkey) pin(ctx context.Context, dev cuda.Device, hint cuda.Context, m *cudaipc.Mapping) error {
	k.mu.Lock()
	if k.ended != nil {
		defer k.mu.Unlock()
		return k.why()
	}
	if h := k.find(dev); h != nil && h.claim.PinInto(m) {
		k.mu.Unlock()
		return nil
	}
	k.mu.Unlock()

	if !k.local() {
		if err := k.e.Err(); err != nil {
			return err
		}
	}
	if err := k.e.w.c.cache.MapInto(ctx, m, &k.key, k.e.mapOptions(dev, hint)); err != nil {
		return err
	}
	k.mu.Lock()
	if err := k.why(); err != nil {
		k.mu.Unlock()
		return errors.Join(err, m.Release(k.policy))
	}
	h := k.find(dev)
	if h == nil {
		h = k.addHold(dev)
	}
	m.ClaimInto(&h.claim)
	k.mu.Unlock()
	return nil
}

// local tells whether the memory is this process's own.
func (k *Rkey) local() bool { return k.key.Identity == k.e.w.c.id }

func (k *Rkey) find(dev cuda.Device) *hold {
	if k.first.used && k.first.dev == dev {
		return &k.first
	}
	for _, h := range k.more {
		if h.dev == dev {
			return h
		}
	}
	return nil
}

func (k *Rkey) addHold(dev cuda.Device) *hold {
	h := &k.first
	if h.used {
		h = new(hold)
		k.more = append(k.more, h)
	}
	h.used, h.dev = true, dev
	return h
}

// defaultDevice is the local device of pointers and list elements.
func (k *Rkey) defaultDevice() cuda.Device {
	if k.device != nil {
		return *k.device
	}
	k.mu.Lock()
	used, dev := k.first.used, k.first.dev
	k.mu.Unlock()
	if used {
		return dev
	}
	return k.e.w.c.devices.choose(k.e.w.c.drv, k.key.Device)
}

// Destroy ends the key and drops its references; pointers from it are invalid
// then. If it was the last user, policy decides: FreeUnused closes the mapping
// before Destroy returns, also one that others left idle and this key never
// used. Operations in flight and lists keep the mapping until they end. Destroy
// is idempotent.
func (k *Rkey) Destroy() error {
	if k == nil {
		return nil
	}
	k.e.mu.Lock()
	delete(k.e.keys, k)
	k.e.mu.Unlock()
	if err := k.end(ErrDestroyed); err != nil {
		return fmt.Errorf("destroy key of %s: %w", k.e.peer, translate(err))
	}
	return nil
}

// end drops the references, once, and leaves why as the key's error.
func (k *Rkey) end(why error) error {
	k.mu.Lock()
	if k.ended != nil {
		k.mu.Unlock()
		return nil
	}
	k.ended = why
	k.mu.Unlock()
	// No one adds a hold any more: pin looks at ended under the lock.
	err := k.first.release(k.policy)
	for _, h := range k.more {
		err = errors.Join(err, h.release(k.policy))
	}
	if k.policy == FreeUnused && !k.local() {
		// What others left idle, and what an eviction is closing right now.
		_, idle := k.e.w.c.cache.CloseIdle(&k.key)
		err = errors.Join(err, idle)
	}
	return err
}

func (h *hold) release(policy Policy) error {
	return errors.Join(h.ptr.Release(policy), h.claim.Release(policy))
}
