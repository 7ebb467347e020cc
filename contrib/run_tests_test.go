// Package contrib holds what people and CI systems run. Its tests give the
// runner small projects, broken launchers and programs that crash.
package contrib_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limit is how long a run of the runner may take before its test fails.
const limit = 3 * time.Minute

// The program with a case for every end, and the one whose jobs run in pairs,
// are compiled once.
var builds = map[string]func() (string, error){
	"verdicts":    sync.OnceValues(func() (string, error) { return build("./mpitests/internal/harness/testdata/verdicts") }),
	"rkeydestroy": sync.OnceValues(func() (string, error) { return build("./mpitests/rkeydestroy") }),
}

var buildFolder string

func build(folder string) (string, error) {
	file := filepath.Join(buildFolder, filepath.Base(folder))
	cmd := exec.Command("go", "build", "-o", file, folder)
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return file, nil
}

func TestMain(m *testing.M) {
	var err error
	if buildFolder, err = os.MkdirTemp("", "gpurma-contrib-"); err == nil {
		err = os.Chmod(buildFolder, 0o755) // other users run what is in it
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(buildFolder) // what is left would be of a temporary folder
	os.Exit(code)
}

// project is a folder with the runner and one program, as a checkout has them.
type project struct {
	t    *testing.T
	root string
	path []string // what the PATH is, first to last
	env  []string
}

// mustProject makes one whose only program, by the name of rkeydestroy, is the
// one named. "" makes it without.
func mustProject(t *testing.T, program string) *project {
	t.Helper()
	root, err := os.MkdirTemp("", "gpurma-project-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	require.NoError(t, os.Chmod(root, 0o755))
	require.NoError(t, os.CopyFS(filepath.Join(root, "contrib"), os.DirFS(".")))
	for _, folder := range []string{"built/bin", "mpitests/rkeydestroy", "mpitests/testdata"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	for _, file := range []string{"mpitests/rkeydestroy/main.go", "mpitests/testdata/skipped-softgpu.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(root, file), nil, 0o644))
	}
	if program != "" {
		mustHave(t, "go")
		file, err := builds[program]()
		require.NoError(t, err)
		require.NoError(t, os.Symlink(file, filepath.Join(root, "built/bin/rkeydestroy")))
	}
	return &project{t: t, root: root, path: filepath.SplitList(os.Getenv("PATH"))}
}

func mustHave(t *testing.T, tools ...string) {
	t.Helper()
	if slices.Contains(tools, "go") {
		tools = append(tools, "mpicc") // to build with
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("found no %s on the PATH, need one", tool)
		}
	}
}

// tool puts a script of that name in front of the PATH.
func (p *project) tool(name, script string) {
	p.t.Helper()
	folder := filepath.Join(p.root, "tools", "bin")
	require.NoError(p.t, os.MkdirAll(folder, 0o755))
	require.NoError(p.t, os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	if p.path[0] != folder {
		p.path = append([]string{folder}, p.path...)
	}
}

// hide makes a PATH of links to all there was but the tools named.
func (p *project) hide(tools ...string) {
	p.t.Helper()
	folder := filepath.Join(p.root, "shown")
	require.NoError(p.t, os.Mkdir(folder, 0o755))
	for _, from := range p.path {
		entries, err := os.ReadDir(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		require.NoError(p.t, err)
		for _, e := range entries {
			err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(folder, e.Name()))
			if !errors.Is(err, fs.ErrExist) {
				require.NoError(p.t, err)
			}
		}
	}
	for _, tool := range tools {
		err := os.Remove(filepath.Join(folder, tool))
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(p.t, err)
		}
	}
	p.path = []string{folder}
}

// result is what the runner has printed, and its exit status.
type result struct {
	out  string
	code int
}

func (r result) lines() []string { return strings.Split(strings.TrimSpace(r.out), "\n") }

func (r result) last() string { l := r.lines(); return l[len(l)-1] }

// command is the runner with its arguments, in the project's environment.
func (p *project) command(ctx context.Context, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, filepath.Join(p.root, "contrib/run_tests.sh"), args...)
	cmd.Dir = "/"
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "OMPI_") && !strings.HasPrefix(v, "GPURMA_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "PATH="+strings.Join(p.path, ":"))
	cmd.Env = append(cmd.Env, p.env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

func finished(t *testing.T, cmd *exec.Cmd, err error, out *bytes.Buffer) result {
	t.Helper()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{out.String(), cmd.ProcessState.ExitCode()}
}

func (p *project) run(args ...string) result {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	defer cancel()
	cmd, out := p.command(ctx, args...)
	return finished(p.t, cmd, cmd.Run(), out)
}

// mpi runs the stage with the project's program.
func (p *project) mpi(args ...string) result {
	p.t.Helper()
	return p.run(append([]string{"--prebuilt", filepath.Join(p.root, "built"), "--driver", "softgpu", "mpi"}, args...)...)
}

// asOpenMPI is a launcher that says it is one and then does as it is told.
func asOpenMPI(then string) string {
	return `case "$1" in --version) echo "mpirun (Open MPI) 4.1.4"; exit;; esac` + "\n" + then
}

// TestP8LaunchFailed: a launcher that starts nothing, though it can tell its
// version, is that, with cause and remedy, and not a failed case.
func TestP8LaunchFailed(t *testing.T) {
	for name, c := range map[string]struct {
		script, cause, remedy string
	}{
		"no ssh": {
			asOpenMPI("echo 'The value of the MCA parameter plm_rsh_agent was set to a path that could not be found:' >&2; echo '  plm_rsh_agent: ssh : rsh' >&2; exit 243"),
			"ended with status 243, and 0 of 2 ranks started", "install openssh-client, or export OMPI_MCA_plm=isolated",
		},
		"one rank of two": {asOpenMPI("echo a rank is up"), "status 0, and 1 of 2 ranks started", "run by hand: mpirun"},
		"root": {
			asOpenMPI("echo 'mpirun has detected an attempt to run as root.' >&2; exit 1"),
			"status 1", "run as another user",
		},
		"slots": {asOpenMPI("echo 'There are not enough slots available' >&2; exit 1"), "status 1", "fewer ranks with --np"},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustProject(t, "")
			p.tool("mpirun", c.script)
			p.tool("ompi_info", "exit 1")
			got := p.mpi()
			require.Equal(t, 3, got.code, got.out)
			require.Contains(t, got.out, "LAUNCH FAILED, no program code ran: ")
			require.Contains(t, got.out, c.cause)
			require.Regexp(t, `remedy: .*`+regexp.QuoteMeta(c.remedy), got.out)
			require.Equal(t, "0 passed, 0 failed, 0 skipped", got.last())
			require.Equal(t, 2, strings.Count(got.out, "LAUNCH FAILED"), "once more at the end")
		})
	}
	t.Run("none", func(t *testing.T) {
		p := mustProject(t, "")
		p.hide("mpirun", "mpiexec")
		got := p.mpi()
		require.Equal(t, 3, got.code, got.out)
		require.Contains(t, got.out, "LAUNCH FAILED, no program code ran: found no mpirun on the PATH")
		require.Contains(t, got.out, "--setup installs Open MPI")
	})
}

// TestS05NoSSH: with neither ssh nor rsh on the PATH both ranks start, by the
// component that needs none where the launcher has it, else by saying that the
// agent is none; the log says which.
func TestS05NoSSH(t *testing.T) {
	mustHave(t, "mpirun", "ompi_info")
	for name, c := range map[string]struct{ info, note, command string }{
		"isolated": {"", "launcher component plm isolated", "-mca plm isolated "},
		"without":  {"echo 'MCA plm: rsh (MCA v2.1.0)'", "no launcher component plm isolated: remote agent set to none", "-mca plm_rsh_agent '' "},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustProject(t, "verdicts")
			p.hide("ssh", "rsh")
			if c.info != "" {
				// What the launcher is asked stands beside it.
				for _, tool := range []string{"mpirun", "ompi_info"} {
					require.NoError(t, os.Remove(filepath.Join(p.path[0], tool)))
				}
				real, err := exec.LookPath("mpirun")
				require.NoError(t, err)
				require.NoError(t, os.Symlink(real, filepath.Join(p.path[0], "mpirun")))
				require.NoError(t, os.WriteFile(filepath.Join(p.path[0], "ompi_info"), []byte("#!/bin/sh\n"+c.info+"\n"), 0o755))
			}
			got := p.mpi("--run", "^first$")
			require.Equal(t, 0, got.code, got.out)
			require.Regexp(t, `# launcher: .*Open MPI.*`+regexp.QuoteMeta(c.note), got.out)
			require.Contains(t, got.out, c.command)
			require.Equal(t, "1 passed, 0 failed, 0 skipped", got.last())
		})
	}
}

