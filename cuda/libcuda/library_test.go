//go:build cgo

package libcuda_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/libcuda"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestS37NoUsableLibrary: whatever is wrong with the library is ErrNoDriver,
// with the cause in its words and what to do.
func TestS37NoUsableLibrary(t *testing.T) {
	dir := t.TempDir()
	noLibrary := filepath.Join(dir, "text.so")
	require.NoError(t, os.WriteFile(noLibrary, []byte("no library"), 0o600))
	for _, c := range []struct {
		name    string
		library string
		says    []string
	}{
		{"none", filepath.Join(dir, "absent.so"), []string{"absent.so", "No such file"}},
		{"none by name", "libgpurma-absent.so.1", []string{"libgpurma-absent.so.1", "cannot open shared object file"}},
		{"no library", noLibrary, []string{"text.so", "file too short"}},
		{"a directory", dir, []string{dir}},
		{"another library", "libc.so.6", []string{"libc.so.6: no symbol cuInit"}},
		{"one without a required symbol", buildFake(t, fakeOptions{lacks: []string{"cuCtxPopCurrent_v2"}}),
			[]string{"no symbol cuCtxPopCurrent_v2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			setLibrary(t, c.library)
			drv, err := libcuda.Open()
			require.ErrorIs(t, err, cuda.ErrNoDriver)
			require.Nil(t, drv)
			for _, text := range append(c.says, libcuda.LibraryVariable) {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

// TestNoDefaultLibrary is for machines without a driver, where it shows what
// their user reads.
func TestNoDefaultLibrary(t *testing.T) {
	setLibrary(t, "")
	drv, err := libcuda.Open()
	if err == nil {
		require.NoError(t, drv.Close())
		t.Skip("found a CUDA driver, need a machine without one")
	}
	require.ErrorIs(t, err, cuda.ErrNoDriver)
	require.ErrorContains(t, err, "libcuda.so.1")
}

// TestS37LibraryUnreadable: a library that this user may not read.
func TestS37LibraryUnreadable(t *testing.T) {
	library := buildFake(t, fakeOptions{})
	require.NoError(t, os.Chmod(library, 0))
	setLibrary(t, library)
	runtime.LockOSThread() // never unlocked: the thread gives up a power that root needs
	dropFileOverride(t)
	_, err := libcuda.Open()
	require.ErrorIs(t, err, cuda.ErrNoDriver)
	require.ErrorContains(t, err, "Permission denied")
}

// dropFileOverride takes from the calling thread what lets root read any file.
func dropFileOverride(t *testing.T) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &data[0]))
	data[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	require.NoError(t, unix.Capset(&header, &data[0]))
}

// TestS37InitFails: what cuInit answers is in the error, with what to do.
func TestS37InitFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		define string
		result cuda.Result
		says   string
	}{
		{"no device", "INIT=100", cuda.ErrorNoDevice, "CUDA_VISIBLE_DEVICES"},
		{"no device counted", "DEVICES=0", cuda.ErrorNoDevice, "CUDA_VISIBLE_DEVICES"},
		{"stub", "INIT=34", cuda.Result(34), "stub for linking"},
		{"other kernel driver", "INIT=803", cuda.ErrorSystemDriverMismatch, "different driver versions"},
		{"compatibility library", "INIT=804", cuda.ErrorCompatNotSupportedOnDev, "library path"},
		{"device node missing", "INIT=999", cuda.ErrorUnknown, "/dev/nvidia-uvm"},
		{"anything else", "INIT=2", cuda.ErrorOutOfMemory, "nvidia-smi"},
	} {
		t.Run(c.name, func(t *testing.T) {
			setLibrary(t, buildFake(t, fakeOptions{defines: []string{c.define}}))
			drv, err := libcuda.Open()
			require.ErrorIs(t, err, cuda.ErrNoDriver)
			require.ErrorIs(t, err, c.result)
			require.ErrorContains(t, err, c.says)
			require.Nil(t, drv)
			var call *cuda.CallError
			require.ErrorAs(t, err, &call)
		})
	}
}

// TestS37OldDriver: a driver from before VMM and the second UUID call works,
// says what it lacks, and refuses just the calls that need it.
func TestS37OldDriver(t *testing.T) {
	lacks := []string{"cuDeviceGetUuid_v2", "cuMemCreate", "cuMemMap"}
	f := openFake(t, fakeOptions{defines: []string{"VERSION=9020"}, lacks: lacks})
	require.Equal(t, "libcuda", f.Name())
	require.Regexp(t, `^CUDA 9\.2(, kernel driver \S+)?, lacks cuDeviceGetUuid_v2 cuMemCreate cuMemMap$`, f.Version())

	ctx, err := f.CtxCreate(1)
	require.NoError(t, err)
	o := newObjects(t, f, ctx)
	for _, c := range driverCalls {
		switch err := c.call(f, o); c.method {
		case "MemCreate", "MemMap":
			require.ErrorIs(t, err, cuda.ErrNotSupported)
			require.ErrorContains(t, err, "CUDA 9.2")
		case "DeviceGetUuid":
			uuid, err := f.DeviceGetUuid(1)
			require.NoError(t, err)
			require.Equal(t, fakeUUID(0x11), uuid, "of the first call")
		default:
			require.NoError(t, err, c.method)
		}
	}
}

// TestS37MissingSymbols: with every optional symbol gone the driver still
// opens, and each call names the one that it needs.
func TestS37MissingSymbols(t *testing.T) {
	required := map[string]bool{"cuDeviceGetCount": true}
	lacks := []string{"cuDeviceGetUuid"}
	for _, c := range driverCalls {
		if !required[c.symbol] {
			lacks = append(lacks, c.symbol)
		}
	}
	setLibrary(t, buildFake(t, fakeOptions{lacks: lacks}))
	drv, err := libcuda.Open()
	require.NoError(t, err)
	require.ElementsMatch(t, lacks, drv.(interface{ MissingSymbols() []string }).MissingSymbols())

	o := objects{ctx: 1, dst: 1, src: 1, stream: 1, event: 1} // never followed
	onThread(t, drv, nil, func() {
		for _, c := range driverCalls {
			err := c.call(drv, o)
			if required[c.symbol] {
				require.NoError(t, err, c.method)
				continue
			}
			symbol := c.symbol
			switch c.method {
			case "DeviceGetUuid": // the older call is good enough
				symbol = "cuDeviceGetUuid"
			case "PointerSetAttribute": // asks whose the memory is
				symbol = "cuPointerGetAttribute"
			}
			var missing *libcuda.MissingSymbolError
			require.ErrorAs(t, err, &missing, c.method)
			require.Equal(t, symbol, missing.Symbol)
			require.ErrorContains(t, err, symbol)
			require.ErrorIs(t, err, cuda.ErrNotSupported)
			require.ErrorIs(t, err, cuda.ErrorNotSupported)
			var call *cuda.CallError
			require.True(t, errors.As(err, &call))
			require.Equal(t, missing.Call, call.Call)
		}
	})
}

// TestClosed: after Close every call answers ErrorDeinitialized, also those
// whose symbol is missing.
func TestClosed(t *testing.T) {
	setLibrary(t, buildFake(t, fakeOptions{lacks: []string{"cuMemCreate"}}))
	drv, err := libcuda.Open()
	require.NoError(t, err)
	other, err := libcuda.Open()
	require.NoError(t, err)
	require.NoError(t, drv.Close())
	require.NoError(t, drv.Close())
	o := objects{ctx: 1, dst: 1, src: 1, stream: 1, event: 1}
	for _, c := range driverCalls {
		require.ErrorIs(t, c.call(drv, o), cuda.ErrorDeinitialized, c.method)
	}
	require.ErrorIs(t, drv.CtxPushCurrent(1), cuda.ErrorDeinitialized)
	require.ErrorIs(t, drv.CtxSetCurrent(0), cuda.ErrorDeinitialized)
	_, err = drv.CtxGetCurrent()
	require.ErrorIs(t, err, cuda.ErrorDeinitialized)
	_, err = drv.CtxPopCurrent()
	require.ErrorIs(t, err, cuda.ErrorDeinitialized)

	_, err = other.DeviceGetCount()
	require.NoError(t, err, "another one opened on the same library is not closed with it")
	require.NoError(t, other.Close())
}

// TestP10TornDown: a driver that is gone while the process ends is a result
// like another, nothing is printed and the thread's stack is not touched.
func TestP10TornDown(t *testing.T) {
	f := newContextFixture(t)
	o := newObjects(t, f, f.ctx)
	for _, c := range driverCalls {
		if !c.inContext {
			continue
		}
		times := 1
		if c.method == "EventDestroy" { // which creates one first
			times = 2
		}
		f.command("fail cuCtxPushCurrent_v2 4 %d", times)
		onThread(t, f, nil, func() { require.ErrorIs(t, c.call(f, o), cuda.ErrorDeinitialized, c.method) })
	}
}
