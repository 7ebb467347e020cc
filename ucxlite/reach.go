package ucxlite

import (
	"sync"
	"time"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite/internal/lane"
)

// reachExpiry is how long a failed open speaks against a kind of handle.
const reachExpiry = 10 * time.Second

// reachability remembers which handles could not be opened, and why.
type reachability struct {
	mu    sync.Mutex
	known map[reachKey]reachState
}

type reachKey struct {
	peer cudaipc.Identity
	dev  cuda.Device
	kind cudaipc.Kind
}

type reachState struct {
	reason string
	until  time.Time
}

func (r *reachability) failed(k reachKey, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = map[reachKey]reachState{}
	}
	r.known[k] = reachState{reason, time.Now().Add(reachExpiry)}
}

// against returns what speaks against the key's handles on dev.
func (r *reachability) against(k *cudaipc.Key, dev cuda.Device) map[cudaipc.Kind]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) == 0 {
		return nil
	}
	var bad map[cudaipc.Kind]string
	for _, h := range k.Handles {
		rk := reachKey{k.Identity, dev, h.Kind}
		s, ok := r.known[rk]
		if !ok {
			continue
		}
		if time.Now().After(s.until) {
			delete(r.known, rk)
			continue
		}
		if bad == nil {
			bad = map[cudaipc.Kind]string{}
		}
		bad[h.Kind] = s.reason
	}
	return bad
}

// choose picks the lane for memory of k and a local buffer on dev.
func (e *Endpoint) choose(k *Rkey, dev cuda.Device) lane.Choice {
	return lane.Choose(lane.Facts{
		SameProcess: k.local(),
		Handles:     k.key.Handles,
		Unreachable: e.w.c.reach.against(&k.key, dev),
		RequireIPC:  e.ipcOnly,
	})
}

// Explain says which lane an operation with buf and k would take now, and why.
func (e *Endpoint) Explain(buf Buffer, k *Rkey) string {
	if k == nil || k.e != e {
		return "none: no key of this endpoint"
	}
	dev := k.defaultDevice()
	if !buf.onHost() && buf.ptr != 0 {
		if d, _, err := e.w.c.devices.of(e.w.c.drv, buf.ptr); err == nil {
			dev = d
		}
	}
	c := e.choose(k, dev)
	return c.Lane.String() + ": " + c.Reason
}

// forget drops what is known, so that the next use tries again.
func (r *reachability) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = nil
}
