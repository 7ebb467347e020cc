package libcuda

// #cgo linux LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/gpurma/gpurma/cuda"
)

// driver is the opened library. Its methods are in the files named after the
// interfaces of package cuda.
type driver struct {
	api     *C.lc_api
	library string // what was opened
	version string // see Version
}

var _ cuda.Driver = (*driver)(nil)

// Open loads libcuda.so.1 (or what [LibraryVariable] names) and initialises the
// driver. Every failure matches [cuda.ErrNoDriver] and says what to do; one
// that the driver answered matches its [cuda.Result] too. Open may be called
// more than once.
func Open() (cuda.Driver, error) {
	name := os.Getenv(LibraryVariable)
	if name == "" {
		name = defaultLibrary
	}
	d, err := load(name)
	if err != nil {
		return nil, err
	}
	if err := d.init(); err != nil {
		return nil, err
	}
	return d, nil
}

func load(name string) (*driver, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var message [512]byte
	api := C.lc_open(cname, (*C.char)(unsafe.Pointer(&message[0])), C.size_t(len(message)))
	if api == nil {
		text, _, _ := strings.Cut(string(message[:]), "\x00")
		text = strings.TrimPrefix(text, name+": ")
		remedy := "install the NVIDIA driver, or in a container ask for a GPU (docker run --gpus all); " +
			"on a machine without a GPU use the softgpu driver"
		if name != defaultLibrary {
			remedy = fmt.Sprintf("%s=%s must name an NVIDIA driver library", LibraryVariable, name)
		}
		return nil, noDriver(fmt.Errorf("load %s: %s", name, text), remedy)
	}
	return &driver{api: api, library: name}, nil
}

// init initialises the driver and makes sure that it has a device.
func (d *driver) init() error {
	if r := cuda.Result(C.lc_init(d.api)); r != cuda.Success {
		return noDriver(fmt.Errorf("%s: %w", d.library, cuda.Err("cuInit", r)), remedyForInit(r))
	}
	version := C.lc_driver_version(d.api)
	if r := cuda.Result(version.code); r != cuda.Success {
		return noDriver(fmt.Errorf("%s: %w", d.library, cuda.Err("cuDriverGetVersion", r)), remedyForInit(r))
	}
	d.version = fmt.Sprintf("CUDA %d.%d", version.value/1000, version.value%1000/10)
	count, err := d.DeviceGetCount()
	if err != nil {
		var call *cuda.CallError
		errors.As(err, &call)
		return noDriver(fmt.Errorf("%s: %w", d.library, err), remedyForInit(call.Result))
	}
	if count == 0 {
		return noDriver(fmt.Errorf("%s: %w", d.library, cuda.Err("cuDeviceGetCount", cuda.ErrorNoDevice)),
			remedyForInit(cuda.ErrorNoDevice))
	}
	return nil
}

func (d *driver) Name() string { return "libcuda" }

// kernelVersionFile is where the loaded kernel module says its version.
const kernelVersionFile = "/sys/module/nvidia/version"

// Version is for example "CUDA 13.0, kernel driver 580.159.04"; it goes on to
// name the symbols that the library lacks, if any.
func (d *driver) Version() string {
	s := d.version
	if b, err := os.ReadFile(kernelVersionFile); err == nil {
		s += ", kernel driver " + strings.TrimSpace(string(b))
	}
	if missing := d.MissingSymbols(); len(missing) > 0 {
		s += ", lacks " + strings.Join(missing, " ")
	}
	return s
}

// MissingSymbols lists the symbols that this driver's library lacks: the calls
// that need one return a [*MissingSymbolError].
func (d *driver) MissingSymbols() []string {
	var names []string
	for code := C.lc_missing(d.api, 0); code != 0; code = C.lc_missing(d.api, code) {
		names = append(names, C.GoString(C.lc_symbol_name(code)))
	}
	return names
}

// Close makes later calls fail with ErrorDeinitialized. What callers made, they
// must have ended before; the library stays loaded.
func (d *driver) Close() error {
	C.lc_close(d.api)
	return nil
}

// result turns what a call answered into its error.
func (d *driver) result(call string, code C.int32_t) error {
	if code == 0 {
		return nil
	}
	return d.failure(call, code)
}

func (d *driver) failure(call string, code C.int32_t) error {
	if code < 0 {
		return &MissingSymbolError{
			Call:    call,
			Symbol:  C.GoString(C.lc_symbol_name(code)),
			Library: fmt.Sprintf("%s (%s)", d.library, d.version),
		}
	}
	return cuda.Err(call, cuda.Result(code))
}