// TestS06Root: root's flag and variables for root and Open MPI only.
func TestS06Root(t *testing.T) {
	const nobody = 65534
	record := `echo "ARGS $* VARIABLES ${OMPI_ALLOW_RUN_AS_ROOT:-}${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-}"; exit 1`
	for name, c := range map[string]struct {
		uid    int
		script string
		want   bool
	}{
		"root":                        {0, asOpenMPI(record), true},
		"root, another brand":         {0, `case "$1" in --version) echo "HYDRA build details:"; exit;; esac` + "\n" + record, false},
		"normal user":                 {nobody, asOpenMPI(record), false},
		"normal user, another brand":  {nobody, `case "$1" in --version) echo "HYDRA build details:"; exit;; esac` + "\n" + record, false},
		"normal user, the real thing": {nobody, "", false},
		"root, the real thing":        {0, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 && c.uid != os.Geteuid() {
				t.Skipf("found uid %d, need root to be uid %d", os.Geteuid(), c.uid)
			}
			program := "verdicts"
			if c.script != "" {
				program = ""
			} else {
				mustHave(t, "mpirun")
			}
			p := mustProject(t, program)
			if c.script != "" {
				p.tool("mpirun", c.script)
				p.tool("ompi_info", "exit 1")
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			cmd, out := p.command(ctx, "--prebuilt", filepath.Join(p.root, "built"), "--driver", "softgpu", "--run", "^first$", "mpi")
			cmd.Env = append(cmd.Env, "HOME=/", "TMPDIR=/tmp")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(c.uid), Gid: uint32(c.uid)}}
			got := finished(t, cmd, cmd.Run(), out)
			if c.script == "" {
				require.Equal(t, 0, got.code, got.out)
				require.Equal(t, "1 passed, 0 failed, 0 skipped", got.last())
				require.Equal(t, c.want, strings.Contains(got.out, "--allow-run-as-root"))
				return
			}
			args := regexp.MustCompile(`ARGS (.*) VARIABLES (.*)`).FindStringSubmatch(got.out)
			require.NotNil(t, args, got.out)
			require.Equal(t, c.want, strings.Contains(args[1], "--allow-run-as-root"), args[0])
			require.Equal(t, c.want, args[2] == "11", args[0])
			if strings.Contains(c.script, "HYDRA") {
				require.True(t, strings.HasPrefix(args[1], "-np 2 "), args[0])
			}
		})
	}
}

