package softgpu

import (
	"github.com/gpurma/gpurma/cuda"
)

// physical is memory from MemCreate or MemImportPosixFD.
type physical struct {
	device  cuda.Device
	phys    int // the device in the node
	extents []extent
	size    uint64
	types   cuda.HandleType

	// Under Driver.mu, and changed under the node lock only: references of the
	// handle, and mappings. With the last of both the memory goes.
	handles  int
	mappings int
	id       cuda.MemHandle
}

// MemGetAllocationGranularity is 2 MiB.
func (d *Driver) MemGetAllocationGranularity(prop cuda.AllocationProp) (uint64, error) {
	const call = "cuMemGetAllocationGranularity"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	if _, err := d.device(prop.Device); err != nil {
		return 0, failed(call, err)
	}
	return BlockSize, nil
}

// MemCreate takes physical memory. Fabric handles are ErrorNotPermitted: there
// is no fabric.
func (d *Driver) MemCreate(ctx cuda.Context, size uint64, prop cuda.AllocationProp) (id cuda.MemHandle, err error) {
	const call = "cuMemCreate"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	if _, err := d.useContext(ctx); err != nil {
		return 0, failed(call, err)
	}
	phys, err := d.device(prop.Device)
	switch {
	case err != nil:
	case size == 0 || size%BlockSize != 0 || prop.HandleTypes&^(cuda.HandleTypePosixFD|cuda.HandleTypeFabric) != 0:
		err = cuda.ErrorInvalidValue
	case prop.HandleTypes&cuda.HandleTypeFabric != 0:
		err = cuda.ErrorNotPermitted
	}
	if err != nil {
		return 0, failed(call, err)
	}
	err = d.locked(func() error {
		es, err := d.takeBlocks(phys, size/BlockSize)
		if err != nil {
			return err
		}
		id = d.addHandle(&physical{
			device: prop.Device, phys: phys, extents: es, size: size, types: prop.HandleTypes,
		})
		return nil
	})
	return id, failed(call, err)
}

func (d *Driver) addHandle(m *physical) cuda.MemHandle {
	d.mu.Lock()
	defer d.mu.Unlock()
	m.id, m.handles = cuda.MemHandle(d.newID()), 1
	d.handles[m.id] = m
	return m.id
}

// memory finds the memory of a handle that has references. The caller holds
// d.mu.
func (d *Driver) memory(id cuda.MemHandle) (*physical, error) {
	if m := d.handles[id]; m != nil && m.handles > 0 {
		return m, nil
	}
	return nil, cuda.ErrorInvalidValue
}

// MemRelease drops a reference of the handle.
func (d *Driver) MemRelease(ctx cuda.Context, id cuda.MemHandle) error {
	const call = "cuMemRelease"
	if err := d.enter(call); err != nil {
		return err
	}
	if _, err := d.useContext(ctx); err != nil {
		return failed(call, err)
	}
	return failed(call, d.locked(func() error {
		return d.letGo(func() (*physical, error) {
			m, err := d.memory(id)
			if err == nil {
				m.handles--
			}
			return m, err
		})
	}))
}

// letGo runs drop, which takes a reference or mapping off some memory, with d.mu
// held, and gives the memory back if that was the last. It runs under the node
// lock.
func (d *Driver) letGo(drop func() (*physical, error)) error {
	d.mu.Lock()
	m, err := drop()
	last := err == nil && m.handles == 0 && m.mappings == 0
	if last {
		delete(d.handles, m.id)
	}
	d.mu.Unlock()
	if last {
		return d.dropBlocks(m.phys, m.extents)
	}
	return err
}

