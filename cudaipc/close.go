package cudaipc

import "errors"

// cause is why an entry was closed.
type cause int

const (
	causeReleased cause = iota // last release with FreeUnused, or of a closed cache
	causeIdle                  // CloseIdle, EvictIdle
	causePeer                  // EvictPeer
	causeLimit                 // a limit
	causeStale                 // the exporter's range belongs to another allocation
	causeUnwanted              // everybody left before it was open
	causeInvalid               // the key lied
	causeClose                 // Cache.Close
	causes
)

// unpin drops a pin of e.
func (c *Cache) unpin(e *entry, policy Policy) error {
	if forked() {
		return ErrForked
	}
	last := false
	for {
		w := e.word()
		next := w - onePin
		last = w.phase() == open && !e.local && next.pins() == 0
		if last {
			e.stamp.Store(c.now())
			if next.closesNow(policy) {
				next = next.withPhase(closing)
			}
		}
		if e.swap(w, next) {
			if last && next.phase() == closing {
				return c.closeEntry(e, causeReleased)
			}
			break
		}
	}
	if last && c.shut.Load() && e.beginClose(false) {
		return c.closeEntry(e, causeReleased)
	}
	if last && c.over.Load() {
		c.shrink()
	}
	return nil
}

// unclaim drops a claim of e, which may be closed by now.
func (c *Cache) unclaim(e *entry, policy Policy) error {
	if forked() {
		return ErrForked
	}
	for {
		w := e.word()
		next := w - oneClaim
		closes := w.phase() == open && !e.local && next.lastUse(policy)
		if closes {
			next = next.withPhase(closing)
		}
		if !e.swap(w, next) {
			continue
		}
		if closes {
			return c.closeEntry(e, causeReleased)
		}
		return nil
	}
}

// link puts an entry that was just opened among its exporter's ranges, takes
// out those it proves stale, and returns which of these the caller must close.
// The caller holds mu.
func (c *Cache) link(e *entry) (victims []*entry) {
	p := c.peers[e.key.Identity]
	if p == nil {
		p = &peer{}
		c.peers[e.key.Identity] = p
	}
	var stale []*entry
	p.ranges.overlapping(e.key.Base, e.end(), func(o *entry) {
		if !o.key.sameAllocation(&e.key) {
			stale = append(stale, o)
		}
	})
	for _, o := range stale {
		c.totals.stale++
		if c.detach(o) {
			victims = append(victims, o)
		}
	}
	c.peers[e.key.Identity] = p // the last stale one may have taken it out
	p.ranges.insert(e)
	c.linked++
	c.bytes += e.key.Length
	c.totals.maxRegions = max(c.totals.maxRegions, c.linked)
	c.totals.maxBytes = max(c.totals.maxBytes, c.bytes)
	return victims
}

// unlink takes e out of its exporter's ranges, where it is in; it is then kept
// in apart until it is closed. The caller holds mu.
func (c *Cache) unlink(e *entry) {
	p := c.peers[e.key.Identity]
	if p == nil || !p.ranges.remove(e) {
		return
	}
	if p.ranges.empty() {
		delete(c.peers, e.key.Identity)
	}
	c.linked--
	c.bytes -= e.key.Length
	c.apart[e] = struct{}{}
}

// detach makes e unknown to every Map. True: nobody pins it, the caller must
// close it; false: its last pin, or whoever is closing it, does. The caller
// holds mu.
func (c *Cache) detach(e *entry) bool {
	for {
		w := e.word()
		switch {
		case w.phase() != open:
			c.unlink(e)
			return false
		case w.pins() == 0:
			if e.swap(w, w.withPhase(closing)) {
				c.unlink(e)
				return true
			}
		case e.swap(w, w|detached):
			c.unlink(e)
			c.index.remove(e)
			return false
		}
	}
}

// closeEntry closes the mapping of an entry whose phase the caller has moved to
// closing. Where the driver refuses, the mapping stays as a zombie.
func (c *Cache) closeEntry(e *entry, why cause) error {
	c.mu.Lock()
	c.unlink(e)
	c.apart[e] = struct{}{}
	c.mu.Unlock()

	err := e.mapping.close()

	c.mu.Lock()
	c.index.remove(e)
	delete(c.apart, e)
	c.retired += e.hits.Load()
	c.totals.ended[why]++
	if err != nil {
		c.totals.closeFailures++
		c.zombies = append(c.zombies, e)
	} else {
		c.totals.closes++
	}
	e.enter(closed)
	c.mu.Unlock()
	close(e.gone)
	return err
}

func (c *Cache) closeAll(victims []*entry, why cause) error {
	var errs []error
	for _, e := range victims {
		if err := c.closeEntry(e, why); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// awaitGone waits for entries that others are closing.
func awaitGone(entries []*entry) {
	for _, e := range entries {
		<-e.gone
	}
}

// takeZombies removes the zombies that match from the list, for retryZombies.
// The caller holds mu.
func (c *Cache) takeZombies(match func(*entry) bool) (taken []*entry) {
	kept := c.zombies[:0]
	for _, e := range c.zombies {
		if match(e) {
			taken = append(taken, e)
			c.retrying++
		} else {
			kept = append(kept, e)
		}
	}
	clear(c.zombies[len(kept):])
	c.zombies = kept
	return taken
}

// retryZombies tries to close mappings whose close failed before.
func (c *Cache) retryZombies(zombies []*entry) error {
	var errs []error
	for _, e := range zombies {
		err := e.mapping.close()
		c.mu.Lock()
		c.retrying--
		if err != nil {
			c.zombies = append(c.zombies, e)
			errs = append(errs, err)
		} else {
			c.totals.closes++
		}
		c.mu.Unlock()
	}
	return errors.Join(errs...)
}