// TestP11FailuresLast: every failed case stands once more before the last line,
// with the command that runs it alone.
func TestP11FailuresLast(t *testing.T) {
	mustHave(t, "mpirun")
	p := mustProject(t, "verdicts")
	got := p.mpi("--run", "^(first|fail-1|inconclusive|last)$")
	require.Equal(t, 1, got.code, got.out)
	require.Equal(t, "2 passed, 2 failed, 0 skipped", got.last())
	_, end, found := strings.Cut(got.out, "# stage mpi: ")
	require.True(t, found)
	require.Contains(t, end, "# failed:\n")
	require.Contains(t, end, "the control showed nothing")
	require.Contains(t, end, "9 bytes, want 8")
	note := regexp.MustCompile(`seed seen here: \d+`).FindString(end)
	require.NotEmpty(t, note, end)
	again := regexp.MustCompile(`(?m)^  again: (.*fail-1.*)$`).FindStringSubmatch(end)
	require.NotNil(t, again, end)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", again[1])
	cmd.Dir = p.root
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), note, "the same seed")
	require.Contains(t, string(out), "0 passed, 1 failed, 0 skipped")
}

// TestP12TwoMPIs: a launcher of one prefix and a library of another are refused,
// with both paths.
func TestP12TwoMPIs(t *testing.T) {
	mustHave(t, "mpirun", "ompi_info")
	p := mustProject(t, "verdicts")
	real, err := exec.LookPath("mpirun")
	require.NoError(t, err)
	p.tool("mpirun", `exec `+real+` "$@"`)
	p.tool("ompi_info", `exec `+filepath.Join(filepath.Dir(real), "ompi_info")+` "$@"`)
	got := p.mpi("--run", "^first$")
	require.Equal(t, 3, got.code, got.out)
	require.Contains(t, got.out, "two MPIs: the launcher is "+filepath.Join(p.root, "tools/bin/mpirun"))
	require.Regexp(t, `but \S+/built/bin/rkeydestroy loads /\S*libmpi\.so`, got.out)
	require.Equal(t, "0 passed, 0 failed, 0 skipped", got.last())
}

