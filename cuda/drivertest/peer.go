package drivertest

import (
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// peerPatience bounds every wait for a peer; a healthy one needs milliseconds.
const peerPatience = 60 * time.Second

// peer is the second process, seen from the test. Methods return the error of
// the driver call that they made there; a broken conversation ends the test.
type peer struct {
	tb   testing.TB
	cmd  *exec.Cmd
	req  *os.File
	ans  *os.File
	out  *json.Encoder
	in   *json.Decoder
	dead chan struct{} // closed once the process is reaped; exit is then set
	exit error
}

// startPeer starts a peer and waits until it has its context and has used every
// kind of call. It is ended, and reaped, before the test's earlier clean-up.
func startPeer(tb testing.TB, env []string) *peer {
	tb.Helper()
	reqR, reqW, err := os.Pipe()
	require.NoError(tb, err)
	ansR, ansW, err := os.Pipe()
	require.NoError(tb, err)
	exe, err := os.Executable()
	require.NoError(tb, err)

	p := &peer{
		tb: tb, req: reqW, ans: ansR, dead: make(chan struct{}),
		out: json.NewEncoder(reqW), in: json.NewDecoder(ansR),
	}
	p.cmd = exec.Command(exe)
	p.cmd.Env = append(append(os.Environ(), env...), peerVariable+"=1",
		// A binary with the race detector sleeps a second at its exit.
		"GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	p.cmd.Stderr = os.Stderr
	p.cmd.ExtraFiles = []*os.File{requestFD - 3: reqR, answerFD - 3: ansW}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	started := make(chan error)
	go func() {
		// The death signal comes when the parent's *thread* ends: this one is
		// kept until the peer is reaped.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.exit = p.cmd.Wait()
		}
		close(p.dead)
	}()
	err = <-started
	// Without our copies of its ends, the pipes end with the peer.
	require.NoError(tb, reqR.Close())
	require.NoError(tb, ansW.Close())
	require.NoError(tb, err, "start peer")
	tb.Cleanup(p.end)

	_, err = p.do(request{Op: "hello"})
	require.NoError(tb, err, "peer's first calls")
	return p
}

// do makes one request and waits for its answer.
func (p *peer) do(r request) (answer, error) {
	p.tb.Helper()
	require.NoError(p.tb, p.ans.SetReadDeadline(time.Now().Add(peerPatience)))
	require.NoError(p.tb, p.out.Encode(r), "request %q to the peer", r.Op)
	var a answer
	require.NoError(p.tb, p.in.Decode(&a), "peer's answer to %q", r.Op)
	return a, a.Err.err()
}

// kill ends the peer with SIGKILL and returns once it is reaped.
func (p *peer) kill() {
	p.tb.Helper()
	require.NoError(p.tb, p.cmd.Process.Kill())
	p.reap()
}

func (p *peer) reap() {
	p.tb.Helper()
	timeout := time.NewTimer(peerPatience)
	defer timeout.Stop()
	select {
	case <-p.dead:
	case <-timeout.C:
		_ = p.cmd.Process.Kill() // already failing; the reaper goroutine goes on
		p.tb.Error("peer did not end")
	}
}

// end closes the request pipe, at which a living peer gives everything back and
// exits, and waits for that.
func (p *peer) end() {
	wasDead := false
	select {
	case <-p.dead:
		wasDead = true
	default:
	}
	p.req.Close()
	p.reap()
	p.ans.Close()
	if !wasDead && p.exit != nil {
		p.tb.Errorf("peer ended with %v", p.exit)
	}
}

func (p *peer) alloc(size uint64) cuda.DevicePtr {
	p.tb.Helper()
	a, err := p.do(request{Op: "alloc", Size: size})
	require.NoError(p.tb, err)
	return a.Ptr
}

func (p *peer) free(ptr cuda.DevicePtr) error {
	p.tb.Helper()
	_, err := p.do(request{Op: "free", Ptr: ptr})
	return err
}

func (p *peer) fill(ptr cuda.DevicePtr, size, seed uint64) {
	p.tb.Helper()
	_, err := p.do(request{Op: "fill", Ptr: ptr, Size: size, Seed: seed})
	require.NoError(p.tb, err)
}

func (p *peer) verify(ptr cuda.DevicePtr, size, seed uint64) error {
	p.tb.Helper()
	_, err := p.do(request{Op: "verify", Ptr: ptr, Size: size, Seed: seed})
	return err
}

func (p *peer) attribute(attr cuda.PointerAttribute, ptr cuda.DevicePtr) (uint64, error) {
	p.tb.Helper()
	a, err := p.do(request{Op: "attribute", Attr: attr, Ptr: ptr})
	return a.Value, err
}

func (p *peer) addressRange(ptr cuda.DevicePtr) (cuda.DevicePtr, uint64, error) {
	p.tb.Helper()
	a, err := p.do(request{Op: "range", Ptr: ptr})
	return a.Ptr, a.Size, err
}

func (p *peer) export(ptr cuda.DevicePtr) (cuda.IpcMemHandle, error) {
	p.tb.Helper()
	a, err := p.do(request{Op: "export", Ptr: ptr})
	if err != nil {
		return cuda.IpcMemHandle{}, err
	}
	return cuda.IpcMemHandle(a.Handle), nil
}

func (p *peer) open(h cuda.IpcMemHandle) (cuda.DevicePtr, error) {
	p.tb.Helper()
	a, err := p.do(request{Op: "open", Handle: h[:]})
	return a.Ptr, err
}

func (p *peer) close(ptr cuda.DevicePtr) error {
	p.tb.Helper()
	_, err := p.do(request{Op: "close", Ptr: ptr})
	return err
}

// startLoad makes the peer copy size bytes from ptr count times; it returns the
// peer's buffer for endLoad.
func (p *peer) startLoad(ptr cuda.DevicePtr, size uint64, count int) cuda.DevicePtr {
	p.tb.Helper()
	a, err := p.do(request{Op: "startLoad", Ptr: ptr, Size: size, Count: count})
	require.NoError(p.tb, err)
	return a.Ptr
}

func (p *peer) loadRunning() bool {
	p.tb.Helper()
	a, err := p.do(request{Op: "loadRunning"})
	require.NoError(p.tb, err)
	return a.Value == 1
}

func (p *peer) waitLoad() error {
	p.tb.Helper()
	_, err := p.do(request{Op: "waitLoad"})
	return err
}

func (p *peer) endLoad(buffer cuda.DevicePtr) error {
	p.tb.Helper()
	_, err := p.do(request{Op: "endLoad", Ptr: buffer})
	return err
}

// fetchFD copies the peer's descriptor fd into this process, as an importer
// that got its number by message does.
func (p *peer) fetchFD(fd int) int {
	p.tb.Helper()
	pidfd, err := unix.PidfdOpen(p.cmd.Process.Pid, 0)
	require.NoError(p.tb, err)
	defer unix.Close(pidfd)
	got, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err == unix.EPERM || err == unix.ENOSYS {
		p.tb.Skipf("found pidfd_getfd refused (%v), need leave to copy a child's descriptors", err)
	}
	require.NoError(p.tb, err, "pidfd_getfd")
	return got
}
