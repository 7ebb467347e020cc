package libcuda_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/drivertest"
	"github.com/gpurma/gpurma/cuda/libcuda"
)

func TestMain(m *testing.M) { drivertest.Main(m, libcuda.Open) }

// TestConformance runs the suite on the machine's GPU, which nobody else may be
// using: it compares free memory.
func TestConformance(t *testing.T) {
	requireGPU(t)
	open := func(tb testing.TB) (cuda.Driver, []string) {
		drv, err := libcuda.Open()
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, drv.Close()) })
		return drv, nil
	}
	drivertest.Run(t, open, drivertest.Options{Slack: 1 << 20})
}

// requireGPU skips a test on a machine without a GPU, or fails it where
// GPURMA_REQUIRE_GPU=1 says that there must be one.
func requireGPU(t *testing.T) {
	t.Helper()
	nodes, err := filepath.Glob("/dev/nvidia[0-9]*")
	require.NoError(t, err)
	if len(nodes) > 0 {
		return
	}
	const why = "found no NVIDIA device node, need a GPU"
	if os.Getenv("GPURMA_REQUIRE_GPU") == "1" {
		t.Fatal(why + " (GPURMA_REQUIRE_GPU=1)")
	}
	t.Skip(why)
}
