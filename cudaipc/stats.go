package cudaipc

// totals is what the cache counts beside its entries; guarded by Cache.mu.
type totals struct {
	misses, shared, local uint64
	fdOpens, fetched      uint64
	opens, openFailures   uint64
	closes, closeFailures uint64
	stale, overLimit      uint64
	ended                 [causes]uint64
	maxRegions            int
	maxBytes              uint64
}

// Stats is the state of a cache at one moment.
type Stats struct {
	Hits   uint64 // uses of a mapping that was open
	Misses uint64 // uses that started an open
	Shared uint64 // uses that waited for an open somebody else had started
	Local  uint64 // uses of this process's own memory

	Opens         uint64 // successful opens in the driver
	FDOpens       uint64 // of these, by a descriptor
	FDFetched     uint64 // descriptors that FetchFD obtained
	OpenFailures  uint64
	Closes        uint64 // successful closes in the driver
	CloseFailures uint64
	OverLimit     uint64 // opens that left a limit exceeded, all else being in use
	Stale         uint64 // entries found to be of an allocation that is gone

	Released     uint64 // closed by the last release
	EvictedIdle  uint64 // closed by CloseIdle and EvictIdle
	EvictedPeer  uint64 // closed by EvictPeer
	EvictedLimit uint64 // closed for a limit
	EvictedStale uint64 // closed because stale

	Opening  int // being opened
	InUse    int // open and pinned, detached ones included
	Claimed  int // open, not pinned, claimed
	Idle     int // open, neither pinned nor claimed
	Detached int // stale, closing with their last pin
	Closing  int // being closed
	Zombies  int // the driver refused to close them

	Live       int    // mappings the driver has open: Opens - Closes
	Regions    int    // what the limits count
	Bytes      uint64 // likewise
	MaxRegions int    // most Regions so far
	MaxBytes   uint64 // most Bytes so far
}

// Stats returns the counts. Those of opens, closes and entries are of one
// moment; Hits may be behind uses under way.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.totals
	s := Stats{
		Hits: c.retired, Misses: t.misses, Shared: t.shared, Local: t.local,
		Opens: t.opens, OpenFailures: t.openFailures, FDOpens: t.fdOpens, FDFetched: t.fetched, Closes: t.closes, CloseFailures: t.closeFailures,
		OverLimit: t.overLimit, Stale: t.stale,
		Released: t.ended[causeReleased], EvictedIdle: t.ended[causeIdle], EvictedPeer: t.ended[causePeer],
		EvictedLimit: t.ended[causeLimit], EvictedStale: t.ended[causeStale],
		Zombies: len(c.zombies) + c.retrying, Live: int(t.opens - t.closes),
		Regions: c.linked, Bytes: c.bytes, MaxRegions: t.maxRegions, MaxBytes: t.maxBytes,
	}
	c.each(func(e *entry) {
		s.Hits += e.hits.Load()
		w := e.word()
		switch {
		case w.phase() == opening:
			s.Opening++
		case w.phase() == closing:
			s.Closing++
		case w.phase() == closed:
		case w.pins() > 0:
			s.InUse++
		case w.claims() > 0:
			s.Claimed++
		default:
			s.Idle++
		}
		if w.detached() && w.phase() == open {
			s.Detached++
		}
	})
	return s
}

// each calls f for every entry that is not closed. The caller holds mu.
func (c *Cache) each(f func(*entry)) {
	for e := range c.apart {
		f(e)
	}
	c.index.all(func(e *entry) {
		if _, seen := c.apart[e]; !seen {
			f(e)
		}
	})
}
