package cuda

import (
	"errors"
	"fmt"
)

// Result is a driver result code (CUresult). A non-zero Result is an error;
// errors.Is(err, cuda.ErrorOutOfMemory) asks what a call answered.
type Result int32

// The results that this module meets by name; any other code prints as its
// number.
const (
	Success                       Result = 0
	ErrorInvalidValue             Result = 1
	ErrorOutOfMemory              Result = 2
	ErrorNotInitialized           Result = 3
	ErrorDeinitialized            Result = 4
	ErrorDeviceUnavailable        Result = 46
	ErrorNoDevice                 Result = 100
	ErrorInvalidDevice            Result = 101
	ErrorInvalidImage             Result = 200
	ErrorInvalidContext           Result = 201
	ErrorContextAlreadyCurrent    Result = 202
	ErrorMapFailed                Result = 205
	ErrorUnmapFailed              Result = 206
	ErrorAlreadyMapped            Result = 208
	ErrorNotMapped                Result = 211
	ErrorPeerAccessUnsupported    Result = 217
	ErrorUnsupportedPTXVersion    Result = 222
	ErrorInvalidSource            Result = 300
	ErrorOperatingSystem          Result = 304
	ErrorInvalidHandle            Result = 400
	ErrorIllegalState             Result = 401
	ErrorNotFound                 Result = 500
	ErrorNotReady                 Result = 600
	ErrorIllegalAddress           Result = 700
	ErrorLaunchOutOfResources     Result = 701
	ErrorPeerAccessAlreadyEnabled Result = 704
	ErrorPeerAccessNotEnabled     Result = 705
	ErrorPrimaryContextActive     Result = 708
	ErrorContextIsDestroyed       Result = 709
	ErrorHostMemoryAlreadyReg     Result = 712
	ErrorLaunchFailed             Result = 719
	ErrorNotPermitted             Result = 800
	ErrorNotSupported             Result = 801
	ErrorSystemDriverMismatch     Result = 803
	ErrorCompatNotSupportedOnDev  Result = 804
	ErrorUnknown                  Result = 999
)

var resultNames = map[Result]string{
	Success:                       "CUDA_SUCCESS",
	ErrorInvalidValue:             "CUDA_ERROR_INVALID_VALUE",
	ErrorOutOfMemory:              "CUDA_ERROR_OUT_OF_MEMORY",
	ErrorNotInitialized:           "CUDA_ERROR_NOT_INITIALIZED",
	ErrorDeinitialized:            "CUDA_ERROR_DEINITIALIZED",
	ErrorDeviceUnavailable:        "CUDA_ERROR_DEVICE_UNAVAILABLE",
	ErrorNoDevice:                 "CUDA_ERROR_NO_DEVICE",
	ErrorInvalidDevice:            "CUDA_ERROR_INVALID_DEVICE",
	ErrorInvalidImage:             "CUDA_ERROR_INVALID_IMAGE",
	ErrorInvalidContext:           "CUDA_ERROR_INVALID_CONTEXT",
	ErrorContextAlreadyCurrent:    "CUDA_ERROR_CONTEXT_ALREADY_CURRENT",
	ErrorMapFailed:                "CUDA_ERROR_MAP_FAILED",
	ErrorUnmapFailed:              "CUDA_ERROR_UNMAP_FAILED",
	ErrorAlreadyMapped:            "CUDA_ERROR_ALREADY_MAPPED",
	ErrorNotMapped:                "CUDA_ERROR_NOT_MAPPED",
	ErrorPeerAccessUnsupported:    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
	ErrorUnsupportedPTXVersion:    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
	ErrorInvalidSource:            "CUDA_ERROR_INVALID_SOURCE",
	ErrorOperatingSystem:          "CUDA_ERROR_OPERATING_SYSTEM",
	ErrorInvalidHandle:            "CUDA_ERROR_INVALID_HANDLE",
	ErrorIllegalState:             "CUDA_ERROR_ILLEGAL_STATE",
	ErrorNotFound:                 "CUDA_ERROR_NOT_FOUND",
	ErrorNotReady:                 "CUDA_ERROR_NOT_READY",
	ErrorIllegalAddress:           "CUDA_ERROR_ILLEGAL_ADDRESS",
	ErrorLaunchOutOfResources:     "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
	ErrorPeerAccessAlreadyEnabled: "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
	ErrorPeerAccessNotEnabled:     "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
	ErrorPrimaryContextActive:     "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
	ErrorContextIsDestroyed:       "CUDA_ERROR_CONTEXT_IS_DESTROYED",
	ErrorHostMemoryAlreadyReg:     "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	ErrorLaunchFailed:             "CUDA_ERROR_LAUNCH_FAILED",
	ErrorNotPermitted:             "CUDA_ERROR_NOT_PERMITTED",
	ErrorNotSupported:             "CUDA_ERROR_NOT_SUPPORTED",
	ErrorSystemDriverMismatch:     "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
	ErrorCompatNotSupportedOnDev:  "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
	ErrorUnknown:                  "CUDA_ERROR_UNKNOWN",
}

// Error gives the driver's name of the code.
func (r Result) Error() string {
	if name, ok := resultNames[r]; ok {
		return name
	}
	return fmt.Sprintf("CUresult %d", int32(r))
}

// Is makes [ErrNotSupported] match the driver's own CUDA_ERROR_NOT_SUPPORTED.
func (r Result) Is(target error) bool {
	return r == ErrorNotSupported && target == ErrNotSupported
}

var (
	// ErrNoDriver is returned when no usable driver could be opened: the
	// library is missing or broken, or reports no device.
	ErrNoDriver = errors.New("no CUDA driver")

	// ErrNotSupported is matched by errors of calls that this driver does not
	// offer: a missing symbol, or CUDA_ERROR_NOT_SUPPORTED.
	ErrNotSupported = errors.New("not supported by this driver")
)

// CallError is a driver call that failed. It matches Result, and whatever
// sentinel Result matches, with errors.Is.
type CallError struct {
	Call   string // the CUDA name, e.g. "cuMemAlloc"
	Result Result
	Detail string // what the driver package knows beyond the code; may be empty
}

func (e *CallError) Error() string {
	s := fmt.Sprintf("%s: %s (%d)", e.Call, e.Result.Error(), int32(e.Result))
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

func (e *CallError) Unwrap() error { return e.Result }

// Err returns nil for Success and a [*CallError] for any other result.
func Err(call string, r Result) error {
	if r == Success {
		return nil
	}
	return &CallError{Call: call, Result: r}
}
