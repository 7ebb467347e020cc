package softgpu

import (
	"errors"
	"fmt"
	"math"

	"github.com/gpurma/gpurma/cuda"
)

// pool is a memory pool of this process, or another one's that it imported.
type pool struct {
	id     cuda.MemPool
	device cuda.Device
	phys   int // the device in the node
	types  cuda.HandleType
	name   poolName // of the pool, or of the one that it was imported from
	// imported pools have nothing but access and the imported allocations.
	imported bool

	// Under Driver.mu, and changed under the node lock only.
	exported  bool // what it has unused stays until its end
	destroyed bool // what is freed from now on goes to the device
	allocs    map[*allocation]struct{}
	small     []*region
	unused    []uint32 // blocks
	access    map[cuda.Device]cuda.AccessFlags
}

// poolName names a pool in the node: the table of the process that made it and
// a number there. Neither is ever 0.
type poolName struct{ table, number uint64 }

// take returns up to count unused blocks. The caller holds Driver.mu.
func (p *pool) take(count uint64) []uint32 {
	n := len(p.unused) - int(min(count, uint64(len(p.unused))))
	blocks := append([]uint32(nil), p.unused[n:]...)
	p.unused = p.unused[:n]
	return blocks
}

// reserved is how many bytes the pool has, used or not. The caller holds
// Driver.mu.
func (p *pool) reserved() uint64 {
	blocks := len(p.unused)
	seen := map[*region]bool{}
	for a := range p.allocs {
		if !seen[a.region] {
			seen[a.region] = true
			blocks += len(a.region.blocks)
		}
	}
	return uint64(blocks) * BlockSize
}

// findPool finds a pool. The caller holds d.mu.
func (d *Driver) findPool(ctx cuda.Context, id cuda.MemPool) (*pool, error) {
	if _, err := d.context(ctx); err != nil {
		return nil, err
	}
	if p := d.pools[id]; p != nil {
		return p, nil
	}
	return nil, cuda.ErrorInvalidValue
}

func (d *Driver) usePool(ctx cuda.Context, id cuda.MemPool) (*pool, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.findPool(ctx, id)
}

