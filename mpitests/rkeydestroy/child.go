package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/drivers"
	"github.com/gpurma/gpurma/ucxlite"
)

// childVariable makes this program be a process that maps the owner's memory
// and waits to be killed. mpirun ends the job when a rank dies, so it is a child
// of a rank that does.
const childVariable = "GPURMA_RKEYDESTROY_CHILD"

// order is what the child is told, on its standard input.
type order struct {
	offer
	Driver string
	Device cuda.Device
}

// mapped is what the child says when it holds the mapping.
const mapped = "mapped"

// usePeerKilled lets a child of the importer map the memory and kills it by
// SIGKILL after the owner's free: the memory comes back with the child's end.
var usePeerKilled = use{name: "peer-killed", raw: true, settles: true, run: func(ctx context.Context, i *importer) (func() error, error) {
	child, err := startChild(ctx, order{i.offer, i.r.Driver.Name(), i.r.Device})
	if err != nil {
		return nil, err
	}
	return child.kill, nil
}}

type child struct {
	cmd *exec.Cmd
	in  io.Closer
}

func startChild(ctx context.Context, o order) (_ *child, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd, in}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.kill())
		}
	}()
	if err := json.NewEncoder(in).Encode(o); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != mapped+"\n" {
		return nil, fmt.Errorf("the child said %q: %w", line, err)
	}
	return c, nil
}

// kill ends the child by SIGKILL and reaps it.
func (c *child) kill() error {
	err := c.cmd.Process.Kill()
	_ = c.cmd.Wait() // it says that the child was killed
	_ = c.in.Close() // closed by Wait
	return err
}

// childMain is the child: it maps, says so, and waits for its end. It also ends
// with its standard input, so that it does not outlive its parent.
func childMain(stdin io.Reader, stdout, stderr io.Writer) int {
	if err := hold(stdin, stdout); err != nil {
		fmt.Fprintln(stderr, "child:", err)
		return 1
	}
	return 0
}

func hold(stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	drv, err := drivers.Open(o.Driver)
	if err != nil {
		return err
	}
	if _, err := drv.DevicePrimaryCtxRetain(o.Device); err != nil {
		return err
	}
	config := ucxlite.DefaultConfig() // as the ranks'
	lib, err := ucxlite.NewContext(drv, ucxlite.ContextOptions{Config: &config})
	if err != nil {
		return err
	}
	worker, err := lib.NewWorker(ucxlite.WorkerOptions{})
	if err != nil {
		return err
	}
	endpoint, err := worker.NewEndpoint(o.Address, ucxlite.EndpointOptions{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := endpoint.WaitConnected(ctx); err != nil {
		return err
	}
	key, err := endpoint.UnpackRkey(o.Key, ucxlite.UnpackOptions{Device: &o.Device})
	if err != nil {
		return err
	}
	if _, err := key.Ptr(key.Address()); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, mapped); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}
