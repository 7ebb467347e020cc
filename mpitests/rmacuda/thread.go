package main

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/gpurma/gpurma/cuda"
	"golang.org/x/sys/unix"
)

// thread is the locked OS thread that a rank allocates or communicates on, with
// the context that the caller of the library made current there.
type thread struct {
	id      int // of the operating system
	drv     cuda.Driver
	current cuda.Context
}

// onThreadOtherThan runs f as onThread does, on any thread but the one with that
// id.
func onThreadOtherThan(id int, drv cuda.Driver, current cuda.Context, f func(*thread) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() != id {
		return onThread(drv, current, f)
	}
	// While this goroutine holds that thread, another one cannot get it.
	done := make(chan error)
	go func() { done <- onThread(drv, current, f) }()
	return <-done
}

// onThread runs f on a locked thread with current as its only context. The
// thread is left without one.
func onThread(drv cuda.Driver, current cuda.Context, f func(*thread) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t := &thread{id: unix.Gettid(), drv: drv, current: current}
	if current != 0 {
		if err := drv.CtxPushCurrent(current); err != nil {
			return err
		}
	}
	err := f(t)
	if current != 0 {
		popped, popErr := drv.CtxPopCurrent()
		if popErr == nil && popped != current {
			popErr = fmt.Errorf("the thread's context was %#x and is %#x", current, popped)
		}
		err = errors.Join(err, popErr)
	}
	return err
}

// call runs one call of the library and checks that it left the thread's
// current context alone.
func (t *thread) call(what string, f func() error) error {
	if err := f(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	now, err := t.drv.CtxGetCurrent()
	if err != nil {
		return fmt.Errorf("%s: current context afterwards: %w", what, err)
	}
	if now != t.current {
		return fmt.Errorf("%s: current context was %#x before the call and is %#x after it", what, t.current, now)
	}
	return nil
}
