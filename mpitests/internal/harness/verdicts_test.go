package harness

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/mpitests/internal/launchtest"
)

func TestMain(m *testing.M) { launchtest.Main(m) }

func mustProgram(t *testing.T) string {
	t.Helper()
	return launchtest.Build(t, "./testdata/verdicts")
}

func ranked(t *testing.T, ranks int, env []string, args ...string) launchtest.Result {
	t.Helper()
	return launchtest.Execute(t, env, launchtest.Command(ranks, mustProgram(t), args...)...)
}

func TestVerdicts(t *testing.T) {
	for name, want := range map[string]struct {
		code int
		last string
		text []string
	}{
		"first":                      {0, "1 passed, 0 failed, 0 skipped", []string{"PASS          first"}},
		"titled":                     {0, "1 passed, 0 failed, 0 skipped", []string{"TEST[7]: PASS  rank 0 was here  rank 1 was here  # titled"}},
		"skip":                       {77, "0 passed, 0 failed, 1 skipped", []string{"SKIP          skip", "found 0 unicorns, need 1"}},
		"inconclusive":               {1, "0 passed, 1 failed, 0 skipped", []string{"INCONCLUSIVE  inconclusive", "the control showed nothing"}},
		"disagree":                   {1, "0 passed, 1 failed, 0 skipped", []string{"the ranks disagree: rank 0: PASS | rank 1: SKIP: found no room, need some"}},
		"fail-0":                     {1, "0 passed, 1 failed, 0 skipped", []string{"rank 0: FAIL: 7 bytes, want 8 | rank 1: PASS"}},
		"fail-1":                     {1, "0 passed, 1 failed, 0 skipped", []string{"rank 0: PASS | rank 1: FAIL: 9 bytes, want 8"}},
		"fail-while-the-other-waits": {1, "0 passed, 1 failed, 0 skipped", []string{"rank 0: FAIL: gave up early", "rank 1: FAIL: rank 0 ended the case before"}},
		"panic":                      {1, "0 passed, 1 failed, 0 skipped", []string{"rank 1: FAIL: panic: a case's mistake", "verdicts/main.go"}},
		"log":                        {1, "0 passed, 1 failed, 0 skipped", []string{"the library logged: WARN something odd"}},
		"log-wanted":                 {0, "1 passed, 0 failed, 0 skipped", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := ranked(t, 2, nil, "--run", "^"+name+"$")
			require.Equal(t, want.code, got.Code, got)
			require.Equal(t, want.last, got.Last())
			for _, text := range want.text {
				require.Contains(t, got.Stdout, text)
			}
		})
	}
}

// The other cases of a job run after one has failed, on any number of pairs.
func TestFailureIsNotTheEnd(t *testing.T) {
	got := ranked(t, 4, nil, "--run", "^(first|panic|fail-1|last)$")
	require.Equal(t, 1, got.Code)
	require.Equal(t, "2 passed, 2 failed, 0 skipped", got.Last())
	require.Contains(t, got.Stdout, "rank 2: PASS | rank 3: FAIL: 9 bytes, want 8")
}

// TestP11TheEndTellsAll: the last lines of a run are enough to know what failed
// and to run it again alone.
func TestP11TheEndTellsAll(t *testing.T) {
	got := ranked(t, 2, []string{"GPURMA_LAUNCH=" + strings.Join(launchtest.Command(2, ""), " ")}, "--run", "^(first|fail-1|last)$", "--timeout", "30s")
	lines := got.Lines()
	require.Equal(t, "# failed:", lines[len(lines)-5], got.Stdout)
	require.Contains(t, lines[len(lines)-4], "fail-1")
	require.Contains(t, lines[len(lines)-4], "9 bytes, want 8")
	note := regexp.MustCompile(`rank 1: seed seen here: \d+$`).FindString(lines[len(lines)-3])
	require.NotEmpty(t, note, got.Stdout)
	again, found := strings.CutPrefix(lines[len(lines)-2], "  again: ")
	require.True(t, found)
	require.Contains(t, again, "--timeout 30s")

	second := launchtest.Execute(t, nil, "sh", "-c", again)
	require.Equal(t, 1, second.Code)
	require.Equal(t, "0 passed, 1 failed, 0 skipped", second.Last())
	require.Contains(t, second.Stdout, note, "the same seed")
}

