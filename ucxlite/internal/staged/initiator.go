package staged

import (
	"fmt"
	"sync"

	"github.com/gpurma/gpurma/ucxlite/internal/wire"
)

// Local is an operation's local memory.
type Local interface {
	// Read copies len(dst) bytes at off into dst.
	Read(dst []byte, off uint64) error
	// Write copies src to off.
	Write(src []byte, off uint64) error
}

// Op is one put or get.
type Op struct {
	Get              bool
	Local            Local
	Length           uint64
	Slot, Generation uint32 // the registration at the target
	Address          uint64
	Done             func(error) // called once, when nobody touches Local any more

	mu      sync.Mutex
	pending int // chunks in flight, and one while chunks are being issued
	err     error
}

// Initiator is the side that asks: it owns the ring and its free slots.
type Initiator struct {
	ring  *Ring
	send  func(wire.Frame) error
	fault func(wire.Transferred) error // what a target's failure means here

	dead    chan struct{} // closed by Fail
	granted chan struct{} // closed by Start
	movers  sync.WaitGroup
	puts    direction
	gets    direction

	mu   sync.Mutex
	err  error
	live map[*Op]struct{}
}

// direction is one half of the ring with the operations that use it.
type direction struct {
	get   bool
	free  chan int    // slots we own; holds all when idle
	queue chan *Op    // to be issued; see submit
	back  chan answer // gets: slots that came back full

	mu     sync.Mutex
	flying []chunk // by slot
}

type chunk struct {
	op  *Op
	off uint64
	n   int
}

type answer struct {
	slot int
	c    chunk
}

// queueLength is how many operations may wait for the mover before Submit
// blocks its caller, which is a goroutine of the operation's own.
const queueLength = 256

// NewInitiator takes over ring. send must be safe for concurrent use.
func NewInitiator(ring *Ring, send func(wire.Frame) error, fault func(wire.Transferred) error) *Initiator {
	in := &Initiator{
		ring: ring, send: send, fault: fault,
		dead: make(chan struct{}), granted: make(chan struct{}), live: map[*Op]struct{}{},
	}
	for _, d := range []*direction{&in.puts, &in.gets} {
		d.get = d == &in.gets
		d.free = make(chan int, ring.slots)
		d.queue = make(chan *Op, queueLength)
		d.back = make(chan answer, ring.slots)
		d.flying = make([]chunk, ring.slots)
		for i := range ring.slots {
			d.free <- i
		}
		in.movers.Go(func() { in.issueLoop(d) })
	}
	in.movers.Go(in.drainLoop)
	return in
}

// Start lets transfers begin: the target has mapped the ring. It may say so
// once.
func (in *Initiator) Start() error {
	select {
	case <-in.granted:
		return fmt.Errorf("%w: the ring was accepted before", wire.ErrMalformed)
	default:
		close(in.granted)
		return nil
	}
}

// Submit queues op. Where it returns an error, Done is not called.
func (in *Initiator) Submit(op *Op) error {
	in.mu.Lock()
	if in.err != nil {
		defer in.mu.Unlock()
		return in.err
	}
	in.live[op] = struct{}{}
	in.mu.Unlock()
	d := &in.puts
	if op.Get {
		d = &in.gets
	}
	op.pending = 1
	select {
	case d.queue <- op:
	case <-in.dead: // Finish completes it, it is in live
	}
	return nil
}

// issueLoop cuts operations into chunks and sends one for each slot it owns.
func (in *Initiator) issueLoop(d *direction) {
	select {
	case <-in.granted:
	case <-in.dead:
		return
	}
	for {
		select {
		case op := <-d.queue:
			if !in.issue(d, op) {
				return
			}
		case <-in.dead:
			return
		}
	}
}

