package main

import (
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// situation is one of the six arrangements of contexts of UCX's test_rma_cuda:
// which context the memory is allocated in, and which one, if any, is current
// on the thread that communicates.
type situation struct {
	index int
	about string
	// arrange decides for one rank. It may retain and create contexts through
	// the arrangement, which gives them back.
	arrange func(a *arrangement) error
}

// The six, by UCX's index.
var situations = []situation{
	{0, "primary context for allocation and communication", func(a *arrangement) error {
		a.current = a.owner
		return nil
	}},
	{1, "primary context for allocation, none for communication", func(*arrangement) error {
		return nil
	}},
	{2, "primary context for allocation, communication from another thread with none", func(a *arrangement) error {
		a.otherThread = true
		return nil
	}},
	{3, "primary context for allocation, a user context for communication", func(a *arrangement) (err error) {
		a.current, err = a.userContext()
		return err
	}},
	{4, "user context for allocation, the primary one for communication", func(a *arrangement) (err error) {
		a.current = a.owner
		a.owner, err = a.userContext()
		return err
	}},
	{5, "another device's primary context for communication", func(a *arrangement) error {
		return a.otherDevice()
	}},
}

// errNeedsDevice says that a situation needs another device than this machine
// shows.
var errNeedsDevice = errors.New("found 1 device, need 2")

// arrangement is a situation in force on one rank. It owns its contexts.
type arrangement struct {
	drv cuda.Driver
	dev cuda.Device

	owner       cuda.Context // the context that memory is allocated in
	current     cuda.Context // current on the communicating thread; 0 for none
	otherThread bool         // communicate from a thread that never allocated

	undo []func() error
}

// enter puts s in force for memory on dev.
func (s situation) enter(drv cuda.Driver, dev cuda.Device) (_ *arrangement, err error) {
	a := &arrangement{drv: drv, dev: dev}
	defer func() {
		if err == nil {
			return
		}
		err = fmt.Errorf("situation %d: %w", s.index, err)
		if undo := a.leave(); undo != nil {
			// No want of a device any more, but a failure.
			err = fmt.Errorf("%v; give the contexts back: %w", err, undo)
		}
	}()
	if a.owner, err = a.primary(dev); err != nil {
		return nil, err
	}
	if err := s.arrange(a); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *arrangement) primary(dev cuda.Device) (cuda.Context, error) {
	ctx, err := a.drv.DevicePrimaryCtxRetain(dev)
	if err != nil {
		return 0, err
	}
	a.undo = append(a.undo, func() error { return a.drv.DevicePrimaryCtxRelease(dev) })
	return ctx, nil
}

// userContext creates a context beside the primary one.
func (a *arrangement) userContext() (cuda.Context, error) {
	ctx, err := a.drv.CtxCreate(a.dev)
	if err != nil {
		return 0, err
	}
	a.undo = append(a.undo, func() error { return a.drv.CtxDestroy(ctx) })
	return ctx, nil
}

func (a *arrangement) otherDevice() error {
	n, err := a.drv.DeviceGetCount()
	if err != nil {
		return err
	}
	if n < 2 {
		return errNeedsDevice
	}
	a.current, err = a.primary(cuda.Device((int(a.dev) + 1) % n))
	return err
}

// leave gives the contexts back, last first.
func (a *arrangement) leave() error {
	var errs []error
	for i := len(a.undo) - 1; i >= 0; i-- {
		errs = append(errs, a.undo[i]())
	}
	a.undo = nil
	return errors.Join(errs...)
}
