// Package lane decides how bytes reach remote memory. The decision is a pure
// function, so that it can be explained and tested without a device.
package lane

import (
	"fmt"

	"github.com/gpurma/gpurma/cudaipc"
)

// Lane is a way for bytes.
type Lane uint8

const (
	None   Lane = iota // no way
	IPC                // map the memory and copy; no help from the peer
	Staged             // through shared memory; the peer's control plane copies
)

func (l Lane) String() string {
	switch l {
	case IPC:
		return "ipc"
	case Staged:
		return "staged"
	}
	return "none"
}

// Facts are all that the choice depends on.
type Facts struct {
	SameProcess bool                    // the memory is this process's own
	Handles     []cudaipc.Handle        // of the key
	Unreachable map[cudaipc.Kind]string // kinds whose open failed a short while ago, and why
	RequireIPC  bool
}

// Choice is a lane with its reason; where Lane is None, Err says what the
// operation ends with.
type Choice struct {
	Lane   Lane
	Kind   cudaipc.Kind // the handle that the ipc lane opens
	Reason string
	Err    error
}

// Choose picks the lane.
func Choose(f Facts) Choice {
	if f.SameProcess {
		return Choice{Lane: IPC, Reason: "the memory is this process's own: copied through its own address"}
	}
	var failed string
	for _, h := range f.Handles {
		k := h.Kind
		if reason, bad := f.Unreachable[k]; bad {
			failed = fmt.Sprintf("%s handle: %s", k, reason)
			continue
		}
		return Choice{Lane: IPC, Kind: k, Reason: fmt.Sprintf("mapped by its %s handle", k)}
	}
	switch {
	case len(f.Handles) == 0 && f.RequireIPC:
		return Choice{Reason: "no handle can share the memory, and only ipc is allowed", Err: cudaipc.ErrNotShareable}
	case len(f.Handles) == 0:
		return Choice{Lane: Staged, Reason: "no handle can share the memory"}
	case f.RequireIPC:
		return Choice{Reason: failed + "; only ipc is allowed", Err: cudaipc.ErrUnreachable}
	}
	return Choice{Lane: Staged, Reason: failed}
}