// MemAddressReserve takes a range of addresses; the alignment is a power of two
// or 0.
func (d *Driver) MemAddressReserve(ctx cuda.Context, size, alignment uint64) (cuda.DevicePtr, error) {
	const call = "cuMemAddressReserve"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	if size == 0 || size%BlockSize != 0 || alignment&(alignment-1) != 0 {
		return 0, failed(call, cuda.ErrorInvalidValue)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.context(ctx); err != nil {
		return 0, failed(call, err)
	}
	first, err := d.addresses.take(size/BlockSize, max(alignment/BlockSize, 1))
	if err != nil {
		return 0, failed(call, err)
	}
	ptr := cuda.DevicePtr(first * BlockSize)
	d.reservations[ptr] = pages{first, size / BlockSize}
	return ptr, nil
}

// MemAddressFree gives a whole range back in which nothing is mapped.
func (d *Driver) MemAddressFree(ctx cuda.Context, ptr cuda.DevicePtr, size uint64) error {
	const call = "cuMemAddressFree"
	if err := d.enter(call); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.context(ctx); err != nil {
		return failed(call, err)
	}
	r, ok := d.reservations[ptr]
	if !ok || size != r.count*BlockSize || d.anyMapped(r) {
		return failed(call, cuda.ErrorInvalidValue)
	}
	delete(d.reservations, ptr)
	d.addresses.give(r)
	return nil
}

// reserved tells whether the pages lie in one reservation. The caller holds
// d.mu.
func (d *Driver) reserved(first, count uint64) bool {
	for _, r := range d.reservations {
		if first >= r.first && count <= r.count && first-r.first <= r.count-count {
			return true
		}
	}
	return false
}

func (d *Driver) anyMapped(p pages) bool {
	for i := range p.count {
		if d.pages[p.first+i] != nil {
			return true
		}
	}
	return false
}

// MemMap maps the first size bytes of the handle's memory. As in CUDA the
// offset is 0. No device may use the mapping before MemSetAccess.
func (d *Driver) MemMap(ctx cuda.Context, ptr cuda.DevicePtr, size, offset uint64, id cuda.MemHandle) error {
	const call = "cuMemMap"
	if err := d.enter(call); err != nil {
		return err
	}
	if size == 0 || size%BlockSize != 0 || ptr%BlockSize != 0 || offset != 0 {
		return failed(call, cuda.ErrorInvalidValue)
	}
	return failed(call, d.locked(func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if _, err := d.context(ctx); err != nil {
			return err
		}
		m, err := d.memory(id)
		if err != nil {
			return err
		}
		p := pages{uint64(ptr) / BlockSize, size / BlockSize}
		if size > m.size || !d.reserved(p.first, p.count) || d.anyMapped(p) {
			return cuda.ErrorInvalidValue
		}
		d.nextBuffer++
		r := &region{
			pages: p, device: m.phys, blocks: blockList(m.extents)[:p.count],
			access: map[cuda.Device]cuda.AccessFlags{},
		}
		r.alloc = &allocation{
			base: ptr, size: size, kind: virtual, region: r, device: m.device, bufferID: d.nextBuffer, mem: m,
		}
		m.mappings++
		d.pages.insert(r)
		return nil
	}))
}

// mapped returns the mappings that together are exactly the range. The caller
// holds d.mu.
func (d *Driver) mapped(ptr cuda.DevicePtr, size uint64) ([]*allocation, error) {
	var all []*allocation
	for size > 0 {
		a := d.pages.find(ptr)
		if a == nil || a.kind != virtual || a.base != ptr || a.size > size {
			return nil, cuda.ErrorInvalidValue
		}
		all = append(all, a)
		ptr, size = ptr.Add(a.size), size-a.size
	}
	if all == nil {
		return nil, cuda.ErrorInvalidValue
	}
	return all, nil
}

// MemUnmap ends whole mappings, after the work that uses them.
func (d *Driver) MemUnmap(ctx cuda.Context, ptr cuda.DevicePtr, size uint64) error {
	const call = "cuMemUnmap"
	if err := d.enter(call); err != nil {
		return err
	}
	all, err := d.detachMapped(ctx, ptr, size)
	if err != nil {
		return failed(call, err)
	}
	for _, a := range all {
		d.checkClose(call, a)
		a.inflight.Wait()
	}
	return failed(call, d.locked(func() (err error) {
		for _, a := range all {
			dropped := d.letGo(func() (*physical, error) {
				d.pages.remove(a.region)
				a.mem.mappings--
				return a.mem, nil
			})
			if err == nil {
				err = dropped
			}
		}
		return err
	}))
}

func (d *Driver) detachMapped(ctx cuda.Context, ptr cuda.DevicePtr, size uint64) ([]*allocation, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.context(ctx); err != nil {
		return nil, err
	}
	all, err := d.mapped(ptr, size)
	for _, a := range all {
		a.closing = true
	}
	return all, err
}

func validAccess(flags cuda.AccessFlags) bool {
	return flags == cuda.AccessNone || flags == cuda.AccessRead || flags == cuda.AccessReadWrite
}

// MemSetAccess says what a device may do with whole mappings.
func (d *Driver) MemSetAccess(ctx cuda.Context, ptr cuda.DevicePtr, size uint64, dev cuda.Device, flags cuda.AccessFlags) error {
	const call = "cuMemSetAccess"
	if err := d.enter(call); err != nil {
		return err
	}
	if _, err := d.device(dev); err != nil {
		return failed(call, err)
	}
	if !validAccess(flags) {
		return failed(call, cuda.ErrorInvalidValue)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.context(ctx)
	if err != nil {
		return failed(call, err)
	}
	all, err := d.mapped(ptr, size)
	for _, a := range all {
		a.region.access[dev] = flags
	}
	return failed(call, err)
}

// MemRetainAllocationHandle adds a reference to the handle of what is mapped.
func (d *Driver) MemRetainAllocationHandle(ctx cuda.Context, ptr cuda.DevicePtr) (id cuda.MemHandle, err error) {
	const call = "cuMemRetainAllocationHandle"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	err = d.locked(func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if _, err := d.context(ctx); err != nil {
			return err
		}
		a := d.pages.find(ptr)
		if a == nil || a.mem == nil {
			return cuda.ErrorInvalidValue
		}
		a.mem.handles++
		d.handles[a.mem.id] = a.mem
		id = a.mem.id
		return nil
	})
	return id, failed(call, err)
}
