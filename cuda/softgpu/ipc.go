package softgpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpurma/gpurma/cuda"
)

// importKey names an open mapping: the allocation, and the device it was opened
// on.
type importKey struct {
	table, alloc uint64
	device       cuda.Device
}

// importOf is what an imported allocation was opened from.
type importOf struct {
	key   importKey
	opens int    // under Driver.mu
	va    uint64 // the owner's address and the size there
	size  uint64
}

// IpcGetMemHandle names the allocation that ptr lies in.
func (d *Driver) IpcGetMemHandle(ctx cuda.Context, ptr cuda.DevicePtr) (cuda.IpcMemHandle, error) {
	const call = "cuIpcGetMemHandle"
	if err := d.enter(call); err != nil {
		return cuda.IpcMemHandle{}, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, err := d.context(ctx)
	a := d.pages.find(ptr)
	switch {
	case err != nil:
	case d.cfg.NoLegacyIPC:
		err = cuda.ErrorNotSupported
	case a == nil || a.kind != native:
		err = cuda.ErrorInvalidValue
	}
	if err != nil {
		return cuda.IpcMemHandle{}, failed(call, err)
	}
	return handle{
		node:   d.node.id,
		table:  d.table.id,
		alloc:  a.id,
		slot:   a.slots[0],
		device: uint32(a.region.device),
		va:     uint64(a.base),
	}.encode(), nil
}

// IpcOpenMemHandle maps another process's allocation. What this process has
// open already is counted, whether its owner still lives or not.
func (d *Driver) IpcOpenMemHandle(ctx cuda.Context, ipc cuda.IpcMemHandle, flags uint32) (cuda.DevicePtr, error) {
	const call = "cuIpcOpenMemHandle"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	c, err := d.useContext(ctx)
	if err != nil {
		return 0, failed(call, err)
	}
	h, ok := decodeHandle(ipc)
	switch {
	case d.cfg.NoLegacyIPC:
		return 0, failed(call, cuda.ErrorNotSupported)
	case flags&cuda.IpcMemLazyEnablePeerAccess == 0 || !ok || h.node != d.node.id:
		return 0, failed(call, cuda.ErrorInvalidValue)
	case h.table == d.table.id:
		return 0, failed(call, cuda.ErrorInvalidContext)
	}
	var ptr cuda.DevicePtr
	err = d.locked(func() error {
		ptr, err = d.openAgain(c, h)
		if ptr == 0 && err == nil {
			ptr, err = d.openNew(c, h)
		}
		return err
	})
	return ptr, failed(call, err)
}

// openAgain counts an open of what is open on the device; 0 where nothing is.
func (d *Driver) openAgain(c *context, h handle) (cuda.DevicePtr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.context(c.id); err != nil {
		return 0, err
	}
	a := d.imports[importKey{h.table, h.alloc, c.device}]
	switch {
	case a == nil:
		return 0, nil
	case a.ctx != c:
		return 0, cuda.ErrorInvalidHandle
	case d.cfg.OpenMode == OpenSingle:
		return 0, fmt.Errorf("%w: open at %v", cuda.ErrorAlreadyMapped, a.base)
	}
	a.from.opens++
	d.opens++
	return a.base, nil
}

// openNew maps the allocation, under the node lock: until that is released
// nobody takes its blocks, even if its owner frees it or dies.
func (d *Driver) openNew(c *context, h handle) (ptr cuda.DevicePtr, err error) {
	s, err := d.lookUp(h)
	if err != nil {
		return 0, err
	}
	if d.cfg.OpenMode == OpenSingle {
		if err := d.checkOverlap(c, h, s); err != nil {
			return 0, err
		}
	}
	device := int(s.device)
	if err := d.table.hold(device, s.extents); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	count := uint64(blockCount(s.extents))
	first, err := d.addresses.take(count, 1)
	if err != nil {
		return 0, errors.Join(err, d.table.writeHeld(device, d.table.unhold(device, s.extents)))
	}
	r := &region{pages: pages{first, count}, device: device, blocks: blockList(s.extents)}
	d.nextBuffer++
	a := &allocation{
		base: r.base().Add(uint64(s.offset)), size: s.size, kind: imported, region: r,
		ctx: c, device: c.device, bufferID: d.nextBuffer,
		from: &importOf{
			key:   importKey{h.table, h.alloc, c.device},
			opens: 1, va: s.va, size: s.size,
		},
	}
	r.alloc = a
	d.pages.insert(r)
	d.imports[a.from.key] = a
	c.allocs[a] = struct{}{}
	d.opens++
	return a.base, nil
}

// lookUp reads the handle's allocation from its owner's table. An owner that is
// gone is ErrorInvalidHandle, an allocation that is gone ErrorInvalidValue, or
// ErrorNotPermitted where another one is at its address.
func (d *Driver) lookUp(h handle) (slot, error) {
	name := filepath.Join(d.node.path, fmt.Sprintf("%s%016x", tablePart, h.table))
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return slot{}, fmt.Errorf("%w: the owner is gone", cuda.ErrorInvalidHandle)
	}
	if err != nil {
		return slot{}, err
	}
	defer f.Close()
	alive, err := lockedElsewhere(f)
	if err != nil {
		return slot{}, err
	}
	if !alive {
		return slot{}, fmt.Errorf("%w: the owner is dead", cuda.ErrorInvalidHandle)
	}
	s, err := readSlot(f, &d.node.header, h.slot, h.alloc)
	if errors.Is(err, errNoSlot) {
		reused, err := startsAt(f, &d.node.header, h.va)
		if reused {
			err = fmt.Errorf("%w: the allocation is gone, and another one is at its address", cuda.ErrorNotPermitted)
		} else if err == nil {
			err = fmt.Errorf("%w: the allocation is gone", cuda.ErrorInvalidValue)
		}
		return slot{}, err
	}
	if err == nil && s.device != h.device {
		return slot{}, cuda.ErrorInvalidValue
	}
	return s, err
}

