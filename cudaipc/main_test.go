package cudaipc

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const roleVariable = "CUDAIPC_TEST_ROLE"

// roles are what this binary does as another process of a test. A role answers
// on stdout, takes a line on stdin as a command, and ends with stdin.
var roles = map[string]func(in *bufio.Scanner, out io.Writer) error{}

func TestMain(m *testing.M) {
	if name := os.Getenv(roleVariable); name != "" {
		role := roles[name]
		if role == nil {
			fmt.Fprintf(os.Stderr, "no role %q\n", name)
			os.Exit(2)
		}
		if err := role(bufio.NewScanner(os.Stdin), os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "role %s: %v\n", name, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child is another process in a role.
type child struct {
	tb  testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(tb testing.TB, role string, env ...string) *child {
	tb.Helper()
	p := &child{tb: tb, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(append(os.Environ(), roleVariable+"="+role), env...)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := p.cmd.StdinPipe()
	require.NoError(tb, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(tb, err)
	p.in, p.out = in, bufio.NewReader(out)
	require.NoError(tb, p.cmd.Start())
	tb.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.finish()
		}
	})
	return p
}

// line is the child's next line.
func (p *child) line() string {
	p.tb.Helper()
	s, err := p.out.ReadString('\n')
	require.NoError(p.tb, err, "the child said nothing")
	return strings.TrimSuffix(s, "\n")
}

// say gives the child a command and returns its answer.
func (p *child) say(command string) string {
	p.tb.Helper()
	_, err := fmt.Fprintln(p.in, command)
	require.NoError(p.tb, err)
	return p.line()
}

func (p *child) key() *Key {
	p.tb.Helper()
	b, err := hex.DecodeString(p.line())
	require.NoError(p.tb, err)
	k, err := ParseKey(b)
	require.NoError(p.tb, err)
	return &k
}

func (p *child) finish() {
	_ = p.in.Close()
	require.NoError(p.tb, p.cmd.Wait())
}

// kill ends the child as no clean-up can foresee, and reaps it.
func (p *child) kill() {
	p.tb.Helper()
	require.NoError(p.tb, p.cmd.Process.Kill())
	require.Error(p.tb, p.cmd.Wait())
}
