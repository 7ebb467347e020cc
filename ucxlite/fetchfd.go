package ucxlite

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite/internal/wire"
)

// fetchLimit bounds how long a mapping waits for the exporter's descriptor.
const fetchLimit = 5 * time.Second

// fetchFD asks the exporter for the descriptor of key's registration, named by
// slot and generation: a number could have been reused meanwhile. The caller
// owns the descriptor.
func (p *peer) fetchFD(ctx context.Context, key *cudaipc.Key) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	select {
	case <-p.ready:
	case <-ctx.Done():
		return -1, fmt.Errorf("descriptor of %s: %w: %w", p, ErrNotConnected, ctx.Err())
	}
	answer := make(chan fdAnswer, 1)
	p.mu.Lock()
	if p.st == peerFailed {
		defer p.mu.Unlock()
		return -1, p.err
	}
	p.asked++
	id, conn := p.asked, p.conn
	p.asking[id] = answer
	p.mu.Unlock()

	if err := conn.Send(&wire.FetchFD{ID: id, Slot: key.Slot, Generation: key.Generation}); err != nil {
		p.fail(p.lost(err)) // answers, too
	}
	select {
	case a := <-answer:
		return a.fd, a.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	_, unanswered := p.asking[id]
	delete(p.asking, id)
	p.mu.Unlock()
	if !unanswered { // it crossed with the time-out
		a := <-answer
		return a.fd, a.err
	}
	return -1, fmt.Errorf("descriptor of %s: %w: %w", p, ErrUnreachable, ctx.Err())
}

// answered hands a descriptor to who asked for it.
func (p *peer) answered(f *wire.FD, fd int) {
	p.mu.Lock()
	answer := p.asking[f.ID]
	delete(p.asking, f.ID)
	p.mu.Unlock()
	switch {
	case answer == nil: // nobody waits any more
		closeFD(fd)
	case f.Status != wire.StatusOK:
		closeFD(fd)
		answer <- fdAnswer{-1, fmt.Errorf("descriptor of %s: %w: %s", p, statusError(f.Status), f.Reason)}
	case fd < 0:
		answer <- fdAnswer{-1, fmt.Errorf("descriptor of %s: %w: the answer brought none", p, ErrUnreachable)}
	default:
		answer <- fdAnswer{fd, nil}
	}
}

// statusError is the error that a peer's status means here.
func statusError(s wire.Status) error {
	switch s {
	case wire.StatusStale:
		return ErrStale
	case wire.StatusRange:
		return ErrOutOfRange
	case wire.StatusUnsupported:
		return ErrUnsupported
	case wire.StatusDriver:
		return ErrUnreachable
	}
	return ErrConnectionReset
}

// sendFD answers a peer's FetchFD with the descriptor of the registration it
// names. The registration owns it; the message carries a duplicate.
func (in *inbound) sendFD(f *wire.FetchFD) error {
	m, err := in.c.enterMemory(f.Slot, f.Generation)
	if err != nil {
		return in.conn.Send(&wire.FD{ID: f.ID, Status: wire.StatusStale, Reason: err.Error()})
	}
	defer m.leave()
	fd, ok := m.descriptor()
	if !ok {
		return in.conn.Send(&wire.FD{ID: f.ID, Status: wire.StatusUnsupported, Reason: "the memory has no descriptor"})
	}
	return in.conn.Send(&wire.FD{ID: f.ID}, fd)
}

// descriptor is the number here of the registration's descriptor: that is what
// its key's posix-fd handle says.
func (m *Memory) descriptor() (fd int, ok bool) {
	key := m.reg.Key()
	for _, h := range key.Handles {
		if h.Kind == cudaipc.KindPosixFD && len(h.Data) == 4 {
			return int(binary.LittleEndian.Uint32(h.Data)), true
		}
	}
	return -1, false
}
