// Package drivers opens a driver by name: the one place that knows both the
// real one, cuda/libcuda, and the emulated one, cuda/softgpu. Everything above
// takes the [cuda.Driver] that it returns.
package drivers

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/libcuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
)

// The names that [Open] takes.
const (
	// LibCUDA is the NVIDIA driver.
	LibCUDA = "libcuda"
	// SoftGPU is the emulator, configured by the SOFTGPU_* variables.
	SoftGPU = "softgpu"
	// Auto is LibCUDA on a host with an NVIDIA device node and SoftGPU on any
	// other. The node alone decides: a GPU host whose driver does not work is an
	// error and never ends up on the emulator.
	Auto = "auto"
)

// Names lists what [Open] takes, for usage texts.
func Names() []string { return []string{LibCUDA, SoftGPU, Auto} }

// RequireGPUVariable names the environment variable that, set to 1, makes every
// Open that would not end on a GPU fail, for CI hosts that must have one.
const RequireGPUVariable = "GPURMA_REQUIRE_GPU"

// Open opens the driver of that name. Where there is none to open, or the
// environment wants a GPU and this is none, the error matches
// [cuda.ErrNoDriver] and says why.
func Open(name string) (cuda.Driver, error) {
	required, err := GPURequired()
	if err != nil {
		return nil, err
	}
	switch name {
	case LibCUDA:
		return libcuda.Open()
	case SoftGPU:
		if required {
			return nil, fmt.Errorf("%w: %s is set, and driver softgpu is an emulator", cuda.ErrNoDriver, RequireGPUVariable)
		}
		return openSoftGPU()
	case Auto:
		return openAuto(required)
	}
	return nil, fmt.Errorf("unknown driver %q: want one of %s", name, strings.Join(Names(), ", "))
}

// GPURequired tells whether [RequireGPUVariable] is set.
func GPURequired() (bool, error) {
	s := os.Getenv(RequireGPUVariable)
	if s == "" {
		return false, nil
	}
	required, err := strconv.ParseBool(s)
	if err != nil {
		return false, fmt.Errorf("%s=%q: want 1 or 0", RequireGPUVariable, s)
	}
	return required, nil
}

func openAuto(required bool) (cuda.Driver, error) {
	node, err := DeviceNode()
	if err != nil {
		return nil, fmt.Errorf("driver auto: %w", err)
	}
	if node == "" {
		if required {
			return nil, fmt.Errorf("%w: %s is set, but there is no NVIDIA device node in %s",
				cuda.ErrNoDriver, RequireGPUVariable, deviceRoot())
		}
		return openSoftGPU()
	}
	drv, err := libcuda.Open()
	if err != nil {
		return nil, fmt.Errorf("driver auto: found %s, so this is a GPU host: %w", node, err)
	}
	return drv, nil
}

func openSoftGPU() (cuda.Driver, error) {
	cfg, err := softgpu.ConfigFromEnv()
	if err != nil {
		return nil, err
	}
	drv, err := softgpu.Open(cfg)
	if err != nil {
		return nil, err // and not a nil *softgpu.Driver in an interface
	}
	return drv, nil
}
