package cuda

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// Device is a device's ordinal among those that this process sees (CUdevice).
// Ordinals differ between processes: identify a device by its [UUID].
type Device int32

// DevicePtr is an address in device memory (CUdeviceptr). Zero is no memory.
type DevicePtr uint64

// Add returns the address n bytes further on.
func (p DevicePtr) Add(n uint64) DevicePtr { return p + DevicePtr(n) }

func (p DevicePtr) String() string { return fmt.Sprintf("%#x", uint64(p)) }

// Context names a context of this process (CUcontext). Zero is no context.
type Context uintptr

// Stream names a stream (CUstream). Zero is the NULL stream of the context
// that a call is given.
type Stream uintptr

// Event names an event (CUevent).
type Event uintptr

// MemHandle names a physical allocation made by MemCreate
// (CUmemGenericAllocationHandle).
type MemHandle uint64

// MemPool names a memory pool (CUmemoryPool).
type MemPool uintptr

// UUID identifies a physical device; it is the same in every process.
type UUID [16]byte

// String gives the form that nvidia-smi prints, "GPU-8-4-4-4-12".
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return "GPU-" + strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// IpcMemHandle is a legacy IPC handle (CUipcMemHandle). It denotes a whole
// allocation and is plain data, to be sent to another process.
type IpcMemHandle [64]byte

// IpcMemLazyEnablePeerAccess is the one flag that IpcOpenMemHandle takes.
const IpcMemLazyEnablePeerAccess = 1

// Stream and event flags.
const (
	StreamDefault      = 0
	StreamNonBlocking  = 1 // no implicit order with the NULL stream
	EventDefault       = 0
	EventDisableTiming = 2
)

// MemAttachGlobal is the flag of MemAllocManaged that makes the memory
// accessible from any stream on any device.
const MemAttachGlobal = 1

// HandleType is a kind of shareable handle (CUmemAllocationHandleType); the
// values are bits, as in PointerAttributeAllowedHandleTypes.
type HandleType uint32

const (
	HandleTypeNone    HandleType = 0
	HandleTypePosixFD HandleType = 1
	HandleTypeFabric  HandleType = 8
)

func (t HandleType) String() string {
	if t == HandleTypeNone {
		return "none"
	}
	var parts []string
	for _, k := range []struct {
		bit  HandleType
		name string
	}{{HandleTypePosixFD, "posix-fd"}, {HandleTypeFabric, "fabric"}} {
		if t&k.bit != 0 {
			parts = append(parts, k.name)
			t &^= k.bit
		}
	}
	if t != 0 {
		parts = append(parts, fmt.Sprintf("%#x", uint32(t)))
	}
	return strings.Join(parts, "|")
}

// AllocationProp says where and how MemCreate takes physical memory
// (CUmemAllocationProp, pinned device memory).
type AllocationProp struct {
	Device      Device     // the device that holds the memory
	HandleTypes HandleType // the kinds it may be exported as; HandleTypeNone for none
}

// MemPoolProp says where a pool takes its memory and how it may be exported
// (CUmemPoolProps, pinned device memory without a limit).
type MemPoolProp struct {
	Device      Device
	HandleTypes HandleType
}

// MemPoolPtrExportData describes an allocation of a shared pool to another
// process that imported the pool (CUmemPoolPtrExportData). It is plain data.
type MemPoolPtrExportData [64]byte

// AccessFlags are CUmemAccess_flags.
type AccessFlags uint32

const (
	AccessNone      AccessFlags = 0
	AccessRead      AccessFlags = 1
	AccessReadWrite AccessFlags = 3
)
