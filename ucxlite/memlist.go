package ucxlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
)

// RemoteMemElem is an element of a list to be made: Length bytes at the
// exporter's address Address of a key's range. The zero value is a gap, which
// keeps the numbers of the others.
type RemoteMemElem struct {
	Rkey    *Rkey
	Address uint64
	Length  uint64
}

func (e *RemoteMemElem) gap() bool { return *e == RemoteMemElem{} }

// RemoteMemRange is an element of a list: Length bytes at Ptr here. It is zero
// for a gap.
type RemoteMemRange struct {
	Ptr    cuda.DevicePtr
	Length uint64
}

// RemoteMemList is remote memory, mapped and pinned until Release, also beyond
// its keys. Each element has the policy of the key it was made from.
type RemoteMemList struct {
	w        *Worker
	ranges   []RemoteMemRange
	pins     []cudaipc.Mapping // parallel to ranges
	policies []Policy

	once     sync.Once
	released error
}

// TryRemoteMemList maps the elements' memory. While the wire-up of an element's
// endpoint runs it is ErrNotConnected, and nothing is mapped: progress and try
// again. Arguments that can never be right are ErrInvalidParam; an element
// whose memory cannot be mapped is ErrUnreachable or ErrNotShareable, and what
// the elements before it took is given back. All elements must be mapped on one
// local device, else ErrUnsupported.
func (w *Worker) TryRemoteMemList(elems []RemoteMemElem) (*RemoteMemList, error) {
	l, err := w.tryList(w.c.life, elems)
	if err != nil {
		return nil, fmt.Errorf("remote memory list: %w", translate(err))
	}
	return l, nil
}

// RemoteMemList is TryRemoteMemList that waits for the wire-up, warns once when
// that takes more than 5 s, and ends with ctx.
func (w *Worker) RemoteMemList(ctx context.Context, elems []RemoteMemElem) (*RemoteMemList, error) {
	const patience = 5 * time.Second
	warn := time.AfterFunc(patience, func() {
		w.c.log.Warn("remote memory list still waits for the wire-up", "elements", len(elems), "after", patience)
	})
	defer warn.Stop()
	for {
		l, err := w.tryList(ctx, elems)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, ErrNotConnected) {
			return nil, fmt.Errorf("remote memory list: %w", translate(err))
		}
		for i := range elems {
			if k := elems[i].Rkey; k != nil {
				if err := k.e.WaitConnected(ctx); err != nil {
					return nil, fmt.Errorf("remote memory list: element %d: %w", i, err)
				}
			}
		}
	}
}

func (w *Worker) tryList(ctx context.Context, elems []RemoteMemElem) (_ *RemoteMemList, err error) {
	if err := w.checkList(elems); err != nil {
		return nil, err
	}
	l := &RemoteMemList{
		w: w, ranges: make([]RemoteMemRange, len(elems)), pins: make([]cudaipc.Mapping, len(elems)), policies: make([]Policy, len(elems)),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.giveBack())
		}
	}()
	for i := range elems {
		el := &elems[i]
		if el.gap() {
			continue
		}
		l.policies[i] = el.Rkey.policy
		if err := el.Rkey.pin(ctx, el.Rkey.defaultDevice(), 0, &l.pins[i]); err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		l.ranges[i] = RemoteMemRange{el.Rkey.translate(&l.pins[i], el.Address), el.Length}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fmt.Errorf("worker: %w", ErrDestroyed)
	}
	w.lists[l] = struct{}{}
	return l, nil
}

// checkList looks at everything that can be known without mapping: arguments
// of all elements first, then the state of all endpoints.
func (w *Worker) checkList(elems []RemoteMemElem) error {
	gaps, device := 0, cuda.Device(-1)
	for i := range elems {
		el := &elems[i]
		if el.gap() {
			gaps++
			continue
		}
		k := el.Rkey
		switch {
		case k == nil:
			return fmt.Errorf("%w: element %d has no key", ErrInvalidParam, i)
		case k.e.w != w:
			return fmt.Errorf("%w: element %d has a key of another worker", ErrInvalidParam, i)
		case el.Length == 0:
			return fmt.Errorf("%w: element %d has length 0", ErrInvalidParam, i)
		}
		if err := k.check(el.Address, el.Length); err != nil {
			return fmt.Errorf("%w: element %d: %w", ErrInvalidParam, i, err)
		}
		if err := k.live(); err != nil {
			return fmt.Errorf("%w: element %d: %w", ErrInvalidParam, i, err)
		}
		switch dev := k.defaultDevice(); device {
		case -1:
			device = dev
		case dev:
		default:
			return fmt.Errorf("%w: element %d is mapped on device %d, others on %d", ErrUnsupported, i, dev, device)
		}
	}
	if gaps == len(elems) {
		return fmt.Errorf("%w: no elements", ErrInvalidParam)
	}
	for i := range elems {
		if elems[i].gap() {
			continue
		}
		switch state, err := elems[i].Rkey.e.status(); {
		case err != nil:
			return fmt.Errorf("element %d: %w", i, err)
		case state == EndpointConnecting:
			return fmt.Errorf("element %d: %w", i, ErrNotConnected)
		}
	}
	return nil
}

// Len is the number of elements, gaps included.
func (l *RemoteMemList) Len() int { return len(l.ranges) }

// At is element i, in the order the list was made with.
func (l *RemoteMemList) At(i int) RemoteMemRange { return l.ranges[i] }

// Release drops the list's pins; its pointers are invalid then. The last user
// of an element's mapping decides by the element's policy. Idempotent.
func (l *RemoteMemList) Release() error {
	if l == nil {
		return nil
	}
	l.once.Do(func() {
		if err := l.giveBack(); err != nil {
			l.released = fmt.Errorf("release memory list: %w", translate(err))
		}
		l.w.mu.Lock()
		delete(l.w.lists, l)
		l.w.mu.Unlock()
	})
	return l.released
}

func (l *RemoteMemList) giveBack() error {
	var errs []error
	for i := range l.pins {
		errs = append(errs, l.pins[i].Release(l.policies[i]))
	}
	return errors.Join(errs...)
}
