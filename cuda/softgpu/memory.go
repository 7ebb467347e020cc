package softgpu

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gpurma/gpurma/cuda"
)

// smallUnit is what the sizes and addresses of small allocations are multiples
// of.
const smallUnit = 512

func roundUp(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }

// MemAlloc takes memory of the context's device. Allocations below 2 MiB share
// blocks with others of their context.
func (d *Driver) MemAlloc(ctx cuda.Context, size uint64) (cuda.DevicePtr, error) {
	return d.allocate("cuMemAlloc", ctx, size, native)
}

// MemAllocManaged takes memory that no handle can share. The emulator keeps it
// on the context's device.
func (d *Driver) MemAllocManaged(ctx cuda.Context, size uint64, flags uint32) (cuda.DevicePtr, error) {
	const call = "cuMemAllocManaged"
	const host, single = 2, 4 // CU_MEM_ATTACH_HOST, CU_MEM_ATTACH_SINGLE
	switch flags {
	case cuda.MemAttachGlobal, host, single:
		return d.allocate(call, ctx, size, managed)
	}
	if err := d.enter(call); err != nil {
		return 0, err
	}
	return 0, failed(call, cuda.ErrorInvalidValue)
}

func (d *Driver) allocate(call string, ctx cuda.Context, size uint64, k kind) (ptr cuda.DevicePtr, err error) {
	if err := d.enter(call); err != nil {
		return 0, err
	}
	c, err := d.useContext(ctx)
	if err != nil {
		return 0, failed(call, err)
	}
	if size == 0 {
		return 0, failed(call, cuda.ErrorInvalidValue)
	}
	if size > math.MaxInt64 {
		return 0, failed(call, cuda.ErrorOutOfMemory)
	}
	err = d.locked(func() error {
		if _, err := d.useContext(ctx); err != nil {
			return err
		}
		ptr, err = d.place(c, size, k)
		return err
	})
	return ptr, failed(call, err)
}

// place makes an allocation, under the node lock.
func (d *Driver) place(c *context, size uint64, k kind) (ptr cuda.DevicePtr, err error) {
	a := &allocation{size: size, kind: k, ctx: c, device: c.device}
	if size < BlockSize && k == native {
		err = d.placeSmall(a, c.phys, &c.small)
	} else {
		err = d.placeLarge(a, c.phys)
	}
	if err != nil {
		return 0, err
	}
	if k == native {
		err = d.publish(a)
	}
	if err != nil {
		return 0, errors.Join(err, d.reclaim([]*allocation{a}))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nextBuffer++
	a.bufferID = d.nextBuffer
	c.allocs[a] = struct{}{}
	return a.base, nil
}

// placeLarge gives the allocation blocks and pages of its own.
func (d *Driver) placeLarge(a *allocation, phys int) error {
	r, err := d.newRegion(phys, roundUp(a.size, BlockSize)/BlockSize, a.pool)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r.alloc, a.region, a.base = a, r, r.base()
	d.pages.insert(r)
	return nil
}

// placeSmall puts the allocation into the first gap of a page that its context
// or pool has for small ones, or begins a page.
func (d *Driver) placeSmall(a *allocation, phys int, small *[]*region) error {
	d.mu.Lock()
	for _, r := range *small {
		if r.fit(a) {
			d.mu.Unlock()
			return nil
		}
	}
	d.mu.Unlock()
	r, err := d.newRegion(phys, 1, a.pool)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r.fit(a)
	d.pages.insert(r)
	*small = append(*small, r)
	return nil
}

// newRegion makes a region of new blocks, or of those that a pool has unused as
// far as they go.
func (d *Driver) newRegion(device int, count uint64, from *pool) (*region, error) {
	r := &region{device: device}
	if from != nil {
		d.mu.Lock()
		r.blocks = from.take(count)
		r.access = from.access
		d.mu.Unlock()
	}
	if missing := count - uint64(len(r.blocks)); missing > 0 {
		es, err := d.takeBlocks(device, missing)
		if err != nil {
			return nil, errors.Join(err, d.returnBlocks(r, from))
		}
		r.blocks = append(r.blocks, blockList(es)...)
	}
	d.mu.Lock()
	first, err := d.addresses.take(count, 1)
	d.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, d.returnBlocks(r, from))
	}
	r.pages = pages{first, count}
	return r, nil
}

// returnBlocks gives a region's blocks back to the pool that keeps them, or to
// the device.
func (d *Driver) returnBlocks(r *region, to *pool) error {
	if to != nil && !to.destroyed {
		d.mu.Lock()
		defer d.mu.Unlock()
		to.unused = append(to.unused, r.blocks...)
		return nil
	}
	if len(r.blocks) == 0 {
		return nil
	}
	return d.dropBlocks(r.device, r.extents())
}

// fit puts a into the first gap of the page that is large enough.
func (r *region) fit(a *allocation) bool {
	at := uint64(0)
	for i := 0; ; i++ {
		end := uint64(BlockSize)
		if i < len(r.small) {
			end = uint64(r.small[i].base - r.base())
		}
		if at+a.size <= end {
			a.region, a.base = r, r.base().Add(at)
			r.small = slices.Insert(r.small, i, a)
			return true
		}
		if i == len(r.small) {
			return false
		}
		at = roundUp(end+r.small[i].size, smallUnit)
	}
}

