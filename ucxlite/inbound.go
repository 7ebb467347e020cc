package ucxlite

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite/internal/control"
	"github.com/gpurma/gpurma/ucxlite/internal/staged"
	"github.com/gpurma/gpurma/ucxlite/internal/wire"
)

// helloLimit is how long a stranger may keep a connection without a hello.
const helloLimit = 5 * time.Second

// inbound is a control connection that a peer dialled: they import, we export.
type inbound struct {
	c    *Context
	conn *control.Conn
	id   cudaipc.Identity // after the hello

	target *staged.Target // the staged lane; nil until the peer uses it
}

// acceptLoop takes connections until the context closes.
func (c *Context) acceptLoop() {
	const again = 10 * time.Millisecond
	for {
		sock, err := c.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, say: others' connections go on
			c.log.Warn("accept a control connection", "err", err)
			select {
			case <-time.After(again):
			case <-c.life.Done():
				return
			}
			continue
		}
		in := &inbound{c: c, conn: control.NewConn(sock)}
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			_ = in.conn.Close()
			return
		}
		c.inbound[in] = struct{}{}
		c.tasks.Go(in.serve)
		c.mu.Unlock()
	}
}

// goodbye ends the connection in good order.
func (in *inbound) goodbye(reason string) {
	_ = in.conn.Send(&wire.Goodbye{Reason: reason}) // the close that follows says the same
	_ = in.conn.Close()
}

// serve answers a peer until the connection ends.
func (in *inbound) serve() {
	defer func() {
		_ = in.conn.Close()
		if in.target != nil {
			if err := in.target.Close(); err != nil {
				in.c.log.Warn("staged lane", "peer", in.id.String(), "err", err)
			}
		}
		in.c.mu.Lock()
		delete(in.c.inbound, in)
		in.c.mu.Unlock()
	}()
	if err := in.greet(); err != nil {
		in.c.log.Debug("control connection refused", "err", err)
		return
	}
	for {
		f, fd, err := in.conn.Recv()
		if err != nil {
			return
		}
		if err := in.handle(f, fd); err != nil {
			if !errors.Is(err, errGoodbye) {
				in.c.log.Warn("control connection dropped", "peer", in.id.String(), "err", err)
			}
			return
		}
	}
}

// greet reads the hello, decides, and answers.
func (in *inbound) greet() error {
	if err := in.conn.SetRecvDeadline(time.Now().Add(helloLimit)); err != nil {
		return err
	}
	f, fd, err := in.conn.Recv()
	if err != nil {
		return err
	}
	closeFD(fd)
	hello, ok := f.(*wire.Hello)
	if !ok {
		return fmt.Errorf("%w: %T instead of a hello", wire.ErrMalformed, f)
	}
	if err := in.conn.SetRecvDeadline(time.Time{}); err != nil {
		return err
	}
	if d := in.c.cfg.WireupDelay; d > 0 {
		select {
		case <-time.After(d):
		case <-in.c.life.Done():
			return ErrDestroyed
		}
	}
	ack := wire.HelloAck{Version: wire.Version, Identity: in.c.id}
	if hello.Version != wire.Version {
		ack.Status, ack.Reason = wire.StatusVersion, "protocol version"
	} else if err := in.admit(hello); err != nil {
		ack.Status, ack.Reason = wire.StatusRefused, err.Error()
	}
	in.id = hello.Identity
	if err := in.conn.Send(&ack); err != nil {
		return err
	}
	if ack.Status != wire.StatusOK {
		return fmt.Errorf("%s: refused: %s", hello.Identity, ack.Reason)
	}
	return nil
}

// admit lets in who is the same user, or holds the worker address: across user
// namespaces the uid that the socket shows is nobody's.
func (in *inbound) admit(hello *wire.Hello) error {
	mac := helloMAC(in.c.token, hello)
	if hmac.Equal(mac[:], hello.MAC[:]) {
		return nil
	}
	uid, err := in.conn.PeerUID()
	if err != nil {
		return err
	}
	if int(uid) != os.Getuid() {
		return fmt.Errorf("uid %d, without this worker's token", uid)
	}
	return nil
}

// errGoodbye ends serve without a warning.
var errGoodbye = errors.New("good-bye")

// handle takes what the peer said. fd is ours to close, or -1.
func (in *inbound) handle(f wire.Frame, fd int) error {
	switch f := f.(type) {
	case *wire.Goodbye:
		closeFD(fd)
		return errGoodbye
	case *wire.FetchFD:
		closeFD(fd)
		return in.sendFD(f)
	case *wire.Ring:
		return in.openTarget(f, fd)
	case *wire.Put, *wire.Get:
		closeFD(fd)
		if in.target != nil {
			return in.target.Handle(f)
		}
	}
	closeFD(fd)
	return fmt.Errorf("%w: unexpected %T", wire.ErrMalformed, f)
}