// TestP13CrashIsNotTheEnd: a rank that dies ends its job, not the suite. The
// runner names the case, shows the stacks there are, and goes on behind it.
func TestP13CrashIsNotTheEnd(t *testing.T) {
	mustHave(t, "mpirun")
	for name, stack := range map[string]string{
		"crash-killed": `rank 0 \(pid \d+\): SIGTERM: the job is being ended; goroutines:`,
		"crash-exit":   `rank 0 \(pid \d+\): SIGTERM: the job is being ended; goroutines:`,
		"crash-fault":  `panic: in a goroutine of its own`,
	} {
		t.Run(name, func(t *testing.T) {
			p := mustProject(t, "verdicts")
			got := p.mpi("--run", "^(first|skip|"+name+"|fail-0|last)$")
			require.Equal(t, 1, got.code, got.out)
			require.Equal(t, "2 passed, 2 failed, 1 skipped", got.last())
			require.Regexp(t, stack, got.out)
			_, end, _ := strings.Cut(got.out, "# stage mpi: ")
			require.Contains(t, end, "CRASH rkeydestroy: "+name+": the job ended with status ")
			require.Contains(t, end, "7 bytes, want 8", "a failure before the crash")
			require.Regexp(t, `again: mpirun .* --run '\^`+name+`\$' --seed \d+`, end)
		})
	}
}

// TestTimeLimit: a program that does not end in time shows the goroutines of
// all ranks, and ends.
func TestTimeLimit(t *testing.T) {
	mustHave(t, "mpirun")
	p := mustProject(t, "verdicts")
	p.env = append(p.env, "GPURMA_TIME_LIMIT=3")
	got := p.mpi("--run", "^(first|hang|last)$")
	require.Equal(t, 1, got.code, got.out)
	for _, rank := range []string{"0", "1"} {
		require.Regexp(t, `rank `+rank+` \(pid \d+\): SIGUSR1; goroutines:`, got.out)
	}
	require.Contains(t, got.out, "CRASH rkeydestroy: hang: the job did not end within 3 s (GPURMA_TIME_LIMIT)")
	require.Equal(t, "2 passed, 1 failed, 0 skipped", got.last())
}

// TestP14TwoJobsAtOnce: two runs on one machine do not see each other's memory.
func TestP14TwoJobsAtOnce(t *testing.T) {
	mustHave(t, "mpirun")
	rounds := scaled(t, 20)
	projects := []*project{mustProject(t, "rkeydestroy"), mustProject(t, "rkeydestroy")}
	for range rounds {
		var cmds []*exec.Cmd
		var outs []*bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		for _, p := range projects {
			cmd, out := p.command(ctx, "--prebuilt", filepath.Join(p.root, "built"), "--driver", "softgpu",
				"--run", "^alloc/(control|none|ptr|in-flight-destroy|peer-killed)/", "mpi")
			require.NoError(t, cmd.Start())
			cmds, outs = append(cmds, cmd), append(outs, out)
		}
		nodes := map[string]bool{}
		for i, cmd := range cmds {
			got := finished(t, cmd, cmd.Wait(), outs[i])
			require.Equal(t, 0, got.code, got.out)
			require.Equal(t, "5 passed, 0 failed, 0 skipped", got.last())
			nodes[regexp.MustCompile(`node (/\S+),`).FindString(got.out)] = true
		}
		require.Len(t, nodes, 2, "a node each")
	}
}

