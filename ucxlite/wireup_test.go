package ucxlite

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite/internal/control"
	"github.com/gpurma/gpurma/ucxlite/internal/wire"
	"github.com/stretchr/testify/require"
)

// noDevices is a driver of no devices: all that the control plane needs.
type noDevices struct{ cuda.Driver }

func (noDevices) DeviceGetCount() (int, error) { return 0, nil }
func (noDevices) Name() string                 { return "none" }

// testTimeout ends a test that would hang.
const testTimeout = 20 * time.Second

// pollInterval is for what a test can only look at: memory of a process that died.
const pollInterval = time.Millisecond

func testContext(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	tb.Cleanup(cancel)
	return ctx
}

// otherIdentity is this process under another name: two contexts with different
// ones behave as two processes.
func otherIdentity(tb testing.TB) *cudaipc.Identity {
	id, err := cudaipc.Self()
	require.NoError(tb, err)
	_, err = rand.Read(id.Nonce[:])
	require.NoError(tb, err)
	return &id
}

func mustContext(tb testing.TB, drv cuda.Driver, change ...func(*Config)) *Context {
	tb.Helper()
	cfg := DefaultConfig()
	for _, f := range change {
		f(&cfg)
	}
	c, err := NewContext(drv, ContextOptions{Config: &cfg, Identity: otherIdentity(tb)})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, c.cache.CheckInvariants())
		require.NoError(tb, c.Close())
		require.NoError(tb, c.Close())
	})
	return c
}

func mustWorker(tb testing.TB, c *Context) *Worker {
	tb.Helper()
	w, err := c.NewWorker(WorkerOptions{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, w.Close()) })
	return w
}

func mustEndpoint(tb testing.TB, w *Worker, a WorkerAddress, opts EndpointOptions) *Endpoint {
	tb.Helper()
	e, err := w.NewEndpoint(a, opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, e.Close()) })
	return e
}

func TestWireup(t *testing.T) {
	a, b := mustContext(t, noDevices{}), mustContext(t, noDevices{})
	wa, wb := mustWorker(t, a), mustWorker(t, b)
	// Both sides at once: the two directions are two connections.
	ab := mustEndpoint(t, wa, wb.Address(), EndpointOptions{})
	ba := mustEndpoint(t, wb, wa.Address(), EndpointOptions{})
	self := mustEndpoint(t, wa, wa.Address(), EndpointOptions{})
	for _, e := range []*Endpoint{ab, ba, self} {
		require.NoError(t, e.WaitConnected(testContext(t)))
		require.Equal(t, EndpointConnected, e.State())
	}
	require.Equal(t, b.Identity(), ab.Peer())
	require.ErrorIs(t, a.Close(), ErrBusy)
	require.ErrorIs(t, wa.Close(), ErrBusy)
}

func TestHundredEndpointsShareAConnection(t *testing.T) {
	a, b := mustContext(t, noDevices{}), mustContext(t, noDevices{})
	w1, w2, target := mustWorker(t, a), mustWorker(t, a), mustWorker(t, b)
	var all []*Endpoint
	for i := range 100 {
		w := w1
		if i%2 == 1 {
			w = w2
		}
		all = append(all, mustEndpoint(t, w, target.Address(), EndpointOptions{}))
	}
	for _, e := range all {
		require.NoError(t, e.WaitConnected(testContext(t)))
	}
	b.mu.Lock()
	require.Len(t, b.inbound, 1)
	b.mu.Unlock()
	for _, e := range all[1:] {
		require.NoError(t, e.Close())
	}
	require.Equal(t, EndpointConnected, all[0].State())

	// The last one closes it; the next dials anew.
	require.NoError(t, all[0].Close())
	require.Equal(t, EndpointClosed, all[0].State())
	require.ErrorIs(t, all[0].Err(), ErrEndpointClosed)
	again := mustEndpoint(t, w1, target.Address(), EndpointOptions{})
	require.NoError(t, again.WaitConnected(testContext(t)))
}

