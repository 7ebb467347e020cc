package softgpu_test

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
)

// childVariable marks a process that plays a child: it joins the node, exports
// one allocation, and works at random until it is killed.
const (
	childVariable = "GPURMA_SOFTGPU_TEST_CHILD"
	childSize     = 32 << 20
	childValue    = 0xc5
)

func childMain() {
	if os.Getenv(childVariable) == "" {
		return
	}
	if err := child(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child prints the handle of its allocation, reads one to open, and then prints
// a dot after each random call.
func child(in io.Reader, out io.Writer) error {
	d, err := openFromEnv()
	if err != nil {
		return err
	}
	ctx, err := d.DevicePrimaryCtxRetain(0)
	if err != nil {
		return err
	}
	ptr, err := d.MemAlloc(ctx, childSize)
	if err != nil {
		return err
	}
	if err := d.MemsetD8(ctx, ptr, childValue, childSize); err != nil {
		return err
	}
	if err := d.CtxSynchronize(ctx); err != nil {
		return err
	}
	h, err := d.IpcGetMemHandle(ctx, ptr)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, hex.EncodeToString(h[:]))
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return err
	}
	var theirs cuda.IpcMemHandle
	if _, err := hex.Decode(theirs[:], []byte(line[:2*len(theirs)])); err != nil {
		return err
	}
	w := &worker{d: d, ctx: ctx, theirs: theirs}
	for {
		if err := w.step(); err != nil {
			return err
		}
		if _, err := out.Write([]byte{'.'}); err != nil {
			return err
		}
	}
}

// worker makes random calls that all succeed.
type worker struct {
	d      cuda.Driver
	ctx    cuda.Context
	theirs cuda.IpcMemHandle
	mine   []cuda.DevicePtr
	opened []cuda.DevicePtr
	mems   []cuda.MemHandle
	fds    []int
}

func (w *worker) step() (err error) {
	switch n := rand.N(8); {
	case n < 2 && len(w.mine) < 20:
		var p cuda.DevicePtr
		if p, err = w.d.MemAlloc(w.ctx, rand.N(uint64(8<<20))+1); err == nil {
			w.mine = append(w.mine, p)
			err = w.d.MemsetD8(w.ctx, p, 1, 1)
		}
	case n < 4 && len(w.mine) > 0:
		err = w.d.MemFree(w.ctx, last(&w.mine))
	case n == 4 && len(w.opened) < 5:
		var p cuda.DevicePtr
		if p, err = w.d.IpcOpenMemHandle(w.ctx, w.theirs, cuda.IpcMemLazyEnablePeerAccess); err == nil {
			w.opened = append(w.opened, p)
		} else if errors.Is(err, cuda.ErrorInvalidHandle) {
			err = nil // its owner has left, as a test may do
		}
	case n == 5 && len(w.opened) > 0:
		err = w.d.IpcCloseMemHandle(w.ctx, last(&w.opened))
	case n == 6 && len(w.fds) < 5:
		var m cuda.MemHandle
		var fd int
		if m, err = w.d.MemCreate(w.ctx, 4<<20, cuda.AllocationProp{HandleTypes: cuda.HandleTypePosixFD}); err == nil {
			if fd, err = w.d.MemExportPosixFD(w.ctx, m); err == nil {
				w.fds, w.mems = append(w.fds, fd), append(w.mems, m)
			}
		}
	case n == 7 && len(w.fds) > 0:
		if err = syscall.Close(last(&w.fds)); err == nil {
			err = w.d.MemRelease(w.ctx, last(&w.mems))
		}
	}
	return err
}

// last takes the last element off.
func last[T any](s *[]T) T {
	v := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return v
}

// childProcess is a running child.
type childProcess struct {
	cmd    *exec.Cmd
	out    *bufio.Reader
	handle cuda.IpcMemHandle
}

// startChild starts a child on the node and gives it a handle to open.
func startChild(t *testing.T, d *softgpu.Driver, theirs cuda.IpcMemHandle) *childProcess {
	t.Helper()
	runtime.LockOSThread() // the child dies with the thread that starts it
	t.Cleanup(runtime.UnlockOSThread)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Env = append(cmd.Env, softgpu.Config{Node: d.NodePath()}.Env()...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &childProcess{cmd: cmd, out: bufio.NewReader(out)}
	t.Cleanup(c.kill)
	line, err := c.out.ReadString('\n')
	require.NoError(t, err)
	_, err = hex.Decode(c.handle[:], []byte(line[:2*len(c.handle)]))
	require.NoError(t, err)
	_, err = fmt.Fprintln(in, hex.EncodeToString(theirs[:]))
	require.NoError(t, err)
	return c
}

// killAfter kills the child when it has made so many calls, in the middle of
// the next.
func (c *childProcess) killAfter(t *testing.T, calls int) {
	t.Helper()
	_, err := io.CopyN(io.Discard, c.out, int64(calls))
	require.NoError(t, err, "the child stopped by itself")
	c.kill()
}

func (c *childProcess) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}
