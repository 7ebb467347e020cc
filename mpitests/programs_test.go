// Package mpitests holds the test programs. Its tests start them as a user does,
// on the emulator.
package mpitests_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/mpitests/internal/launchtest"
)

func TestMain(m *testing.M) { launchtest.Main(m) }

func rkeydestroy(t *testing.T, ranks int, args ...string) launchtest.Result {
	t.Helper()
	file := launchtest.Build(t, "./rkeydestroy")
	return launchtest.Execute(t, nil, launchtest.Command(ranks, file, append([]string{"--driver", "softgpu"}, args...)...)...)
}

// TestS01RkeyDestroy: the main job. Every case passes, with a line of UCX's form
// that says 0 bytes, and the control shows the whole of both sizes.
func TestS01RkeyDestroy(t *testing.T) {
	got := rkeydestroy(t, 2, "--size", "64MiB")
	require.Equal(t, 0, got.Code, got)
	require.Regexp(t, `^\d+ passed, 0 failed, 0 skipped$`, got.Last())
	require.Contains(t, got.Stdout, "Unreleased memory: 0 bytes: PASS")
	require.NotRegexp(t, `Unreleased memory: [1-9]`, got.Stdout)
	for _, size := range []string{"67108864", "33554432"} {
		require.Equal(t, 2, len(regexp.MustCompile(`without destroy, .*\(`+size+` missing\)`).FindAllString(got.Stdout, -1)), "control, both directions")
	}
	node := regexp.MustCompile(`node (/\S+),`).FindStringSubmatch(got.Stdout)
	require.Len(t, node, 2)
	require.NoDirExists(t, node[1])
}

// TestLeakIsSeen: with the policy that leaves mappings open the run fails and
// says exactly how much is missing. So the check can fail.
func TestLeakIsSeen(t *testing.T) {
	for _, size := range []uint64{64 << 20, 24 << 20} {
		got := rkeydestroy(t, 2, "--policy", "leak", "--size", fmt.Sprint(size), "--run", "^alloc/(control|none|ptr|put|list)/")
		require.Equal(t, 1, got.Code, got)
		// A key that never mapped has nothing to leak, and the control is given
		// back by a policy of its own.
		require.Equal(t, "2 passed, 3 failed, 0 skipped", got.Last())
		for _, name := range []string{"ptr", "put", "list"} {
			require.Regexp(t, fmt.Sprintf(`FAIL +alloc/%s/leak .*unreleased %d bytes`, name, size), got.Stdout)
		}
		for _, n := range []uint64{size, size / 2} {
			require.Contains(t, got.Stdout, fmt.Sprintf("Unreleased memory: %d bytes: FAIL", n))
		}
	}
}

// More pairs measure one after another.
func TestTwoPairs(t *testing.T) {
	got := rkeydestroy(t, 4, "--size", "16MiB", "--run", "^alloc/(control|ptr|peer-killed)/")
	require.Equal(t, 0, got.Code, got)
	require.Equal(t, "3 passed, 0 failed, 0 skipped", got.Last())
}

// TestP14TwoJobs: two jobs at once have emulated GPUs each of its own, and both
// find that every byte came back.
func TestP14TwoJobs(t *testing.T) {
	launchtest.Build(t, "./rkeydestroy")
	var nodes [2]string
	t.Run("at once", func(t *testing.T) {
		for n := range nodes {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				got := rkeydestroy(t, 2, "--size", "16MiB", "--run", "^alloc/(control|ptr)/")
				require.Equal(t, 0, got.Code, got)
				require.Equal(t, "2 passed, 0 failed, 0 skipped", got.Last())
				node := regexp.MustCompile(`node (/\S+),`).FindStringSubmatch(got.Stdout)
				require.Len(t, node, 2)
				nodes[n] = node[1]
			})
		}
	})
	require.NotEqual(t, nodes[0], nodes[1])
}

func TestSizeIsChecked(t *testing.T) {
	for size, want := range map[string]string{"0": "--size 0: want a multiple", "4MiB": "want a multiple", "12MiB": "want a multiple", "much": "--size"} {
		got := rkeydestroy(t, 2, "--size", size)
		require.Equal(t, 2, got.Code, got)
		require.Equal(t, 1, strings.Count(got.Stderr, "rkeydestroy: "), got.Stderr)
		require.Contains(t, got.Stderr, want)
	}
}

// TestRMA runs a part of the matrix that has every allocator, both operations
// and all situations.
func TestRMA(t *testing.T) {
	file := launchtest.Build(t, "./rmacuda")
	got := launchtest.Execute(t, nil, launchtest.Command(2, file, "--driver", "softgpu", "--sizes", "8,70000", "--run", "/0to1/")...)
	require.Equal(t, 0, got.Code, got)
	require.Equal(t, "384 passed, 0 failed, 0 skipped", got.Last())
	require.Contains(t, got.Stdout, "TEST[5:cuMemAllocManaged:VMM_PosixFD:70000]: PASS")
}

// TestNormalUser: both programs, typed just so, by a user who is not root.
func TestNormalUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("found a normal user, who runs every other test; need root to become one")
	}
	const nobody = 65534
	for _, name := range []string{"rkeydestroy", "rmacuda"} {
		file := launchtest.Build(t, "./"+name)
		cmd := exec.CommandContext(t.Context(), "mpirun", "-mca", "plm", "isolated", "-np", "2", file,
			"--run", "^(alloc/ptr/free|put/0to1/0/cuMemAlloc/cuMemAlloc/8)$")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		got := launchtest.Finish(t, cmd, []string{"HOME=/", "OMPI_ALLOW_RUN_AS_ROOT=", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="})
		require.Equal(t, 0, got.Code, got)
		require.Equal(t, "1 passed, 0 failed, 0 skipped", got.Last())
	}
}
