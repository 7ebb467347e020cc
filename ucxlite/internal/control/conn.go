package control

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/gpurma/gpurma/ucxlite/internal/wire"
	"golang.org/x/sys/unix"
)

// sendLimit is how long a send may block on a peer that reads nothing. What is
// in flight is bounded by credit and fits the socket's buffer, so a peer that
// works never gets near it.
const sendLimit = 5 * time.Second

// maxFDs is the most descriptors accepted with one message.
const maxFDs = 1

// Conn is one control connection. Send may be called from any goroutine, Recv
// from one.
type Conn struct {
	sock *net.UnixConn
	mu   sync.Mutex // orders sends and guards out
	out  []byte
	in   []byte
	oob  []byte
}

// NewConn takes over sock.
func NewConn(sock *net.UnixConn) *Conn {
	return &Conn{sock: sock, in: make([]byte, wire.MaxFrame+1), oob: make([]byte, unix.CmsgSpace(maxFDs*4))}
}

// Dial connects to the socket at path. A full backlog is unix.EAGAIN.
func Dial(path string) (*Conn, error) {
	sock, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return NewConn(sock), nil
}

// Send sends f, and fds with it; the caller keeps its own descriptors.
func (c *Conn) Send(f wire.Frame, fds ...int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = wire.Append(c.out[:0], f)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if err := c.sock.SetWriteDeadline(time.Now().Add(sendLimit)); err != nil {
		return err
	}
	_, _, err := c.sock.WriteMsgUnix(c.out, oob, nil)
	return err
}

// Recv waits for the next frame. It returns the descriptor that came with it,
// which the caller must close, or -1. The end of the connection is io.EOF.
func (c *Conn) Recv() (f wire.Frame, fd int, err error) {
	n, oobn, flags, _, err := c.sock.ReadMsgUnix(c.in, c.oob)
	if err != nil {
		return nil, -1, err
	}
	fds, err := parseFDs(c.oob[:oobn])
	fd = -1
	if len(fds) > 0 {
		fd = fds[0]
	}
	if err == nil && (flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > maxFDs) {
		err = fmt.Errorf("%w: message or descriptors too long", wire.ErrMalformed)
	}
	if n == 0 && oobn == 0 {
		return nil, -1, io.EOF
	}
	if err == nil {
		f, err = wire.Parse(c.in[:n])
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, -1, err
	}
	return f, fd, nil
}

func parseFDs(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	}
	var all []int
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // not descriptors: nothing to keep, nothing to close
		}
		all = append(all, fds...)
	}
	return all, nil
}

// SetRecvDeadline bounds Recv; the zero time is no bound.
func (c *Conn) SetRecvDeadline(t time.Time) error { return c.sock.SetReadDeadline(t) }

// PeerUID is the peer's user id as this process's user namespace sees it.
func (c *Conn) PeerUID() (uint32, error) {
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// Close ends the connection and unblocks Recv.
func (c *Conn) Close() error { return c.sock.Close() }