// checkOverlap refuses, for a driver that opens once, what overlaps an open
// mapping of the same process's memory.
func (d *Driver) checkOverlap(c *context, h handle, s slot) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for key, a := range d.imports {
		if key.table == h.table && key.device == c.device && s.va < a.from.va+a.from.size && a.from.va < s.va+s.size {
			return fmt.Errorf("%w: the owner's %#x, %d bytes, overlaps what is open at %v",
				cuda.ErrorAlreadyMapped, s.va, s.size, a.base)
		}
	}
	return nil
}

// IpcCloseMemHandle counts an open back. The last one waits for the copies from
// and to the mapping and ends it.
func (d *Driver) IpcCloseMemHandle(ctx cuda.Context, ptr cuda.DevicePtr) error {
	const call = "cuIpcCloseMemHandle"
	if err := d.enter(call); err != nil {
		return err
	}
	a, err := d.closeOnce(ctx, ptr)
	if err != nil || a == nil {
		return failed(call, err)
	}
	d.checkClose(call, a)
	a.inflight.Wait()
	return failed(call, d.locked(func() error { return d.reclaim([]*allocation{a}) }))
}

// closeOnce returns the mapping if this was its last close.
func (d *Driver) closeOnce(ctx cuda.Context, ptr cuda.DevicePtr) (*allocation, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.context(ctx); err != nil {
		return nil, err
	}
	a := d.pages.find(ptr)
	if a == nil || a.kind != imported || a.base != ptr {
		return nil, cuda.ErrorInvalidValue
	}
	d.closes++
	if a.from.opens--; a.from.opens > 0 {
		return nil, nil
	}
	a.closing = true
	d.forgetImport(a)
	return a, nil
}

// forgetImport takes a mapping out of those that a further open would find. The
// caller holds d.mu.
func (d *Driver) forgetImport(a *allocation) {
	if a.kind == imported && d.imports[a.from.key] == a {
		delete(d.imports, a.from.key)
	}
}

// checkClose records, in strict mode, that memory goes under a copy.
func (d *Driver) checkClose(call string, a *allocation) {
	if d.cfg.Strict && a.working.Load() > 0 {
		d.violation("%s(%v): copies from or to the memory are in flight", call, a.base)
	}
}
