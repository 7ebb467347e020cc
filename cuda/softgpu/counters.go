package softgpu

import (
	"maps"
	"slices"
)

// Counters is what a driver has done and has.
type Counters struct {
	// Calls counts calls by CUDA name, failed ones too.
	Calls map[string]uint64
	// Opens and Closes count the legacy opens and closes that succeeded.
	Opens, Closes uint64
	// LiveMappings is how many legacy mappings are open, however often each.
	LiveMappings int
	// The rest counts what this process has: allocations (native, managed and of
	// pools), pools and what was imported of them, VMM mappings, handles and
	// address ranges, user contexts, active primary contexts, streams and
	// events.
	Allocations      int
	Pools            int
	PoolImports      int
	VirtualMappings  int
	MemHandles       int
	AddressRanges    int
	UserContexts     int
	PrimaryContexts  int
	Streams, Events  int
	OperationsQueued int
	// PhysBytes is the memory of all devices that has an owner or an importer
	// on the node, contexts not counted; 0 in a closed driver.
	PhysBytes uint64
	// Violations are what Config.Strict found: closes and frees with work in
	// flight, and frees of memory that another process has open.
	Violations []string
}

// Counters returns the driver's counters.
func (d *Driver) Counters() Counters {
	var phys uint64
	// A node that cannot be counted has no figure to show.
	_ = d.locked(func() error {
		c, err := d.node.takeCensus(d.table)
		if err != nil {
			return err
		}
		for _, used := range c.used {
			phys += used.count() * BlockSize
		}
		return nil
	})
	d.mu.RLock()
	defer d.mu.RUnlock()
	c := Counters{
		Calls:         d.calls.snapshot(),
		Opens:         d.opens,
		Closes:        d.closes,
		LiveMappings:  len(d.imports),
		AddressRanges: len(d.reservations),
		Streams:       len(d.streams),
		Events:        len(d.events),
		PhysBytes:     phys,
		Violations:    slices.Clone(d.violations),
	}
	for _, h := range d.handles {
		if h.handles > 0 {
			c.MemHandles++
		}
	}
	for _, ctx := range d.contexts {
		if ctx.primary {
			c.PrimaryContexts++
		} else {
			c.UserContexts++
		}
		for a := range ctx.allocs {
			if a.kind != imported {
				c.Allocations++
			}
		}
		c.OperationsQueued += len(ctx.pending())
	}
	c.Pools = len(d.pools)
	seen := map[*region]bool{}
	pooledSeen := map[*pool]bool{}
	for r := range maps.Values(d.pages) {
		if p := r.pool(); p != nil && !pooledSeen[p] {
			// Of destroyed pools too.
			pooledSeen[p] = true
			if p.imported {
				c.PoolImports += len(p.allocs)
			} else {
				c.Allocations += len(p.allocs)
			}
		}
		if r.alloc != nil && r.alloc.kind == virtual && !seen[r] {
			seen[r] = true
			c.VirtualMappings++
		}
	}
	return c
}
