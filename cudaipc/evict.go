package cudaipc

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// candidate is an entry that was unused when the cache last looked. As long as
// its stamp stands it has not been used, and everything that is not among the
// candidates was used later.
type candidate struct {
	e     *entry
	stamp int64
}

// overLimit takes entries that are not pinned out of the cache, the one unused
// longest first, until the limits hold or all are pinned, and returns them for
// closing. The caller holds mu.
func (c *Cache) overLimit() (victims []*entry) {
	looked := false
	if c.exceeded() {
		// Before the look: a release that it still sees pinned must see this.
		c.over.Store(true)
	}
	for c.exceeded() {
		if len(c.idle) == 0 {
			if looked {
				break
			}
			looked = true
			c.idle = c.candidates()
			continue
		}
		last := len(c.idle) - 1
		next := c.idle[last]
		c.idle[last] = candidate{}
		c.idle = c.idle[:last]
		if next.e.stamp.Load() == next.stamp && next.e.beginClose(false) {
			c.unlink(next.e)
			victims = append(victims, next.e)
		}
	}
	c.over.Store(c.exceeded())
	return victims
}

func (c *Cache) exceeded() bool {
	return c.maxCount > 0 && c.linked > c.maxCount || c.maxBytes > 0 && c.bytes > c.maxBytes
}

// candidates returns the unpinned entries, the one unused longest last.
func (c *Cache) candidates() (idle []candidate) {
	c.index.all(func(e *entry) {
		if w := e.word(); w.usable() && w.pins() == 0 {
			idle = append(idle, candidate{e, e.stamp.Load()})
		}
	})
	slices.SortFunc(idle, func(a, b candidate) int {
		switch {
		case a.stamp > b.stamp:
			return -1
		case a.stamp < b.stamp:
			return 1
		}
		return 0
	})
	return idle
}

// shrink brings the cache back under its limits after a release.
func (c *Cache) shrink() {
	c.mu.Lock()
	victims := c.overLimit()
	c.mu.Unlock()
	_ = c.closeAll(victims, causeLimit) // failures stay as zombies in the Stats
}

// reclaim takes the entries that match and are not held out of the cache, for
// closing, and returns beside them those that others are closing, and the number
// of those in use. With spareClaims, claimed entries are left alone. The caller
// holds mu.
func (c *Cache) reclaim(match func(*entry) bool, spareClaims bool) (victims, waits []*entry, busy int) {
	visit := func(e *entry) {
		switch {
		case !match(e):
		case e.beginClose(spareClaims):
			victims = append(victims, e)
		default:
			switch w := e.word(); {
			case w.phase() == closing:
				waits = append(waits, e)
			case w.phase() < closing && w.pins() > 0:
				busy++
			}
		}
	}
	for e := range c.apart {
		visit(e)
	}
	c.index.all(func(e *entry) {
		if _, seen := c.apart[e]; !seen {
			visit(e)
		}
	})
	for _, e := range victims {
		c.unlink(e)
	}
	return victims, waits, busy
}

// CloseIdle closes the mappings, on all local devices, of exactly the allocation
// that key names (its exporter, device and buffer id) that neither a pin nor a
// claim holds: what a Retain user left, when somebody who would have it freed
// lets go of a key that never mapped (scenario P1b). It returns how many.
func (c *Cache) CloseIdle(key *Key) (int, error) {
	if forked() {
		return 0, fmt.Errorf("close idle: %w", ErrForked)
	}
	same := func(e *entry) bool {
		return e.key.BufferID == key.BufferID && e.key.Device == key.Device && e.key.Identity == key.Identity
	}
	var victims, waits []*entry
	c.mu.Lock()
	for e := range c.apart {
		if same(e) && e.word().phase() == closing {
			waits = append(waits, e)
		}
	}
	if p := c.peers[key.Identity]; p != nil && key.Length > 0 {
		p.ranges.overlapping(key.Base, key.Base.Add(1), func(e *entry) {
			switch {
			case !same(e):
			case e.beginClose(true):
				victims = append(victims, e)
			case e.word().phase() == closing:
				waits = append(waits, e)
			}
		})
	}
	for _, e := range victims {
		c.unlink(e)
	}
	c.mu.Unlock()
	err := c.closeAll(victims, causeIdle)
	awaitGone(waits)
	if err != nil {
		err = fmt.Errorf("close idle %s: %w", key, err)
	}
	return len(victims), err
}

// EvictPeer closes all mappings of the exporter's memory that are not pinned and
// returns how many, and how many are in use. It needs no word from the exporter,
// who may be dead.
func (c *Cache) EvictPeer(id Identity) (closedCount, busy int, err error) {
	return c.evict(func(e *entry) bool { return e.key.Identity == id }, causePeer)
}

// EvictIdle closes all mappings that are not pinned and were last used longer
// ago than olderThan, and returns how many. It tries those again whose close had
// failed.
func (c *Cache) EvictIdle(olderThan time.Duration) (int, error) {
	limit := c.now() - int64(olderThan)
	n, _, err := c.evict(func(e *entry) bool { return e.stamp.Load() <= limit }, causeIdle)
	return n, err
}

func (c *Cache) evict(match func(*entry) bool, why cause) (int, int, error) {
	if forked() {
		return 0, 0, fmt.Errorf("evict: %w", ErrForked)
	}
	c.mu.Lock()
	victims, waits, busy := c.reclaim(match, false)
	zombies := c.takeZombies(match)
	c.mu.Unlock()
	err := errors.Join(c.closeAll(victims, why), c.retryZombies(zombies))
	awaitGone(waits)
	if err != nil {
		err = fmt.Errorf("evict: %w", err)
	}
	return len(victims), busy, err
}