func TestTimeout(t *testing.T) {
	got := ranked(t, 2, nil, "--run", "^(late|last)$", "--timeout", "200ms")
	require.Equal(t, 1, got.Code)
	require.Equal(t, "1 passed, 1 failed, 0 skipped", got.Last())
	require.Contains(t, got.Stdout, "not done within --timeout 200ms")
	for _, rank := range []string{"rank 0 ", "rank 1 "} {
		require.Regexp(t, regexp.QuoteMeta(rank)+`\(pid \d+\): case late has not ended (within 200ms|in time on the other rank); goroutines:`, got.Stderr)
	}
}

// A case that ignores the end of its time is the end of the job, with the
// goroutines of both ranks.
func TestHang(t *testing.T) {
	got := ranked(t, 2, nil, "--run", "^(hang|last)$", "--timeout", "200ms")
	require.Equal(t, exitHung, got.Code, got.Stderr)
	require.Contains(t, got.Stderr, "case hang hangs: aborting the job")
	require.Regexp(t, `rank 0 \(pid \d+\): case hang has not ended`, got.Stderr)
	require.Regexp(t, `rank 1 \(pid \d+\): case hang has not ended`, got.Stderr)
	require.NotContains(t, got.Stdout, "passed")
}

// TestUsage: wrong commands end with status 2 and one line that says what to do.
func TestUsage(t *testing.T) {
	for name, c := range map[string]struct {
		ranks int
		args  []string
		want  string
	}{
		"one rank":     {1, nil, "found 1 rank(s), need an even number: mpirun -mca plm isolated -np 2 verdicts"},
		"three ranks":  {3, nil, "found 3 rank(s), need an even number"},
		"flag":         {2, []string{"--frobnicate"}, "unknown flag --frobnicate"},
		"driver":       {2, []string{"--driver", "cuda"}, "--driver must be one of"},
		"device":       {2, []string{"--device=-5"}, "--device -5: want"},
		"timeout":      {2, []string{"--timeout", "-3s"}, "--timeout"},
		"no such case": {2, []string{"--run", "^nothing$"}, "no case matches --run ^nothing$"},
		"regexp":       {2, []string{"--run", "("}, "--run: error parsing regexp"},
		"json":         {2, []string{"--json", "/nowhere/at/all"}, "--json: open /nowhere/at/all"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ranked(t, c.ranks, nil, c.args...)
			require.Equal(t, exitUsage, got.Code, got)
			require.Equal(t, 1, strings.Count(got.Stderr, "verdicts: "), got.Stderr)
			require.Contains(t, got.Stderr, c.want)
			require.NotContains(t, got.Stdout, "passed")
		})
	}
	alone := launchtest.Execute(t, nil, mustProgram(t))
	require.Equal(t, exitUsage, alone.Code)
	require.Contains(t, alone.Stderr, "found 1 rank(s), need an even number")
}

// TestP12WrongLauncher: a rank of two whose MPI sees a job of one is told that,
// and not that it is alone.
func TestP12WrongLauncher(t *testing.T) {
	got := launchtest.Execute(t, []string{"PMI_SIZE=2"}, mustProgram(t))
	require.Equal(t, exitUsage, got.Code, got)
	require.Contains(t, got.Stderr, "started 2 processes (PMI_SIZE), but MPI in this one sees a job of 1")
}

func TestList(t *testing.T) {
	got := launchtest.Execute(t, []string{"GPURMA_REQUIRE_GPU=1"}, mustProgram(t), "--list", "--run", "^fail-[01]$")
	require.Equal(t, 0, got.Code, got)
	require.Equal(t, "fail-0\nfail-1\n", got.Stdout)
	got = launchtest.Execute(t, nil, mustProgram(t), "--list", "--after", "last")
	require.Empty(t, got.Stdout, "nothing is behind the last one")
}

func TestJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cases.json")
	ranked(t, 2, nil, "--run", "^(first|skip|fail-1)$", "--json", file, "--seed", "77")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	type line struct {
		Program, Case, Driver, Policy, Reason string
		Verdict                               Verdict
		Seed                                  uint64
		Ranks                                 []outcome
	}
	var all []line
	for scan := bufio.NewScanner(bytes.NewReader(raw)); scan.Scan(); {
		var l line
		require.NoError(t, json.Unmarshal(scan.Bytes(), &l))
		require.Equal(t, []string{"verdicts", "softgpu", "free"}, []string{l.Program, l.Driver, l.Policy})
		require.EqualValues(t, 77, l.Seed)
		all = append(all, l)
	}
	require.Len(t, all, 3)
	require.Equal(t, Pass, all[0].Verdict)
	require.EqualValues(t, 42, all[0].Ranks[1].Readings["answer"])
	require.Equal(t, []Verdict{Skip, Fail}, []Verdict{all[1].Verdict, all[2].Verdict})
	require.Equal(t, []Verdict{Pass, Fail}, []Verdict{all[2].Ranks[0].Verdict, all[2].Ranks[1].Verdict})
	require.Contains(t, all[2].Reason, "9 bytes, want 8")
}

