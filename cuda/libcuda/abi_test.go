//go:build cgo

package libcuda_test

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestABIAgreesWithCUDA compares the hand-written interface with CUDA's own
// header, on machines that have one.
func TestABIAgreesWithCUDA(t *testing.T) {
	include := filepath.Join(cmp.Or(os.Getenv("CUDA_HOME"), "/usr/local/cuda"), "include")
	if _, err := os.Stat(filepath.Join(include, "cuda.h")); err != nil {
		t.Skipf("found no cuda.h (%v), need the CUDA toolkit", err)
	}
	out, err := exec.Command(cCompiler(t), "-fsyntax-only", "-I", include, "-I", ".", "testdata/abicheck.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
