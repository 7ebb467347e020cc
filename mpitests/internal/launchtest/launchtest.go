// Package launchtest lets tests build a program and start it under mpirun, as a
// user does.
package launchtest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Limit is how long a command may take before its test fails.
const Limit = 3 * time.Minute

var builds struct {
	mu     sync.Mutex
	folder string
	files  map[string]string
}

// Main runs the tests of a package and removes what they have built. TestMain
// calls it.
func Main(m *testing.M) {
	code := m.Run()
	if builds.folder != "" {
		_ = os.RemoveAll(builds.folder) // what is left would be of a temporary folder
	}
	os.Exit(code)
}

// Build compiles the program in folder, relative to the test's own, once in a
// test run and with the race detector where the test has it, and returns its
// file. It skips the test where there is no Go or no
// MPI with its headers.
func Build(t *testing.T, folder string) string {
	t.Helper()
	for _, tool := range []string{"go", "mpirun", "mpicc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("found no %s on the PATH, need one", tool)
		}
	}
	builds.mu.Lock()
	defer builds.mu.Unlock()
	if file := builds.files[folder]; file != "" {
		return file
	}
	if builds.folder == "" {
		var err error
		builds.folder, err = os.MkdirTemp("", "gpurma-programs-")
		require.NoError(t, err)
		// Other users may run what is in it.
		require.NoError(t, os.Chmod(builds.folder, 0o755))
		builds.files = map[string]string{}
	}
	file := filepath.Join(builds.folder, filepath.Base(folder))
	args := []string{"build", "-o", file}
	if raceDetector {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, folder)...).CombinedOutput()
	require.NoError(t, err, string(out))
	builds.files[folder] = file
	return file
}

// Result is what a command has printed, and its exit status.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Lines are those of the standard output.
func (r Result) Lines() []string { return strings.Split(strings.TrimSpace(r.Stdout), "\n") }

// Last is the last line of the standard output.
func (r Result) Last() string {
	lines := r.Lines()
	return lines[len(lines)-1]
}

// Execute runs a command with env added to the environment. What a killed job
// leaves of its shared memory goes with the test.
func Execute(t *testing.T, env []string, command ...string) Result {
	t.Helper()
	for _, component := range []string{"vader", "sm"} { // Open MPI 4 and 5
		env = append(env, "OMPI_MCA_btl_"+component+"_backing_directory="+t.TempDir())
	}
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	defer cancel()
	return Finish(t, exec.CommandContext(ctx, command[0], command[1:]...), env)
}

// Finish runs cmd with env added to the environment.
func Finish(t *testing.T, cmd *exec.Cmd, env []string) Result {
	t.Helper()
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return Result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// Command is the mpirun command that starts so many ranks of a program.
func Command(ranks int, program string, args ...string) []string {
	command := []string{"mpirun"}
	if os.Geteuid() == 0 {
		command = append(command, "--allow-run-as-root")
	}
	command = append(command, "-mca", "plm", "isolated", "--oversubscribe", "--bind-to", "none", "-np", strconv.Itoa(ranks), program)
	return append(command, args...)
}