// issue is false when the lane has died.
func (in *Initiator) issue(d *direction, op *Op) bool {
	for off := uint64(0); off < op.Length && !op.failed(); {
		n := int(min(op.Length-off, uint64(in.ring.size)))
		var slot int
		select {
		case slot = <-d.free:
		case <-in.dead:
			return false
		}
		if !d.get {
			if err := op.Local.Read(in.ring.slot(false, slot)[:n], off); err != nil {
				d.free <- slot
				op.fail(fmt.Errorf("local buffer: %w", err))
				break
			}
		}
		op.add()
		d.mu.Lock()
		d.flying[slot] = chunk{op, off, n}
		d.mu.Unlock()
		t := wire.Transfer{
			Index: uint32(slot), Length: uint32(n), Slot: op.Slot, Generation: op.Generation, Address: op.Address + off,
		}
		var f wire.Frame = &wire.Put{Transfer: t}
		if d.get {
			f = &wire.Get{Transfer: t}
		}
		if err := in.send(f); err != nil {
			return false // the connection is dead, and its reader calls Fail
		}
		off += uint64(n)
	}
	in.chunkDone(op, nil)
	return true
}

// Handle takes a target's answer. An error means that the answer makes no
// sense. It does not block.
func (in *Initiator) Handle(f *wire.Transferred) error {
	d := &in.puts
	if f.Get {
		d = &in.gets
	}
	slot := int(f.Index)
	if f.Index >= uint32(in.ring.slots) {
		return fmt.Errorf("%w: answer for slot %d of %d", wire.ErrMalformed, f.Index, in.ring.slots)
	}
	d.mu.Lock()
	c := d.flying[slot]
	d.flying[slot] = chunk{}
	d.mu.Unlock()
	if c.op == nil {
		return fmt.Errorf("%w: answer for slot %d, which is not lent", wire.ErrMalformed, f.Index)
	}
	if f.Status == wire.StatusOK && f.Get {
		d.back <- answer{slot, c} // room for every slot
		return nil
	}
	d.free <- slot
	var err error
	if f.Status != wire.StatusOK {
		err = in.fault(*f)
	}
	in.chunkDone(c.op, err)
	return nil
}

// drainLoop copies what gets brought to the local buffers.
func (in *Initiator) drainLoop() {
	d := &in.gets
	for {
		select {
		case a := <-d.back:
			err := a.c.op.Local.Write(in.ring.slot(true, a.slot)[:a.c.n], a.c.off)
			if err != nil {
				err = fmt.Errorf("local buffer: %w", err)
			}
			d.free <- a.slot
			in.chunkDone(a.c.op, err)
		case <-in.dead:
			return
		}
	}
}

func (in *Initiator) chunkDone(op *Op, err error) {
	if err != nil {
		op.fail(err)
	}
	op.mu.Lock()
	op.pending--
	over, err := op.pending == 0, op.err
	op.mu.Unlock()
	if over {
		in.finish(op, err)
	}
}

// finish calls Done, whoever comes first.
func (in *Initiator) finish(op *Op, err error) {
	in.mu.Lock()
	_, mine := in.live[op]
	delete(in.live, op)
	in.mu.Unlock()
	if mine {
		op.Done(err)
	}
}

// Fail ends the lane: no chunk is sent or copied any more, except one that is
// being copied right now. Only the first error counts.
func (in *Initiator) Fail(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil {
		in.err = err
		close(in.dead)
	}
}

// Finish, after Fail, waits until this side has stopped copying, completes
// every operation that is left with Fail's error, and unmaps the ring.
func (in *Initiator) Finish() error {
	in.movers.Wait()
	in.mu.Lock()
	left, err := in.live, in.err
	in.live = map[*Op]struct{}{}
	in.mu.Unlock()
	for op := range left {
		op.Done(err)
	}
	return in.ring.Close()
}

func (op *Op) add() {
	op.mu.Lock()
	op.pending++
	op.mu.Unlock()
}

func (op *Op) fail(err error) {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.err == nil {
		op.err = err
	}
}

func (op *Op) failed() bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.err != nil
}
