package softgpu

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// currentStacks holds each thread's stack of current contexts. A thread with an
// empty stack has no entry.
type currentStacks struct {
	mu      sync.Mutex
	threads map[int][]cuda.Context
}

func (s *currentStacks) change(f func(stack []cuda.Context) []cuda.Context) {
	tid := unix.Gettid()
	s.mu.Lock()
	defer s.mu.Unlock()
	stack := f(s.threads[tid])
	if len(stack) == 0 {
		delete(s.threads, tid)
		return
	}
	if s.threads == nil {
		s.threads = map[int][]cuda.Context{}
	}
	s.threads[tid] = stack
}

// CtxPushCurrent pushes a context on the calling thread's stack.
func (d *Driver) CtxPushCurrent(ctx cuda.Context) error {
	const call = "cuCtxPushCurrent"
	if err := d.enter(call); err != nil {
		return err
	}
	if _, err := d.useContext(ctx); err != nil {
		return failed(call, err)
	}
	d.stacks.change(func(stack []cuda.Context) []cuda.Context { return append(stack, ctx) })
	return nil
}

// CtxPopCurrent takes the top off; an empty stack is ErrorInvalidContext.
func (d *Driver) CtxPopCurrent() (top cuda.Context, err error) {
	const call = "cuCtxPopCurrent"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	d.stacks.change(func(stack []cuda.Context) []cuda.Context {
		if len(stack) == 0 {
			err = failed(call, cuda.ErrorInvalidContext)
			return nil
		}
		top = stack[len(stack)-1]
		return stack[:len(stack)-1]
	})
	return top, err
}

// CtxGetCurrent returns the top; 0 for an empty stack.
func (d *Driver) CtxGetCurrent() (top cuda.Context, err error) {
	if err := d.enter("cuCtxGetCurrent"); err != nil {
		return 0, err
	}
	d.stacks.change(func(stack []cuda.Context) []cuda.Context {
		if len(stack) > 0 {
			top = stack[len(stack)-1]
		}
		return stack
	})
	return top, nil
}

// CtxSetCurrent replaces the top; 0 takes it off.
func (d *Driver) CtxSetCurrent(ctx cuda.Context) error {
	const call = "cuCtxSetCurrent"
	if err := d.enter(call); err != nil {
		return err
	}
	if ctx != 0 {
		if _, err := d.useContext(ctx); err != nil {
			return failed(call, err)
		}
	}
	d.stacks.change(func(stack []cuda.Context) []cuda.Context {
		if len(stack) > 0 {
			stack = stack[:len(stack)-1]
		}
		if ctx != 0 {
			stack = append(stack, ctx)
		}
		return stack
	})
	return nil
}