func (d *Driver) addPool(p *pool) cuda.MemPool {
	p.id = cuda.MemPool(d.newID())
	p.allocs = map[*allocation]struct{}{}
	p.access = map[cuda.Device]cuda.AccessFlags{p.device: cuda.AccessReadWrite}
	if p.name == (poolName{}) {
		p.name = poolName{d.table.id, uint64(p.id)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pools[p.id] = p
	return p.id
}

// MemPoolCreate makes an empty pool.
func (d *Driver) MemPoolCreate(ctx cuda.Context, prop cuda.MemPoolProp) (cuda.MemPool, error) {
	const call = "cuMemPoolCreate"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	if _, err := d.useContext(ctx); err != nil {
		return 0, failed(call, err)
	}
	phys, err := d.device(prop.Device)
	if err != nil {
		return 0, failed(call, err)
	}
	if prop.HandleTypes&^(cuda.HandleTypePosixFD|cuda.HandleTypeFabric) != 0 {
		return 0, failed(call, cuda.ErrorInvalidValue)
	}
	return d.addPool(&pool{device: prop.Device, phys: phys, types: prop.HandleTypes}), nil
}

// MemPoolDestroy ends the pool. Allocations that are left go back to the device
// one by one when they are freed.
func (d *Driver) MemPoolDestroy(ctx cuda.Context, id cuda.MemPool) error {
	const call = "cuMemPoolDestroy"
	if err := d.enter(call); err != nil {
		return err
	}
	return failed(call, d.locked(func() error {
		d.mu.Lock()
		p, err := d.findPool(ctx, id)
		if err == nil {
			p.destroyed = true
			delete(d.pools, id)
		}
		d.mu.Unlock()
		if err != nil {
			return err
		}
		return d.dropUnused(p, 0)
	}))
}

// MemPoolTrimTo gives unused memory back. An exported pool keeps it.
func (d *Driver) MemPoolTrimTo(ctx cuda.Context, id cuda.MemPool, keep uint64) error {
	const call = "cuMemPoolTrimTo"
	if err := d.enter(call); err != nil {
		return err
	}
	return failed(call, d.locked(func() error {
		p, err := d.usePool(ctx, id)
		if err != nil || p.exported {
			return err
		}
		return d.dropUnused(p, keep)
	}))
}

// dropUnused gives blocks back that the pool has beyond keep bytes and does not
// use. It runs under the node lock.
func (d *Driver) dropUnused(p *pool, keep uint64) error {
	d.mu.Lock()
	has := p.reserved()
	r := &region{device: p.phys, blocks: p.take((has - min(keep, has)) / BlockSize)}
	d.mu.Unlock()
	if len(r.blocks) == 0 {
		return nil
	}
	return d.dropBlocks(p.phys, r.extents())
}

// releaseUnused gives back what private pools do not use, as the driver does
// when work is waited for. It runs under the node lock.
func (d *Driver) releaseUnused() error {
	d.mu.RLock()
	var all []*pool
	for _, p := range d.pools {
		if !p.exported && len(p.unused) > 0 {
			all = append(all, p)
		}
	}
	d.mu.RUnlock()
	var errs []error
	for _, p := range all {
		errs = append(errs, d.dropUnused(p, 0))
	}
	return errors.Join(errs...)
}

// waited is releaseUnused after a wait, in a driver that has pools.
func (d *Driver) waited() error {
	d.mu.RLock()
	n := len(d.pools)
	d.mu.RUnlock()
	if n == 0 {
		return nil
	}
	return d.locked(d.releaseUnused)
}

// MemPoolSetAccess says what a device may do with all memory of the pool. Its
// own device's access cannot be taken away.
func (d *Driver) MemPoolSetAccess(ctx cuda.Context, id cuda.MemPool, dev cuda.Device, flags cuda.AccessFlags) error {
	const call = "cuMemPoolSetAccess"
	if err := d.enter(call); err != nil {
		return err
	}
	if _, err := d.device(dev); err != nil {
		return failed(call, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.findPool(ctx, id)
	if err != nil {
		return failed(call, err)
	}
	if !validAccess(flags) || dev == p.device && flags == cuda.AccessNone {
		return failed(call, cuda.ErrorInvalidValue)
	}
	p.access[dev] = flags
	return nil
}

// MemPoolExportPosixFD returns a descriptor that names the pool. It holds no
// memory.
func (d *Driver) MemPoolExportPosixFD(ctx cuda.Context, id cuda.MemPool) (fd int, err error) {
	const call = "cuMemPoolExportToShareableHandle"
	if err := d.enter(call); err != nil {
		return -1, err
	}
	fd = -1
	err = d.locked(func() error {
		p, err := d.usePool(ctx, id)
		if err == nil && (p.imported || p.types&cuda.HandleTypePosixFD == 0) {
			err = cuda.ErrorInvalidValue
		}
		if err != nil {
			return err
		}
		if fd, err = d.issue(&ticket{device: uint32(p.phys), types: p.types, pool: p.name}); err != nil {
			return err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		p.exported = true
		return nil
	})
	return fd, failed(call, err)
}

// MemPoolImportPosixFD makes a pool of its own for each call; fd stays the
// caller's.
func (d *Driver) MemPoolImportPosixFD(ctx cuda.Context, fd int) (id cuda.MemPool, err error) {
	const call = "cuMemPoolImportFromShareableHandle"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	if _, err := d.useContext(ctx); err != nil {
		return 0, failed(call, err)
	}
	err = d.locked(func() error {
		t, err := d.readDescriptor(fd)
		if err == nil && t.pool == (poolName{}) {
			err = fmt.Errorf("%w: descriptor %d is no pool's", cuda.ErrorInvalidValue, fd)
		}
		if err != nil {
			return err
		}
		dev, err := d.ordinal(int(t.device))
		if err != nil {
			return err
		}
		id = d.addPool(&pool{device: dev, phys: int(t.device), types: t.types, name: t.pool, imported: true})
		return nil
	})
	return id, failed(call, err)
}

// MemAllocFromPoolAsync allocates at once: what it takes is unused by any work.
func (d *Driver) MemAllocFromPoolAsync(ctx cuda.Context, size uint64, id cuda.MemPool, stream cuda.Stream) (ptr cuda.DevicePtr, err error) {
	const call = "cuMemAllocFromPoolAsync"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	if _, err := d.useStream(ctx, stream); err != nil {
		return 0, failed(call, err)
	}
	if size > math.MaxInt64 {
		return 0, failed(call, cuda.ErrorOutOfMemory)
	}
	err = d.locked(func() error {
		p, err := d.usePool(ctx, id)
		if err == nil && (p.imported || size == 0) {
			err = cuda.ErrorInvalidValue
		}
		if err != nil {
			return err
		}
		a := &allocation{size: size, kind: pooled, device: p.device, pool: p}
		if size < BlockSize {
			err = d.placeSmall(a, p.phys, &p.small)
		} else {
			err = d.placeLarge(a, p.phys)
		}
		if err != nil {
			return err
		}
		ptr = a.base
		d.joinPool(a)
		return nil
	})
	return ptr, failed(call, err)
}

func (d *Driver) joinPool(a *allocation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nextBuffer++
	a.bufferID = d.nextBuffer
	a.pool.allocs[a] = struct{}{}
}

// MemFreeAsync makes the memory unknown at once and frees it when the stream
// gets to it.
func (d *Driver) MemFreeAsync(ctx cuda.Context, ptr cuda.DevicePtr, stream cuda.Stream) error {
	const call = "cuMemFreeAsync"
	if err := d.enter(call); err != nil {
		return err
	}
	s, err := d.useStream(ctx, stream)
	if err != nil {
		return failed(call, err)
	}
	_, a, err := d.detach(ctx, ptr, pooled, pooledImport)
	if err != nil {
		return failed(call, err)
	}
	s.ctx.submit(s, nil, func() cuda.Result {
		d.checkClose(call, a)
		if a.working.Load() == 0 {
			d.giveBack(a)
		} else {
			// A program must order this; where it did not, its work must not
			// reach what is somebody else's by then.
			go func() {
				a.inflight.Wait()
				d.giveBack(a)
			}()
		}
		return s.ctx.lost()
	})
	return nil
}

// giveBack reclaims; what cannot be given back goes with the process.
func (d *Driver) giveBack(a *allocation) {
	_ = d.locked(func() error { return d.reclaim([]*allocation{a}) })
}

// MemPoolExportPointer puts the allocation into the table and names it there.
func (d *Driver) MemPoolExportPointer(ctx cuda.Context, ptr cuda.DevicePtr) (data cuda.MemPoolPtrExportData, err error) {
	const call = "cuMemPoolExportPointer"
	if err := d.enter(call); err != nil {
		return data, err
	}
	err = d.locked(func() error {
		d.mu.RLock()
		_, err := d.context(ctx)
		a := d.pages.find(ptr)
		d.mu.RUnlock()
		if err == nil && (a == nil || a.kind != pooled || !a.pool.exported) {
			err = cuda.ErrorInvalidValue
		}
		if err == nil && a.slots == nil {
			err = d.publish(a)
		}
		if err != nil {
			return err
		}
		data = poolPointer{
			handle: handle{
				node: d.node.id, table: d.table.id, alloc: a.id, slot: a.slots[0],
				device: uint32(a.region.device),
			},
			pool: a.pool.name,
		}.encode()
		return nil
	})
	return data, failed(call, err)
}

// MemPoolImportPointer maps the allocation anew at each call.
func (d *Driver) MemPoolImportPointer(ctx cuda.Context, id cuda.MemPool, data cuda.MemPoolPtrExportData) (ptr cuda.DevicePtr, err error) {
	const call = "cuMemPoolImportPointer"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	err = d.locked(func() error {
		p, err := d.usePool(ctx, id)
		if err != nil {
			return err
		}
		h, ok := decodePoolPointer(data)
		if !ok || !p.imported || h.node != d.node.id || h.pool != p.name {
			return fmt.Errorf("%w: not a pointer of the pool", cuda.ErrorInvalidValue)
		}
		s, err := d.lookUp(h.handle)
		if err != nil {
			return err
		}
		if err := d.table.hold(p.phys, s.extents); err != nil {
			return err
		}
		d.mu.Lock()
		count := uint64(blockCount(s.extents))
		first, err := d.addresses.take(count, 1)
		if err != nil {
			d.mu.Unlock()
			return errors.Join(err, d.dropBlocks(p.phys, s.extents))
		}
		r := &region{pages: pages{first, count}, device: p.phys, blocks: blockList(s.extents), access: p.access}
		a := &allocation{
			base: r.base().Add(uint64(s.offset)), size: s.size, kind: pooledImport, region: r,
			device: p.device, pool: p,
		}
		r.alloc = a
		d.pages.insert(r)
		d.mu.Unlock()
		d.joinPool(a)
		ptr = a.base
		return nil
	})
	return ptr, failed(call, err)
}