func TestWireupDelay(t *testing.T) {
	a := mustContext(t, noDevices{})
	b := mustContext(t, noDevices{}, func(c *Config) { c.WireupDelay = 30 * time.Millisecond })
	wa, wb := mustWorker(t, a), mustWorker(t, b)
	e := mustEndpoint(t, wa, wb.Address(), EndpointOptions{})
	require.Equal(t, EndpointConnecting, e.State())
	require.NoError(t, e.Err())
	require.NoError(t, e.WaitConnected(testContext(t)))
}

// fakePeer is a socket behind which serve speaks, and the address of it.
func fakePeer(tb testing.TB, serve func(*control.Conn)) WorkerAddress {
	tb.Helper()
	path := filepath.Join(mustShortDir(tb), "fake.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(tb, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			sock, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conn := control.NewConn(sock)
			serve(conn)
			tb.Cleanup(func() { conn.Close() })
		}
	}()
	tb.Cleanup(func() { l.Close(); <-done })
	info := AddressInfo{Identity: *otherIdentity(tb), Socket: path}
	return info.pack()
}

// mustShortDir is a directory whose name fits a Unix socket; tb.TempDir's may
// not.
func mustShortDir(tb testing.TB) string {
	dir, err := os.MkdirTemp("/tmp", "u")
	require.NoError(tb, err)
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Each wrong peer is a typed error of its own endpoint and harms no other.
func TestWireupFailures(t *testing.T) {
	a, b := mustContext(t, noDevices{}), mustContext(t, noDevices{})
	wa, wb := mustWorker(t, a), mustWorker(t, b)
	good := mustEndpoint(t, wa, wb.Address(), EndpointOptions{})

	answer := func(f wire.Frame) func(*control.Conn) {
		return func(c *control.Conn) {
			_, _, _ = c.Recv()
			_ = c.Send(f)
		}
	}
	gone := AddressInfo{Identity: *otherIdentity(t), Socket: filepath.Join(mustShortDir(t), "gone.sock")}
	replaced, err := ParseWorkerAddress(wb.Address())
	require.NoError(t, err)
	replaced.Identity = *otherIdentity(t)
	elsewhere := replaced
	elsewhere.Identity.System[0] ^= 1

	for _, c := range []struct {
		name string
		addr WorkerAddress
		want error
	}{
		{"gone", gone.pack(), ErrConnectionReset},
		{"another process at its socket", replaced.pack(), ErrConnectionReset},
		{"another host", elsewhere.pack(), ErrUnreachable},
		{"silent", fakePeer(t, func(*control.Conn) {}), ErrEndpointTimeout},
		{"hangs up", fakePeer(t, func(c *control.Conn) { c.Close() }), ErrConnectionReset},
		{"another version", fakePeer(t, answer(&wire.HelloAck{Version: wire.Version + 1})), ErrUnsupported},
		{"refuses", fakePeer(t, answer(&wire.HelloAck{Version: wire.Version, Status: wire.StatusRefused, Reason: "not you"})), ErrUnreachable},
		{"answers nonsense", fakePeer(t, answer(&wire.Goodbye{})), ErrConnectionReset},
		{"sends garbage", fakePeer(t, func(c *control.Conn) { _, _, _ = c.Recv(); _ = c.Send(garbage{&wire.Goodbye{}}) }), ErrConnectionReset},
	} {
		t.Run(c.name, func(t *testing.T) {
			timeout := testTimeout
			if c.want == ErrEndpointTimeout {
				timeout = 20 * time.Millisecond
			}
			e := mustEndpoint(t, wa, c.addr, EndpointOptions{Timeout: timeout})
			require.ErrorIs(t, e.WaitConnected(testContext(t)), c.want)
			require.Equal(t, EndpointFailed, e.State())
			require.ErrorIs(t, e.Err(), c.want)
		})
	}
	require.NoError(t, good.WaitConnected(testContext(t)))
	require.Equal(t, EndpointConnected, good.State())
}

// garbage is no frame.
type garbage struct{ *wire.Goodbye }

func (garbage) Type() wire.Type { return 99 }

// A stranger who sends garbage, or nothing, harms no one.
func TestGarbageToTheSocket(t *testing.T) {
	a, b := mustContext(t, noDevices{}), mustContext(t, noDevices{})
	wa, wb := mustWorker(t, a), mustWorker(t, b)
	e := mustEndpoint(t, wa, wb.Address(), EndpointOptions{})
	require.NoError(t, e.WaitConnected(testContext(t)))

	silent, err := control.Dial(b.listener.Path)
	require.NoError(t, err)
	defer silent.Close()
	for _, f := range []wire.Frame{garbage{&wire.Goodbye{}}, &wire.FetchFD{}, &wire.Ring{Slots: 1 << 31}} {
		c, err := control.Dial(b.listener.Path)
		require.NoError(t, err)
		require.NoError(t, c.Send(f))
		_, _, err = c.Recv()
		require.ErrorIs(t, err, io.EOF, "%T instead of a hello", f)
		require.NoError(t, c.Close())
	}
	// Let in, then nonsense.
	c, err := control.Dial(b.listener.Path)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Send(&wire.Hello{Version: wire.Version, Identity: *otherIdentity(t)}))
	f, _, err := c.Recv()
	require.NoError(t, err)
	require.Equal(t, wire.StatusOK, f.(*wire.HelloAck).Status)
	require.NoError(t, c.Send(&wire.Put{}))
	_, _, err = c.Recv()
	require.ErrorIs(t, err, io.EOF)

	again := mustEndpoint(t, wa, wb.Address(), EndpointOptions{})
	require.NoError(t, again.WaitConnected(testContext(t)))
	require.Equal(t, EndpointConnected, e.State())
}