// scaled is n times GPURMA_SCALE, at least 1.
func scaled(t *testing.T, n int) int {
	t.Helper()
	s := os.Getenv("GPURMA_SCALE")
	if s == "" {
		return n
	}
	scale, err := strconv.ParseFloat(s, 64)
	require.NoError(t, err, "GPURMA_SCALE")
	return max(1, int(float64(n)*scale))
}

// TestGPUInUse: the programs do not run on a GPU on which others compute.
func TestGPUInUse(t *testing.T) {
	mustHave(t, "mpirun")
	dev := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dev, "nvidia0"), nil, 0o600))
	for name, c := range map[string]struct {
		smi, want string
		code      int
	}{
		"a process":        {`case "$1" in --query-compute-apps*) echo "4711, python3, 40000 MiB";; esac`, "4711, python3, 40000 MiB", 3},
		"memory of nobody": {`case "$1" in --query-gpu*) echo "0, 12"; echo "1, 40000";; esac`, "40000 MiB of GPU 1 are in use", 3},
		"free":             {`case "$1" in --query-gpu*) echo "0, 12";; esac`, "this is a GPU host", 1},
		// The program says what is broken.
		"broken": {`echo "NVIDIA-SMI has failed"; exit 9`, "this is a GPU host", 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustProject(t, "verdicts")
			p.tool("nvidia-smi", c.smi)
			p.env = append(p.env, "GPURMA_DEV_ROOT="+dev)
			got := p.run("--prebuilt", filepath.Join(p.root, "built"), "--run", "^first$", "mpi")
			require.Equal(t, c.code, got.code, got.out)
			require.Contains(t, got.out, c.want)
			require.Equal(t, c.code == 3, strings.Contains(got.out, "REFUSED"))
		})
	}
}

// TestSkipsAreListed: on the emulator a case that is skipped and not on the list
// is a failure.
func TestSkipsAreListed(t *testing.T) {
	p := mustProject(t, "")
	check := func(driver, listed, want string) {
		t.Helper()
		list := filepath.Join(p.root, "mpitests/testdata/skipped-"+driver+".txt")
		require.NoError(t, os.WriteFile(list, []byte(listed), 0o644))
		script := `set -u; cd ` + p.root + `; . contrib/lib/report.sh; . contrib/lib/programs.sh; run=''
			echo '# rank 0: driver ` + driver + `, some version' >log
			expected_skips rkeydestroy log "$(printf 'skip\n')"; finish`
		out, _ := exec.CommandContext(t.Context(), "bash", "-c", script).CombinedOutput()
		require.Equal(t, want, string(out))
	}
	const heading = "# failed:\nFAIL  rkeydestroy: skipped other cases than mpitests/testdata/skipped-%s.txt says (< listed, > skipped):\n"
	good, bad := "0 passed, 0 failed, 0 skipped\n", "0 passed, 1 failed, 0 skipped\n"
	check("softgpu", "rkeydestroy skip\n", good)
	check("softgpu", "rmacuda skip\n", fmt.Sprintf(heading, "softgpu")+"> skip\n"+bad)
	check("softgpu", "rkeydestroy skip\nrkeydestroy gone\n", fmt.Sprintf(heading, "softgpu")+"< gone\n"+bad)
	check("libcuda", "rkeydestroy skip\nrkeydestroy gone\n", good)
	check("libcuda", "rkeydestroy gone\n", fmt.Sprintf(heading, "libcuda")+"> skip\n"+bad)
}

