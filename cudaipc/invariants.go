package cudaipc

import (
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// CheckInvariants tells what in the cache's bookkeeping does not agree with the
// rest. It may run beside anything and is for tests and for a suspicious user.
func (c *Cache) CheckInvariants() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	linked := map[*entry]bool{}
	var bytes uint64
	for id, p := range c.peers {
		if p.ranges.empty() {
			bad("peer %s has no entries", id)
		}
		var end cuda.DevicePtr
		p.ranges.all(func(n *rangeNode) {
			if n.base < end {
				bad("%s: places overlap at %s", id, n.base)
			}
			end = n.end
			devices := map[cuda.Device]bool{}
			for _, e := range n.entries {
				if linked[e] || devices[e.device] {
					bad("linked twice on device %d: %s", e.device, &e.key)
				}
				linked[e], devices[e.device] = true, true
				bytes += e.key.Length
				w := e.word()
				// A closer sets the phase before it comes for the lock.
				if p := w.phase(); p != open && p != closing || w.detached() {
					bad("linked, but %s, detached %t: %s", p, w.detached(), &e.key)
				}
				if !e.key.sameAllocation(&n.entries[0].key) {
					bad("two allocations in one place: %s and %s", &e.key, &n.entries[0].key)
				}
				if c.index.find(e.hash, &e.key, e.device) != e {
					bad("linked, but not found: %s", &e.key)
				}
			}
		})
	}
	if len(linked) != c.linked || bytes != c.bytes {
		bad("%d entries of %d bytes linked, counted %d of %d", len(linked), bytes, c.linked, c.bytes)
	}
	indexed, live := 0, len(c.zombies)+c.retrying
	c.index.all(func(e *entry) {
		indexed++
		_, apart := c.apart[e]
		switch p := e.word().phase(); {
		case p == closed:
			bad("closed, but found: %s", &e.key)
		case p == open && !linked[e]:
			bad("open, but not linked: %s", &e.key)
		case p == opening && (linked[e] || apart):
			bad("opening, but linked: %s", &e.key)
		case apart && p != closing:
			bad("apart, but found, and %s: %s", p, &e.key)
		}
	})
	if indexed != c.index.live {
		bad("%d entries indexed, counted %d", indexed, c.index.live)
	}
	for e := range c.apart {
		if linked[e] {
			bad("apart, and linked: %s", &e.key)
		}
		// As above: the last pin of a detached entry makes it closing.
		if w := e.word(); w.phase() != closing && !(w.phase() == open && w.detached() && w.pins() > 0) {
			bad("apart, but %s with %d pins: %s", w.phase(), w.pins(), &e.key)
		}
	}
	for _, e := range c.zombies {
		if e.word().phase() != closed {
			bad("zombie, but %s: %s", e.word().phase(), &e.key)
		}
	}
	live += len(linked) + len(c.apart)
	if got := int(c.totals.opens - c.totals.closes); got != live {
		bad("%d mappings open, opens less closes is %d", live, got)
	}
	return errors.Join(errs...)
}
