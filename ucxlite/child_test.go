package ucxlite

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// child is a re-exec of this test binary in a role. They shake hands by lines
// on its stdin and stdout.
type child struct {
	tb  testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(tb testing.TB, role string, env ...string) *child {
	tb.Helper()
	self, err := os.Executable()
	require.NoError(tb, err)
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), childRole+"="+role), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	require.NoError(tb, err)
	out, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start())
	c := &child{tb, cmd, in, bufio.NewReader(out)}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return c
}

// hear reads the child's next line.
func (c *child) hear() string {
	c.tb.Helper()
	line, err := c.out.ReadString('\n')
	require.NoError(c.tb, err)
	return strings.TrimSpace(line)
}

// say sends the child a line.
func (c *child) say(line string) {
	c.tb.Helper()
	_, err := io.WriteString(c.in, line+"\n")
	require.NoError(c.tb, err)
}

// kill ends the child by SIGKILL and waits until it is reaped.
func (c *child) kill() {
	c.tb.Helper()
	require.NoError(c.tb, c.cmd.Process.Kill())
	_ = c.cmd.Wait()
}

// wait lets the child end by itself.
func (c *child) wait() {
	c.tb.Helper()
	require.NoError(c.tb, c.in.Close())
	require.NoError(c.tb, c.cmd.Wait())
}
