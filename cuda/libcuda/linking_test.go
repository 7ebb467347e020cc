//go:build cgo

package libcuda_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestS37NothingOfCUDAIsLinked: a program that imports the package names no
// CUDA library, and starts where every symbol is bound at once.
func TestS37NothingOfCUDAIsLinked(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	file, err := elf.Open(self)
	require.NoError(t, err)
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	require.NoError(t, err)
	for _, library := range libraries {
		require.NotRegexp(t, "(?i)cuda|nvidia|nvml", library)
	}
	symbols, err := file.ImportedSymbols()
	require.NoError(t, err)
	for _, symbol := range symbols {
		require.NotRegexp(t, "^(cu|nvml)[A-Z]", symbol.Name)
	}

	cmd := exec.Command(self, "-test.run=^$")
	cmd.Env = append(os.Environ(), "LD_BIND_NOW=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