// TestP9Head: what is missing is said at the head, and is a failure only where
// it must be there.
func TestP9Head(t *testing.T) {
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		t.Skip("found a GPU, need a machine without one")
	}
	broken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(broken, "nvidia0"), nil, 0o600))
	for name, c := range map[string]struct {
		env  []string
		args []string
		code int
		last string
		want string
	}{
		"no GPU":           {nil, []string{"--driver", "libcuda"}, 77, "0 passed, 0 failed, 1 skipped", "libcuda.so.1"},
		"no GPU, required": {[]string{"GPURMA_REQUIRE_GPU=1"}, nil, 1, "0 passed, 1 failed, 0 skipped", "GPURMA_REQUIRE_GPU is set"},
		"emulator, GPU required": {[]string{"GPURMA_REQUIRE_GPU=1"}, []string{"--driver", "softgpu"}, 1,
			"0 passed, 1 failed, 0 skipped", "an emulator"},
		"emulator that cannot start": {[]string{"SOFTGPU_NODE=/nonexistent/a/b"}, nil, 1, "0 passed, 1 failed, 0 skipped", "/nonexistent/a"},
		"broken GPU host":            {[]string{"GPURMA_DEV_ROOT=" + broken}, nil, 1, "0 passed, 1 failed, 0 skipped", "so this is a GPU host"},
		"device":                     {nil, []string{"--device", "9"}, 1, "0 passed, 1 failed, 0 skipped", "--device 9: found 2 device(s)"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ranked(t, 2, c.env, append(c.args, "--run", "^first$")...)
			require.Equal(t, c.code, got.Code, got)
			require.Equal(t, c.last, got.Last())
			require.Contains(t, got.Stdout, c.want)
		})
	}
}

// Each rank says who it is and that both see the same devices, and the job's
// emulated GPUs go with it.
func TestHeadAndNode(t *testing.T) {
	got := ranked(t, 2, nil, "--run", "^first$")
	seen := regexp.MustCompile(`rank ([01]): sees device ([01]), (GPU-[0-9a-f-]+), .*, node file inode ([0-9]+)`).FindAllStringSubmatch(got.Stdout, -1)
	require.Len(t, seen, 4, got.Stdout)
	require.Equal(t, seen[0][2:], seen[2][2:])
	require.Equal(t, seen[1][2:], seen[3][2:])
	require.Regexp(t, `rank 1: host \S+, pid \d+, Open MPI v\S+, /\S*libmpi\.so\S*, commit \S+`, got.Stdout)
	node := regexp.MustCompile(`node (/\S+),`).FindStringSubmatch(got.Stdout)
	require.Len(t, node, 2)
	require.True(t, strings.HasPrefix(node[1], softgpu.DefaultParent()), node[1])
	require.NoDirExists(t, node[1])
}

// TestNoCUDALinked: the program needs no CUDA library to start.
func TestNoCUDALinked(t *testing.T) {
	got := launchtest.Execute(t, nil, "ldd", mustProgram(t))
	require.Equal(t, 0, got.Code)
	require.Contains(t, got.Stdout, "libmpi")
	require.NotRegexp(t, `(?i)cuda|nvidia`, got.Stdout)
}

// TestThirdProgram: the program in docs/tests.md that shows how to write one is
// the one here, has 50 lines at most, and works.
func TestThirdProgram(t *testing.T) {
	source, err := os.ReadFile("testdata/third/main.go")
	require.NoError(t, err)
	require.LessOrEqual(t, bytes.Count(source, []byte("\n")), 50)
	doc, err := os.ReadFile("../../../docs/tests.md")
	require.NoError(t, err)
	require.Contains(t, string(doc), "```go\n"+string(source)+"```\n")
	got := launchtest.Execute(t, nil, launchtest.Command(2, launchtest.Build(t, "./testdata/third"))...)
	require.Equal(t, 0, got.Code, got)
	require.Equal(t, "1 passed, 0 failed, 0 skipped", got.Last())
}
