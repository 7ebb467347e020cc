package ucxlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite/internal/control"
	"github.com/gpurma/gpurma/ucxlite/internal/staged"
	"github.com/gpurma/gpurma/ucxlite/internal/wire"
	"golang.org/x/sys/unix"
)

// peerName is who a control connection goes to: a context of a process.
type peerName struct {
	id     cudaipc.Identity
	socket string
}

type peerState uint8

const (
	peerConnecting peerState = iota
	peerConnected
	peerFailed
)

// peer is the one control connection from this context to another, which we
// dialled: we import, they export. The endpoints to that context share it. A
// peer that has failed is forgotten; the next endpoint dials anew.
type peer struct {
	c     *Context
	name  peerName
	token [16]byte
	ready chan struct{}   // closed when the wire-up has ended, either way
	life  context.Context // ends when the peer has failed or was left
	end   context.CancelFunc

	mu     sync.Mutex
	refs   int // endpoints
	st     peerState
	err    error
	conn   *control.Conn // nil until dialled
	asked  uint64
	asking map[uint64]chan fdAnswer
	stage  *staged.Initiator // the staged lane; nil until first used
}

type fdAnswer struct {
	fd  int
	err error
}

// joinPeer returns the connection that info names, with one more reference,
// and starts it where there is none.
func (c *Context) joinPeer(info AddressInfo) (*peer, error) {
	name := peerName{info.Identity, info.Socket}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.alive(); err != nil {
		return nil, err
	}
	if p := c.peers[name]; p != nil && p.join() {
		return p, nil
	}
	p := &peer{c: c, name: name, token: info.Token, ready: make(chan struct{}), refs: 1, asking: map[uint64]chan fdAnswer{}}
	p.life, p.end = context.WithCancel(c.life)
	c.peers[name] = p
	c.tasks.Go(p.run)
	return p, nil
}

func (p *peer) join() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.st == peerFailed || p.refs == 0 {
		return false
	}
	p.refs++
	return true
}

// leave drops an endpoint's reference; the last one closes the connection.
func (p *peer) leave() {
	p.mu.Lock()
	p.refs--
	last := p.refs == 0
	p.mu.Unlock()
	if last {
		p.goodbye("no endpoint left")
	}
}

func (p *peer) String() string { return p.name.id.String() }

func (p *peer) state() peerState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.st
}

func (p *peer) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// goodbye ends the connection in good order.
func (p *peer) goodbye(reason string) {
	p.mu.Lock()
	conn, connected := p.conn, p.st == peerConnected
	p.mu.Unlock()
	if connected {
		_ = conn.Send(&wire.Goodbye{Reason: reason}) // the close that follows says the same
	}
	p.fail(fmt.Errorf("%s: %w: %s", p, ErrEndpointClosed, reason))
}

// fail ends the connection with err; the first error stays.
func (p *peer) fail(err error) {
	p.mu.Lock()
	if p.st == peerFailed {
		p.mu.Unlock()
		return
	}
	connecting := p.st == peerConnecting
	p.st, p.err = peerFailed, err
	conn, asking, stage := p.conn, p.asking, p.stage
	p.asking = nil
	p.mu.Unlock()

	p.end()
	if connecting {
		close(p.ready)
	}
	if conn != nil {
		_ = conn.Close() // nothing is buffered that a failed close could lose
	}
	for _, answer := range asking {
		answer <- fdAnswer{-1, err}
	}
	if stage != nil {
		stage.Fail(err) // run waits for its copies and completes the rest
	}
	p.c.mu.Lock()
	if p.c.peers[p.name] == p {
		delete(p.c.peers, p.name)
	}
	p.c.mu.Unlock()
}

// run wires up, then reads what the peer says until the connection ends.
func (p *peer) run() {
	conn, err := p.wireUp()
	if err != nil {
		p.fail(err)
		p.forgetMappings()
		return
	}
	for {
		f, fd, err := conn.Recv()
		if err == nil {
			err = p.handle(f, fd)
		}
		if err != nil {
			p.fail(p.lost(err))
			break
		}
	}
	p.endStage()
	p.forgetMappings()
}

// forgetMappings closes what this context keeps mapped of a peer that is gone
// but does not use: nobody else would, and the memory counts until then. A first
// use does not wait for the wire-up, so this is due where that fails as well.
func (p *peer) forgetMappings() {
	if p.name.id == p.c.id || !errors.Is(p.failure(), ErrConnectionReset) {
		return
	}
	if _, _, err := p.c.cache.EvictPeer(p.name.id); err != nil {
		p.c.log.Warn("closing mappings of a lost peer", "peer", p.String(), "err", err)
	}
}

// lost says in our terms why a connection that stood has ended.
func (p *peer) lost(err error) error {
	switch {
	case errors.Is(err, wire.ErrMalformed):
		return fmt.Errorf("%s: %w: it sent garbage: %w", p, ErrConnectionReset, err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s: %w", p, ErrConnectionReset)
	}
	return fmt.Errorf("%s: %w: %w", p, ErrConnectionReset, err)
}

// handle takes what the peer said. fd is ours to close, or -1.
func (p *peer) handle(f wire.Frame, fd int) error {
	switch f := f.(type) {
	case *wire.FD:
		p.answered(f, fd)
		return nil
	case *wire.Goodbye:
		closeFD(fd)
		return fmt.Errorf("it said good-bye: %s", f.Reason)
	case *wire.RingAck, *wire.Transferred:
		closeFD(fd)
		return p.handleStaged(f)
	}
	closeFD(fd)
	return fmt.Errorf("%w: unexpected %T", wire.ErrMalformed, f)
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}