// publish writes the allocation into the table, where other processes find it.
func (d *Driver) publish(a *allocation) error {
	d.nextAlloc++
	id := d.nextAlloc
	slots, err := d.table.put(&d.node.header, slot{
		id:      id,
		device:  uint32(a.region.device),
		size:    a.size,
		offset:  uint32(a.base - a.region.base()),
		va:      uint64(a.base),
		extents: a.region.extents(),
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	a.id, a.slots = id, slots
	return nil
}

// MemFree waits for the context's work and for all other work of this process
// that uses the memory, then frees it. Memory that another process has open
// stays taken. Address 0 is no memory, and freeing it succeeds.
func (d *Driver) MemFree(ctx cuda.Context, ptr cuda.DevicePtr) error {
	const call = "cuMemFree"
	if err := d.enter(call); err != nil {
		return err
	}
	if ptr == 0 {
		_, err := d.useContext(ctx)
		return failed(call, err)
	}
	c, a, err := d.detach(ctx, ptr, native, managed, pooled, pooledImport)
	if err != nil {
		return failed(call, err)
	}
	lost := cuda.Err(call, c.wait())
	a.inflight.Wait()
	err = d.locked(func() error {
		d.checkFree(call, a)
		return errors.Join(d.reclaim([]*allocation{a}), d.releaseUnused())
	})
	if lost != nil {
		return lost
	}
	return failed(call, err)
}

// detach makes the allocation of one of the given kinds that begins at ptr
// unknown, so that no new work uses it.
func (d *Driver) detach(ctx cuda.Context, ptr cuda.DevicePtr, kinds ...kind) (*context, *allocation, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := d.context(ctx)
	if err != nil {
		return nil, nil, err
	}
	a := d.pages.find(ptr)
	if a == nil || a.base != ptr || !slices.Contains(kinds, a.kind) {
		return nil, nil, cuda.ErrorInvalidValue
	}
	a.closing = true
	return c, a, nil
}

// reclaim takes allocations that no work uses any more out of the tables. It
// runs under the node lock.
func (d *Driver) reclaim(all []*allocation) error {
	var errs []error
	for _, a := range all {
		if a.gone {
			continue // its context ended while it was being freed
		}
		a.gone = true
		if a.slots != nil {
			errs = append(errs, d.table.clearSlots(&d.node.header, a.slots))
		}
		r := a.region
		d.mu.Lock()
		var small *[]*region
		var keeper *pool
		if a.ctx != nil {
			small = &a.ctx.small
			delete(a.ctx.allocs, a)
		}
		if a.pool != nil {
			small = &a.pool.small
			delete(a.pool.allocs, a)
			if a.kind == pooled {
				keeper = a.pool
			}
		}
		last := true
		if r.small != nil {
			if i := slices.Index(r.small, a); i >= 0 {
				r.small = slices.Delete(r.small, i, i+1)
			}
			if last = len(r.small) == 0; last {
				*small = slices.DeleteFunc(*small, func(x *region) bool { return x == r })
			}
		}
		if last {
			d.pages.remove(r)
			d.addresses.give(r.pages)
		}
		d.mu.Unlock()
		if last {
			errs = append(errs, d.returnBlocks(r, keeper))
		}
	}
	return errors.Join(errs...)
}

// MemGetInfo counts the memory of the context's device over all processes of
// the node.
func (d *Driver) MemGetInfo(ctx cuda.Context) (free, total uint64, err error) {
	const call = "cuMemGetInfo"
	if err := d.enter(call); err != nil {
		return 0, 0, err
	}
	c, err := d.useContext(ctx)
	if err != nil {
		return 0, 0, failed(call, err)
	}
	err = d.locked(func() error {
		census, err := d.node.takeCensus(d.table)
		if err == nil {
			free = census.free(&d.node.header, c.phys)
		}
		return err
	})
	return free, d.node.memory(), failed(call, err)
}

// MemGetAddressRange returns base and size of the allocation or mapping; an
// address that is neither is ErrorNotFound.
func (d *Driver) MemGetAddressRange(ctx cuda.Context, ptr cuda.DevicePtr) (cuda.DevicePtr, uint64, error) {
	const call = "cuMemGetAddressRange"
	if err := d.enter(call); err != nil {
		return 0, 0, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if _, err := d.context(ctx); err != nil {
		return 0, 0, failed(call, err)
	}
	a := d.pages.find(ptr)
	if a == nil {
		return 0, 0, failed(call, cuda.ErrorNotFound)
	}
	return a.base, a.size, nil
}

// checkFree records, in strict mode, that memory is freed which another process
// has open.
func (d *Driver) checkFree(call string, a *allocation) {
	if !d.cfg.Strict {
		return
	}
	c, err := d.node.takeCensus(d.table)
	if err != nil {
		return
	}
	for _, b := range a.region.blocks {
		if c.others[a.region.device].has(b) {
			d.violation("%s(%v): another process has the memory open", call, a.base)
			return
		}
	}
}

func (d *Driver) violation(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.violations = append(d.violations, fmt.Sprintf(format, args...))
}
