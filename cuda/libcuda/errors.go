package libcuda

import (
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// MissingSymbolError is returned by the calls that need a symbol which the
// driver library does not have. It matches [cuda.ErrNotSupported],
// [cuda.ErrorNotSupported] and, with errors.As, [*cuda.CallError].
type MissingSymbolError struct {
	Call    string // the CUDA name, e.g. "cuMemAlloc"
	Symbol  string // what was looked up, e.g. "cuMemAlloc_v2"
	Library string // the library and its version
}

func (e *MissingSymbolError) Error() string {
	return fmt.Sprintf("%s: %s has no symbol %s: this call needs a newer NVIDIA driver", e.Call, e.Library, e.Symbol)
}

// Unwrap gives the result that the call would have had, had it been made.
func (e *MissingSymbolError) Unwrap() error {
	return &cuda.CallError{Call: e.Call, Result: cuda.ErrorNotSupported, Detail: "no symbol " + e.Symbol}
}

// noDriver is an error of Open: what failed, and what to do about it.
func noDriver(cause error, remedy string) error {
	return fmt.Errorf("%w: %w: %s", cuda.ErrNoDriver, cause, remedy)
}

// errorStubLibrary is CUDA_ERROR_STUB_LIBRARY, which only cuInit returns.
const errorStubLibrary cuda.Result = 34

// remedyForInit says what usually helps where cuInit or the search for devices
// ended with r.
func remedyForInit(r cuda.Result) string {
	switch r {
	case cuda.ErrorNoDevice:
		return "no GPU is visible to this process; look at CUDA_VISIBLE_DEVICES, at the permissions of /dev/nvidia*, " +
			"and in a container at whether it was given a GPU"
	case errorStubLibrary:
		return "this is the CUDA toolkit's stub for linking, not the driver; remove it from the library path"
	case cuda.ErrorSystemDriverMismatch:
		return "the library and the loaded kernel module are of different driver versions; reload the module or reboot, " +
			"and in a container use the host's library"
	case cuda.ErrorCompatNotSupportedOnDev:
		return "a CUDA compatibility library was found that this GPU does not support; take it out of the library path"
	case cuda.ErrorUnknown, cuda.ErrorOperatingSystem, cuda.ErrorNotPermitted:
		return "the device could not be reached; look at /dev/nvidia-uvm and the permissions of /dev/nvidia*, and run nvidia-smi"
	}
	return "run nvidia-smi to see whether the driver works at all"
}
