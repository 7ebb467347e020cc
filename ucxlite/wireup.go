package ucxlite

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/gpurma/gpurma/ucxlite/internal/control"
	"github.com/gpurma/gpurma/ucxlite/internal/wire"
	"golang.org/x/sys/unix"
)

// wireUp dials and exchanges hellos. It takes as long as the peer lets it: the
// endpoints have their own time-outs, and leaving the peer ends it.
func (p *peer) wireUp() (*control.Conn, error) {
	if p.name.id.System != p.c.id.System {
		return nil, fmt.Errorf("%s: %w: it runs on another host", p, ErrUnreachable)
	}
	conn, err := p.dial()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.conn = conn
	failed := p.st == peerFailed
	p.mu.Unlock()
	if failed {
		_ = conn.Close() // fail came before it could see the connection
		return nil, p.failure()
	}
	hello := wire.Hello{Version: wire.Version, Identity: p.c.id}
	_, _ = rand.Read(hello.Challenge[:]) // never fails, says crypto/rand
	hello.MAC = helloMAC(p.token, &hello)
	if err := conn.Send(&hello); err != nil {
		return nil, p.lost(err)
	}
	f, fd, err := conn.Recv()
	if err != nil {
		return nil, p.lost(err)
	}
	closeFD(fd)
	if err := p.greeted(f); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.st == peerFailed {
		return nil, p.err
	}
	p.st = peerConnected
	close(p.ready)
	return conn, nil
}

// greeted judges the answer to our hello.
func (p *peer) greeted(f wire.Frame) error {
	ack, ok := f.(*wire.HelloAck)
	switch {
	case !ok:
		return fmt.Errorf("%s: %w: it answered the hello with %T", p, ErrConnectionReset, f)
	case ack.Version != wire.Version || ack.Status == wire.StatusVersion:
		return fmt.Errorf("%s: %w: it speaks protocol version %d, this is %d", p, ErrUnsupported, ack.Version, wire.Version)
	case ack.Status != wire.StatusOK:
		return fmt.Errorf("%s: %w: it refused the connection: %s", p, ErrUnreachable, ack.Reason)
	case ack.Identity != p.name.id:
		return fmt.Errorf("%s: %w: its socket now belongs to %s", p, ErrConnectionReset, ack.Identity)
	}
	return nil
}

// dial connects, and tries again while the peer's backlog is full.
func (p *peer) dial() (*control.Conn, error) {
	const again = 2 * time.Millisecond
	for {
		conn, err := control.Dial(p.name.socket)
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("%s: %w: dial: %w", p, ErrConnectionReset, err)
		}
		select {
		case <-time.After(again):
		case <-p.life.Done():
			return nil, fmt.Errorf("%s: %w: dial: %w", p, ErrCanceled, err)
		}
	}
}

// helloMAC proves the token without showing it.
func helloMAC(token [16]byte, h *wire.Hello) (sum [32]byte) {
	mac := hmac.New(sha256.New, token[:])
	mac.Write(h.Challenge[:])
	mac.Write(wire.AppendIdentity(nil, &h.Identity))
	mac.Sum(sum[:0])
	return sum
}
