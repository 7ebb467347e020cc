//go:build cgo

package libcuda_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/libcuda"
	"github.com/stretchr/testify/require"
)

// console is the address by which testdata/fakecuda.c is commanded and asked.
const console cuda.DevicePtr = 0xC0450000

// fakeOptions say how the fake library differs from a whole and healthy one.
type fakeOptions struct {
	defines []string // "INIT=100"
	lacks   []string // symbols
}

// buildFake returns the file of a fake library. Each call's is another library
// to the dynamic linker, with a state of its own.
func buildFake(tb testing.TB, opts fakeOptions) string {
	tb.Helper()
	key := fmt.Sprint(opts)
	compiled.Lock()
	defer compiled.Unlock()
	library, ok := compiled.libraries[key]
	if !ok {
		library = compileFake(tb, opts)
		compiled.libraries[key] = library
	}
	file := filepath.Join(tb.TempDir(), "libfakecuda.so")
	require.NoError(tb, os.WriteFile(file, library, 0o600))
	return file
}

// compiled keeps what the compiler made, by fakeOptions.
var compiled = struct {
	sync.Mutex
	libraries map[string][]byte
}{libraries: map[string][]byte{}}

func cCompiler(tb testing.TB) string {
	tb.Helper()
	compiler := cmp.Or(os.Getenv("CC"), "gcc")
	if _, err := exec.LookPath(compiler); err != nil {
		tb.Skipf("found no C compiler (%v), need one", err)
	}
	return compiler
}

func compileFake(tb testing.TB, opts fakeOptions) []byte {
	tb.Helper()
	compiler := cCompiler(tb)
	dir := tb.TempDir()
	library := filepath.Join(dir, "libfakecuda.so")
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, "testdata/fakecuda.c", "-lpthread"}
	for _, d := range opts.defines {
		args = append(args, "-D"+d)
	}
	if len(opts.lacks) > 0 {
		script := filepath.Join(dir, "version-script")
		text := "{ global: cu*; local: " + strings.Join(opts.lacks, "; ") + "; };\n"
		require.NoError(tb, os.WriteFile(script, []byte(text), 0o600))
		args = append(args, "-Wl,--version-script="+script)
	}
	out, err := exec.Command(compiler, args...).CombinedOutput()
	require.NoError(tb, err, "%s", out)
	code, err := os.ReadFile(library)
	require.NoError(tb, err)
	return code
}

// fake is an opened driver over a fake library, and the context through which
// the library's console is reached. No test uses that context otherwise.
type fake struct {
	cuda.Driver
	tb  testing.TB
	ctx cuda.Context
}

func openFake(tb testing.TB, opts fakeOptions) *fake {
	tb.Helper()
	setLibrary(tb, buildFake(tb, opts))
	drv, err := libcuda.Open()
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, drv.Close()) })
	_, err = drv.DevicePrimaryCtxRetain(0) // which is what all memory belongs to
	require.NoError(tb, err)
	ctx, err := drv.CtxCreate(0)
	require.NoError(tb, err)
	return &fake{Driver: drv, tb: tb, ctx: ctx}
}

func setLibrary(tb testing.TB, library string) {
	tb.Helper()
	tb.(interface{ Setenv(key, value string) }).Setenv(libcuda.LibraryVariable, library)
}

// command gives the fake a command; fakecuda.c lists them.
func (f *fake) command(format string, args ...any) {
	f.tb.Helper()
	require.NoError(f.tb, f.MemcpyHtoD(f.ctx, console, fmt.Appendf(nil, format, args...)))
}

// openGate lets go the calls that wait.
func (f *fake) openGate() {
	f.tb.Helper()
	require.NoError(f.tb, f.MemsetD8(f.ctx, console, 0, 1))
}

// report is what the fake saw.
type report struct {
	depths     int    // contexts on the stacks of all threads
	violations string // "0 ", or their number and the first
	most       int    // calls that waited at the gate at once
	calls      map[string]call
}

type call struct {
	count   int
	context cuda.Context // current at the last one
}

var callLine = regexp.MustCompile(`^call (\S+) (\d+) (\d+)$`)

func (f *fake) report() report {
	f.tb.Helper()
	text := make([]byte, 8192)
	require.NoError(f.tb, f.MemcpyDtoH(f.ctx, text, console))
	r := report{calls: map[string]call{}}
	for line := range strings.Lines(strings.TrimRight(string(text), "\x00")) {
		line = strings.TrimSuffix(line, "\n")
		key, value, _ := strings.Cut(line, " ")
		switch m := callLine.FindStringSubmatch(line); {
		case m != nil:
			ctx, err := strconv.ParseUint(m[3], 10, 64)
			require.NoError(f.tb, err)
			r.calls[m[1]] = call{atoi(f.tb, m[2]), cuda.Context(ctx)}
		case key == "depths":
			r.depths = atoi(f.tb, value)
		case key == "violations":
			r.violations = value
		case key == "most":
			r.most = atoi(f.tb, value)
		default:
			f.tb.Fatalf("unknown line %q in the report", line)
		}
	}
	return r
}

func atoi(tb testing.TB, s string) int {
	tb.Helper()
	n, err := strconv.Atoi(s)
	require.NoError(tb, err)
	return n
}
