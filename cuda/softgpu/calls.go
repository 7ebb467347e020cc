package softgpu

import (
	"sync"
	"sync/atomic"

	"github.com/gpurma/gpurma/cuda"
)

// CopyCall is the name under which a hook sees a copy or memset at the moment
// when a stream's executor carries it out. A result that is not Success makes
// it fail there: nothing is moved, and the context answers every later call
// with that result, as after a fault on a GPU.
const CopyCall = "softgpu.copy"

// SetHook makes hook run at the start of every call, with the call's CUDA name
// ("cuMemAlloc") and no lock held, and for [CopyCall]. A result other than
// Success is returned instead of making the call. The hook may block, which
// delays that call alone. nil removes it.
func (d *Driver) SetHook(hook func(call string) cuda.Result) {
	if hook == nil {
		d.hook.Store(nil)
		return
	}
	d.hook.Store(&hook)
}

func (d *Driver) runHook(call string) cuda.Result {
	if hook := d.hook.Load(); hook != nil {
		return (*hook)(call)
	}
	return cuda.Success
}

// enter counts a call and tells whether it may go on.
func (d *Driver) enter(call string) error {
	d.calls.add(call)
	if r := d.runHook(call); r != cuda.Success {
		return cuda.Err(call, r)
	}
	if d.closed.Load() {
		return cuda.Err(call, cuda.ErrorDeinitialized)
	}
	return nil
}

// callCounts counts calls by name.
type callCounts struct{ byName *sync.Map }

func newCallCounts() callCounts { return callCounts{byName: &sync.Map{}} }

func (c callCounts) add(call string) {
	n, ok := c.byName.Load(call)
	if !ok {
		n, _ = c.byName.LoadOrStore(call, new(atomic.Uint64))
	}
	n.(*atomic.Uint64).Add(1)
}

func (c callCounts) snapshot() map[string]uint64 {
	calls := map[string]uint64{}
	c.byName.Range(func(name, n any) bool {
		calls[name.(string)] = n.(*atomic.Uint64).Load()
		return true
	})
	return calls
}
