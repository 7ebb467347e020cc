package drivers_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/drivers"
	"github.com/gpurma/gpurma/cuda/libcuda"
	"github.com/stretchr/testify/require"
)

// host makes a machine with these device nodes, no driver library and a softgpu
// node of its own.
func host(t *testing.T, nodes ...string) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, node := range nodes {
		require.NoError(t, os.WriteFile(filepath.Join(root, node), nil, 0o600))
	}
	t.Setenv(drivers.DeviceRootVariable, root)
	t.Setenv(libcuda.LibraryVariable, filepath.Join(root, "libcuda.so.1"))
	t.Setenv(drivers.RequireGPUVariable, "")
	dir, err := os.MkdirTemp("/dev/shm", "gpurma-drivers-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	t.Setenv("SOFTGPU_NODE", filepath.Join(dir, "node"))
	return root
}

func requireSoftGPU(t *testing.T, name string) {
	t.Helper()
	drv, err := drivers.Open(name)
	require.NoError(t, err)
	require.Equal(t, "softgpu", drv.Name())
	require.NoError(t, drv.Close())
}

func TestOpenWithoutGPU(t *testing.T) {
	host(t, "nvidia-uvm", "nvidia-caps", "null")
	requireSoftGPU(t, drivers.SoftGPU)
	requireSoftGPU(t, drivers.Auto)
	drv, err := drivers.Open(drivers.LibCUDA)
	require.ErrorIs(t, err, cuda.ErrNoDriver)
	require.Nil(t, drv)
}

// TestAutoNeverFallsBack: with any device node and no working driver, auto
// fails and names both; the emulator is there for who asks for it.
func TestAutoNeverFallsBack(t *testing.T) {
	for _, node := range []string{"nvidiactl", "nvidia0", "nvidia17", "dxg"} {
		t.Run(node, func(t *testing.T) {
			root := host(t, node)
			drv, err := drivers.Open(drivers.Auto)
			require.ErrorIs(t, err, cuda.ErrNoDriver)
			require.ErrorContains(t, err, filepath.Join(root, node))
			require.ErrorContains(t, err, "libcuda.so.1")
			require.Nil(t, drv)
			requireSoftGPU(t, drivers.SoftGPU)
		})
	}
}

// TestAutoLooksOrFails: a host that cannot be looked at is not one without GPU.
func TestAutoLooksOrFails(t *testing.T) {
	root := host(t)
	file := filepath.Join(root, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	t.Setenv(drivers.DeviceRootVariable, file)
	_, err := drivers.Open(drivers.Auto)
	require.ErrorContains(t, err, "look for NVIDIA device nodes")

	t.Setenv(drivers.DeviceRootVariable, filepath.Join(root, "absent"))
	requireSoftGPU(t, drivers.Auto)
}

// TestGPURequired: with GPURMA_REQUIRE_GPU nothing ends on the emulator, and
// the error says why.
func TestGPURequired(t *testing.T) {
	root := host(t)
	t.Setenv(drivers.RequireGPUVariable, "1")
	for name, says := range map[string]string{
		drivers.SoftGPU: "softgpu is an emulator",
		drivers.Auto:    "no NVIDIA device node in " + root,
	} {
		drv, err := drivers.Open(name)
		require.ErrorIs(t, err, cuda.ErrNoDriver, name)
		require.ErrorContains(t, err, drivers.RequireGPUVariable)
		require.ErrorContains(t, err, says)
		require.Nil(t, drv)
	}
	_, err := drivers.Open(drivers.LibCUDA)
	require.ErrorIs(t, err, cuda.ErrNoDriver)

	t.Setenv(drivers.RequireGPUVariable, "0")
	requireSoftGPU(t, drivers.Auto)
	t.Setenv(drivers.RequireGPUVariable, "perhaps")
	_, err = drivers.Open(drivers.SoftGPU)
	require.ErrorContains(t, err, `GPURMA_REQUIRE_GPU="perhaps"`)
}

func TestUnknownName(t *testing.T) {
	for _, name := range []string{"", "cuda", "SoftGPU"} {
		_, err := drivers.Open(name)
		require.Error(t, err)
		for _, known := range drivers.Names() {
			require.ErrorContains(t, err, known)
		}
	}
}

func TestBadSoftGPUConfiguration(t *testing.T) {
	host(t)
	t.Setenv("SOFTGPU_DEVICES", "many")
	_, err := drivers.Open(drivers.Auto)
	require.ErrorContains(t, err, "SOFTGPU_DEVICES=many")
}