func TestContextCloseSaysGoodbye(t *testing.T) {
	a := mustContext(t, noDevices{})
	wa := mustWorker(t, a)
	b, err := NewContext(noDevices{}, ContextOptions{Identity: otherIdentity(t)})
	require.NoError(t, err)
	wb, err := b.NewWorker(WorkerOptions{})
	require.NoError(t, err)
	e := mustEndpoint(t, wa, wb.Address(), EndpointOptions{})
	require.NoError(t, e.WaitConnected(testContext(t)))
	require.NoError(t, wb.Close())
	require.NoError(t, b.Close())
	<-e.peer.life.Done()
	require.ErrorIs(t, e.Err(), ErrConnectionReset)
	require.ErrorContains(t, e.Err(), "good-bye")
	_, err = b.NewWorker(WorkerOptions{})
	require.ErrorIs(t, err, ErrDestroyed)
}

func init() {
	roles["idle peer"] = func() error {
		c, err := NewContext(noDevices{}, ContextOptions{})
		if err != nil {
			return err
		}
		w, err := c.NewWorker(WorkerOptions{})
		if err != nil {
			return err
		}
		fmt.Println(hex.EncodeToString(w.Address()))
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		if err := w.Close(); err != nil {
			return err
		}
		return c.Close()
	}
}

func mustAddress(tb testing.TB, line string) WorkerAddress {
	tb.Helper()
	b, err := hex.DecodeString(line)
	require.NoError(tb, err)
	return b
}

// A peer process that is killed is noticed without traffic, its files are swept
// by the next context, and a new peer can be connected to.
func TestPeerKilled(t *testing.T) {
	w := mustWorker(t, mustContext(t, noDevices{}))
	victim := startChild(t, "idle peer")
	address := mustAddress(t, victim.hear())
	e := mustEndpoint(t, w, address, EndpointOptions{})
	require.NoError(t, e.WaitConnected(testContext(t)))
	victim.kill()
	<-e.peer.life.Done()
	require.ErrorIs(t, e.Err(), ErrConnectionReset)
	require.Equal(t, EndpointFailed, e.State())

	late := mustEndpoint(t, w, address, EndpointOptions{})
	require.ErrorIs(t, late.WaitConnected(testContext(t)), ErrConnectionReset)

	next := startChild(t, "idle peer")
	e = mustEndpoint(t, w, mustAddress(t, next.hear()), EndpointOptions{})
	require.NoError(t, e.WaitConnected(testContext(t)))
	info, err := ParseWorkerAddress(address)
	require.NoError(t, err)
	require.NoFileExists(t, info.Socket)
	next.wait()
}
