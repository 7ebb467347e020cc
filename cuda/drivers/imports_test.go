package drivers_test

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/gpurma/gpurma"

// floors says what the packages of the module may import of the module, as
// paths below it. A package stands on the floor of the longest path that is its
// own or lies above it, and may also import the internal packages of that path.
// Nothing else is allowed: what is new comes with a line here.
var floors = map[string][]string{
	"cuda":                     {},
	"cuda/libcuda":             {"cuda"},
	"cuda/softgpu":             {"cuda"},
	"cuda/softgpu/softgputest": {"cuda", "cuda/softgpu"},
	"cuda/drivers":             {"cuda", "cuda/libcuda", "cuda/softgpu"},
	"cuda/drivertest":          {"cuda"},
	"cudaipc":                  {"cuda"},
	"ucxlite":                  {"cuda", "cudaipc"},
	"mpitests":                 {"cuda", "cuda/drivers", "cuda/softgpu", "cudaipc", "ucxlite"},
	"cmd":                      {"cuda", "cuda/drivers", "cuda/softgpu", "cudaipc", "ucxlite"},
}

// reserved says which packages alone may import these paths.
var reserved = map[string][]string{
	"github.com/sbromberger/gompi": {"mpitests/internal/mpi"},
	"C":                            {"cuda/libcuda", "mpitests/internal/mpi"},
}

type listedPackage struct {
	ImportPath, Dir                              string
	GoFiles, CgoFiles, TestGoFiles, XTestGoFiles []string
	IgnoredGoFiles, CFiles, SFiles               []string
	Imports                                      []string
}

func (p listedPackage) path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

func (p listedPackage) allGoFiles() []string {
	return slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles, p.IgnoredGoFiles)
}

// listModule lists every package of the module, also those that do not compile.
func listModule(t *testing.T) []listedPackage {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("found no go command (%v), need it and the module's source", err)
	}
	cmd := exec.Command("go", "list", "-e", "-json", module+"/...")
	out, err := cmd.Output()
	require.NoError(t, err)
	var packages []listedPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listedPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	require.Greater(t, len(packages), 5)
	return packages
}

// allowed tells whether the package at path may import the one at imported.
func allowed(path, imported string) bool {
	for floor := path; floor != "."; floor = filepath.Dir(floor) {
		if imports, known := floors[floor]; known {
			return slices.Contains(imports, imported) || strings.HasPrefix(imported, floor+"/internal/")
		}
	}
	return false
}

// TestImportsGoDown keeps the floors of the house: a package imports only what
// stands below it.
func TestImportsGoDown(t *testing.T) {
	for _, p := range listModule(t) {
		for _, imported := range p.Imports {
			path, ours := strings.CutPrefix(imported, module+"/")
			if ours && !allowed(p.path(), path) {
				t.Errorf("package %s imports %s", p.path(), path)
			}
		}
	}
}

// TestReservedImports: MPI and C are reached from one place each, in tests too,
// and C sources lie only where C may be called.
func TestReservedImports(t *testing.T) {
	for _, p := range listModule(t) {
		for _, file := range p.allGoFiles() {
			for _, imported := range importsOf(t, p, file) {
				places, is := reserved[imported]
				if is && !slices.Contains(places, p.path()) {
					t.Errorf("%s/%s imports %q", p.path(), file, imported)
				}
			}
		}
		for _, file := range p.CFiles {
			if !slices.Contains(reserved["C"], p.path()) {
				t.Errorf("%s has C code: %s", p.path(), file)
			}
		}
	}
}

// TestUnsafeIsMarked: unsafe and C are imported only by files that say so.
func TestUnsafeIsMarked(t *testing.T) {
	for _, p := range listModule(t) {
		for _, file := range p.allGoFiles() {
			if marked := strings.TrimSuffix(strings.TrimSuffix(file, ".go"), "_test"); strings.HasSuffix(marked, "_unsafe") {
				continue
			}
			for _, imported := range importsOf(t, p, file) {
				if imported == "unsafe" || imported == "C" {
					t.Errorf("%s/%s imports %q and is not named *_unsafe.go", p.path(), file, imported)
				}
			}
		}
	}
}

func importsOf(t *testing.T, p listedPackage, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ImportsOnly)
	require.NoError(t, err)
	var paths []string
	for _, spec := range parsed.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		paths = append(paths, path)
	}
	return paths
}
