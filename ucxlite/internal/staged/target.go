package staged

import (
	"fmt"
	"sync"

	"github.com/gpurma/gpurma/ucxlite/internal/wire"
)

// Memory is a registration that a peer named, held until Leave.
type Memory interface {
	// Read copies the memory at address into dst.
	Read(dst []byte, address uint64) error
	// Write copies src to the memory at address; on return it is there.
	Write(src []byte, address uint64) error
	Leave()
}

// Target is the side whose memory is meant.
type Target struct {
	ring  *Ring
	send  func(wire.Frame) error
	enter func(wire.Transfer) (Memory, error)
	fault func(error) wire.Transferred // how a failure is told

	puts, gets chan wire.Transfer
	dead       chan struct{}
	movers     sync.WaitGroup
}

// NewTarget takes over ring and starts to serve.
func NewTarget(ring *Ring, send func(wire.Frame) error, enter func(wire.Transfer) (Memory, error), fault func(error) wire.Transferred) *Target {
	t := &Target{
		ring: ring, send: send, enter: enter, fault: fault,
		puts: make(chan wire.Transfer, ring.slots), gets: make(chan wire.Transfer, ring.slots), dead: make(chan struct{}),
	}
	t.movers.Go(func() { t.serve(t.puts, false) })
	t.movers.Go(func() { t.serve(t.gets, true) })
	return t
}

// Handle takes a Put or Get. An error means that the peer broke the rules. It
// does not block: there is room for as much as a peer can have slots for.
func (t *Target) Handle(f wire.Frame) error {
	var tr wire.Transfer
	queue := t.puts
	switch f := f.(type) {
	case *wire.Put:
		tr = f.Transfer
	case *wire.Get:
		tr, queue = f.Transfer, t.gets
	}
	if tr.Index >= uint32(t.ring.slots) || tr.Length == 0 || uint64(tr.Length) > uint64(t.ring.size) {
		return fmt.Errorf("%w: %T of %d bytes in slot %d", wire.ErrMalformed, f, tr.Length, tr.Index)
	}
	select {
	case queue <- tr:
		return nil
	default:
		return fmt.Errorf("%w: %T beyond its credit", wire.ErrMalformed, f)
	}
}

func (t *Target) serve(queue chan wire.Transfer, get bool) {
	for {
		select {
		case tr := <-queue:
			answer := wire.Transferred{}
			if err := t.move(tr, get); err != nil {
				answer = t.fault(err)
			}
			answer.Get, answer.Index = get, tr.Index
			if t.send(&answer) != nil {
				return // the connection is dead, and its reader closes us
			}
		case <-t.dead:
			return
		}
	}
}

func (t *Target) move(tr wire.Transfer, get bool) error {
	m, err := t.enter(tr)
	if err != nil {
		return err
	}
	defer m.Leave()
	slot := t.ring.slot(get, int(tr.Index))[:tr.Length]
	if get {
		return m.Read(slot, tr.Address)
	}
	return m.Write(slot, tr.Address)
}

// Close waits until this side has stopped copying and unmaps the ring.
func (t *Target) Close() error {
	close(t.dead)
	t.movers.Wait()
	return t.ring.Close()
}
