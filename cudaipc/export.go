package cudaipc

import (
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/gpurma/gpurma/cuda"
)

// export is one allocation's handles, shared by all its registrations.
type export struct {
	id      exportID
	refs    int // guarded by exportTable.mu
	ready   chan struct{}
	err     error
	handles []Handle
	reason  string // why there is none
	undo    func() error
}

// exportID names an allocation of this process: the buffer id is never used
// again, and an address is.
type exportID struct {
	drv    cuda.Driver
	buffer uint64
	base   cuda.DevicePtr
	length uint64
}

// exportTable holds the allocations that are exported now.
type exportTable struct {
	mu   sync.Mutex
	byID map[exportID]*export
}

var exports = exportTable{byID: map[exportID]*export{}}

// acquire returns the allocation's export with one more reference, made by the
// driver where there was none. No lock is held meanwhile; who comes at the same
// time waits and gets the same export or error.
func (t *exportTable) acquire(drv cuda.Driver, ctx cuda.Context, a *allocation) (*export, error) {
	id := exportID{drv, a.buffer, a.base, a.length}
	shared := reflect.TypeOf(drv).Comparable() // else it cannot be a map key
	t.mu.Lock()
	if shared {
		if x := t.byID[id]; x != nil {
			x.refs++
			t.mu.Unlock()
			<-x.ready
			return x, x.err // a failed one is in no table and owns nothing
		}
	}
	x := &export{id: id, refs: 1, ready: make(chan struct{})}
	if shared {
		t.byID[id] = x
	}
	t.mu.Unlock()

	x.err = blocking(func() error { return x.make(drv, ctx, a) })
	if x.err != nil && shared {
		t.mu.Lock()
		delete(t.byID, id)
		t.mu.Unlock()
	}
	close(x.ready)
	return x, x.err
}

// release drops a reference; the last one gives back what the export holds.
func (t *exportTable) release(x *export) error {
	t.mu.Lock()
	x.refs--
	last := x.refs == 0
	if last && reflect.TypeOf(x.id.drv).Comparable() && t.byID[x.id] == x {
		delete(t.byID, x.id)
	}
	t.mu.Unlock()
	if !last || x.undo == nil {
		return nil
	}
	return x.undo()
}

// make chooses how to share the allocation and asks the driver for the handle.
// A refusal that says that this memory cannot be shared is a reason, not an
// error.
func (x *export) make(drv cuda.Driver, ctx cuda.Context, a *allocation) error {
	switch {
	case a.managed:
		x.reason = "managed memory: the driver moves it between host and devices, no handle shares it"
	case a.kind != cuda.MemoryTypeDevice:
		x.reason = "not device memory"
	case a.legacy:
		return x.makeLegacy(drv, ctx, a)
	case a.allowed&cuda.HandleTypePosixFD != 0:
		return x.makePosixFD(drv, ctx, a)
	case a.allowed != cuda.HandleTypeNone:
		x.reason = fmt.Sprintf("the memory allows handles of type %s only, which this version does not export", a.allowed)
	default:
		x.reason = "the memory was made with no shareable handle type (VMM or pool memory without one, or memory of another process)"
	}
	return nil
}

func (x *export) makeLegacy(drv cuda.Driver, ctx cuda.Context, a *allocation) error {
	handle, err := drv.IpcGetMemHandle(ctx, a.base)
	switch {
	case errors.Is(err, cuda.ErrorInvalidValue), errors.Is(err, cuda.ErrNotSupported):
		x.reason = fmt.Sprintf("the driver gives no legacy handle of it: %v", err)
		return nil
	case err != nil:
		return fmt.Errorf("export legacy handle: %w", err)
	}
	x.handles = []Handle{{Kind: KindLegacy, Data: handle[:]}}
	return nil
}
