package ucxlite

import (
	"sync/atomic"

	"github.com/gpurma/gpurma/ucxlite/internal/lane"
)

// LaneStats counts operations of one lane, and their bytes.
type LaneStats struct {
	Puts, Gets uint64
	Bytes      uint64
}

// Stats counts operations by the lane they took.
type Stats struct {
	IPC    LaneStats
	Staged LaneStats
}

type counters struct {
	lanes [lane.Staged + 1]struct{ puts, gets, bytes atomic.Uint64 }
}

func (c *counters) add(l lane.Lane, op opKind, n uint64) {
	if op == opPut {
		c.lanes[l].puts.Add(1)
	} else {
		c.lanes[l].gets.Add(1)
	}
	c.lanes[l].bytes.Add(n)
}

func (c *counters) read() Stats {
	one := func(l lane.Lane) LaneStats {
		n := &c.lanes[l]
		return LaneStats{n.puts.Load(), n.gets.Load(), n.bytes.Load()}
	}
	return Stats{IPC: one(lane.IPC), Staged: one(lane.Staged)}
}

// Stats counts the context's operations.
func (c *Context) Stats() Stats { return c.stats.read() }

// Stats counts the endpoint's operations.
func (e *Endpoint) Stats() Stats { return e.stats.read() }

// count notes that r goes by l.
func (e *Endpoint) count(l lane.Lane, r *Request) {
	e.stats.add(l, r.op, r.buf.n)
	e.w.c.stats.add(l, r.op, r.buf.n)
	if l == lane.Staged && len(r.key.key.Handles) > 0 {
		e.slow.Do(func() {
			e.w.c.log.Warn("memory that looks shareable takes the slow lane", "endpoint", e.String(),
				"lane", e.Explain(r.buf, r.key), "hint", "UCXLITE_REQUIRE_IPC=y makes this an error")
		})
	}
}
