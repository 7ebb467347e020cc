package cudaipc

import (
	"slices"

	"github.com/gpurma/gpurma/cuda"
)

// model is the cache as one would write it without concurrency: a list.
type model struct {
	entries []*modelEntry // open, linked and detached; zombies not
	zombies []*Key
	limit   int
	clock   int
	opens   int
	closes  int
	refuse  bool // the driver refuses closes
}

type modelEntry struct {
	key          *Key
	dev          cuda.Device
	pins, claims int
	detached     bool
	used         int
}

func (m *model) find(k *Key, dev cuda.Device) *modelEntry {
	for _, e := range m.entries {
		if !e.detached && e.key == k && e.dev == dev {
			return e
		}
	}
	return nil
}

// end closes e; the driver may refuse.
func (m *model) end(e *modelEntry) {
	i := slices.Index(m.entries, e)
	m.entries = slices.Delete(m.entries, i, i+1)
	if m.refuse {
		m.zombies = append(m.zombies, e.key)
	} else {
		m.closes++
	}
}

func (m *model) tick() int { m.clock++; return m.clock }

func (m *model) linked() (n int) {
	for _, e := range m.entries {
		if !e.detached {
			n++
		}
	}
	return n
}

func (m *model) shrink() {
	for m.limit > 0 && m.linked() > m.limit {
		var oldest *modelEntry
		for _, e := range m.entries {
			if !e.detached && e.pins == 0 && (oldest == nil || e.used < oldest.used) {
				oldest = e
			}
		}
		if oldest == nil {
			return
		}
		m.end(oldest)
	}
}

func (m *model) open(k *Key, dev cuda.Device) *modelEntry {
	m.opens++
	fresh := &modelEntry{key: k, dev: dev, pins: 1, used: m.tick()}
	for _, e := range slices.Clone(m.entries) {
		if e.detached || e.key == k || e.key.Identity != k.Identity ||
			e.key.Base.Add(e.key.Length) <= k.Base || k.Base.Add(k.Length) <= e.key.Base {
			continue
		}
		if e.pins == 0 {
			m.end(e)
		} else {
			e.detached = true
		}
	}
	m.entries = append(m.entries, fresh)
	m.shrink()
	return fresh
}

func (m *model) unpin(e *modelEntry, p Policy) {
	if e.pins--; e.pins > 0 {
		return
	}
	e.used = m.tick()
	if e.detached || e.claims == 0 && p == FreeUnused {
		m.end(e)
	}
	m.shrink()
}

func (m *model) unclaim(e *modelEntry, p Policy) {
	e.claims--
	if slices.Contains(m.entries, e) && e.pins == 0 && e.claims == 0 && p == FreeUnused {
		m.end(e)
	}
}

func (m *model) counts() counts {
	n := counts{Opens: uint64(m.opens), Closes: uint64(m.closes), Zombies: len(m.zombies), Live: m.opens - m.closes}
	for _, e := range m.entries {
		switch {
		case e.pins > 0:
			n.InUse++
		case e.claims > 0:
			n.Claimed++
		default:
			n.Idle++
		}
		if e.detached {
			n.Detached++
		}
	}
	return n
}
