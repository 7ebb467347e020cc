package drivertest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
)

func TestMain(m *testing.M) {
	Main(m, func() (cuda.Driver, error) {
		cfg, err := softgpu.ConfigFromEnv()
		if err != nil {
			return nil, err
		}
		return softgpu.Open(cfg)
	})
}

func softgpuPeer(t *testing.T) *peer {
	t.Helper()
	drv := softgputest.New(t)
	return startPeer(t, []string{"SOFTGPU_NODE=" + drv.NodePath()})
}

func TestPeerAnswersWithTheDriversError(t *testing.T) {
	p := softgpuPeer(t)
	ptr := p.alloc(block)
	require.NoError(t, p.free(ptr))
	require.ErrorIs(t, p.free(ptr), cuda.ErrorInvalidValue)
	p.end()
	require.NoError(t, p.exit)
}

func TestPeerKilledIsReaped(t *testing.T) {
	p := softgpuPeer(t)
	p.kill()
	require.ErrorContains(t, p.exit, "killed")
	require.ErrorIs(t, syscall.Kill(p.cmd.Process.Pid, 0), syscall.ESRCH)
}

// TestPeerDiesWithItsParent: a test process that is killed leaves no peer. The
// killed process is this test binary, running this test in the role of parent.
func TestPeerDiesWithItsParent(t *testing.T) {
	const role = "GPURMA_DRIVERTEST_ORPHAN"
	if os.Getenv(role) != "" {
		p := startPeer(t, nil) // on the node of the test that waits outside
		fmt.Fprintf(os.Stdout, "peer %d\n", p.cmd.Process.Pid)
		select {}
	}
	drv := softgputest.New(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestPeerDiesWithItsParent$")
	cmd.Env = append(os.Environ(), role+"=1", "SOFTGPU_NODE="+drv.NodePath())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "peer ")))
	require.NoError(t, err)
	pidfd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err, "the peer lives")
	defer unix.Close(pidfd)

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(peerPatience.Milliseconds()))
	require.NoError(t, err)
	require.Equal(t, 1, n, "the peer's end")
}