// TestTerminated: a runner that is ended ends the programs first.
func TestTerminated(t *testing.T) {
	mustHave(t, "mpirun")
	p := mustProject(t, "verdicts")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd, _ := p.command(ctx, "--prebuilt", filepath.Join(p.root, "built"), "--driver", "softgpu", "--run", "^(first|hang)$", "mpi")
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var pids []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if m := regexp.MustCompile(`rank \d: host \S+, pid (\d+),`).FindStringSubmatch(lines.Text()); m != nil {
			pids = append(pids, m[1])
		}
		if strings.HasPrefix(lines.Text(), "PASS ") {
			break
		}
	}
	require.Len(t, pids, 2)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_, err = io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Equal(t, 143, cmd.ProcessState.ExitCode())
	for _, pid := range pids {
		// The launcher has ended it; init may still have to notice.
		require.Eventually(t, func() bool {
			_, err := os.Stat("/proc/" + pid)
			return errors.Is(err, fs.ErrNotExist)
		}, limit, 10*time.Millisecond, "rank with pid %s", pid)
	}
}

// TestWithoutMPI: on a machine without MPI the tests that need none are run,
// and the rest is named.
func TestWithoutMPI(t *testing.T) {
	mustHave(t, "go")
	script := `. contrib/lib/report.sh; . contrib/lib/mpi.sh; . contrib/lib/gotest.sh; MPICC=no-such-mpicc
		go_packages unit && echo "$packages"`
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Regexp(t, `# SKIP unit: \d+ packages below mpitests: found no no-such-mpicc, need MPI and its headers`, string(out))
	for _, name := range []string{"cuda", "cuda/softgpu", "cuda/libcuda", "cudaipc", "ucxlite", "contrib"} {
		require.Contains(t, string(out), "gpurma/"+name+"\n")
	}
	for _, name := range []string{"mpi", "harness", "rkeydestroy"} {
		require.NotRegexp(t, `(?m)/`+name+`$`, string(out))
	}
}

// TestSetupWithoutRights: --setup says what it would install, and who must.
func TestSetupWithoutRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skipf("found uid %d, need root to be another user", os.Geteuid())
	}
	p := mustProject(t, "")
	p.hide("mpirun", "mpicc", "sudo")
	cmd, out := p.command(t.Context(), "--setup", "--prebuilt", filepath.Join(p.root, "built"), "mpi")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Env = append(cmd.Env, "TMPDIR=/tmp")
	got := finished(t, cmd, cmd.Run(), out)
	require.Equal(t, 3, got.code, got.out)
	require.Contains(t, got.out, "missing openmpi-bin libopenmpi-dev; installing needs root")
}

func TestUsage(t *testing.T) {
	p := mustProject(t, "")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--driver", "cuda"}, "--driver cuda: need auto, softgpu or libcuda"},
		{[]string{"--np", "two"}, "--np two: need a number"},
		{[]string{"--np", "3"}, "--np 3: need an even number of ranks"},
		{[]string{"--np", "0"}, "--np 0: need an even number of ranks"},
		{[]string{"--np"}, "--np needs a value"},
		{[]string{"--frobnicate"}, "found --frobnicate, need a stage or an option"},
		{[]string{"everything"}, "found everything, need a stage or an option"},
		{[]string{"--prebuilt", "/nowhere", "mpi"}, "found no folder /nowhere/bin"},
		{[]string{"--prebuilt=" + filepath.Join(p.root, "built"), "race"}, "lint and race need the Go tool"},
	} {
		got := p.run(c.args...)
		require.Equal(t, 2, got.code, got.out)
		require.Contains(t, got.out, c.want)
		require.Len(t, got.lines(), 1)
	}
	got := p.run("--help")
	require.Equal(t, 0, got.code)
	require.Contains(t, got.out, "--setup")
}

// TestPipeline: what CI runs are this runner's commands, the programs on a GPU
// among them.
func TestPipeline(t *testing.T) {
	commands := map[string]bool{}
	for _, file := range []string{"../ci/gitlab-ci.yml", "../.ci/run"} {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		found := regexp.MustCompile(`(?m)contrib/run_tests\.sh"? (.+)$`).FindAllStringSubmatch(string(raw), -1)
		require.NotEmpty(t, found, file)
		for _, m := range found {
			commands[m[1]] = true
			p := mustProject(t, "")
			got := p.run(append(strings.Fields(m[1]), "--help")...)
			require.Equal(t, 0, got.code, got.out)
			require.Contains(t, got.out, "Stages")
		}
	}
	require.Contains(t, commands, "--setup --driver libcuda mpi")
	require.Contains(t, commands, "--setup all")
}
