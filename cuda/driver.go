package cuda

// Driver is the CUDA driver API as this module needs it.
type Driver interface {
	Platform
	Devices
	Contexts
	CurrentContext
	Memory
	Copies
	Pointers
	IPC
	Streams
	Managed
	VirtualMemory
	MemoryPools
}

// Platform is what a driver says of itself.
type Platform interface {
	// Name is "libcuda" or "softgpu".
	Name() string
	// Version describes the driver for a log line: for libcuda the CUDA version
	// and the kernel driver's, for softgpu the node.
	Version() string
	// Close gives back what opening the driver took. Calls made afterwards
	// fail with ErrorDeinitialized. Close is idempotent.
	Close() error
}

// Devices asks about the devices that this process sees.
type Devices interface {
	DeviceGetCount() (int, error)
	DeviceGetName(dev Device) (string, error)
	DeviceGetUuid(dev Device) (UUID, error)
	// DeviceTotalMem is the device's memory in bytes.
	DeviceTotalMem(dev Device) (uint64, error)
	DeviceGetAttribute(attr DeviceAttribute, dev Device) (int, error)
	// DeviceCanAccessPeer tells whether dev can reach the memory of peer.
	DeviceCanAccessPeer(dev, peer Device) (bool, error)
}

// Contexts makes and ends contexts. The primary context of a device is shared
// by everything in the process and lives from the first Retain to the last
// Release.
type Contexts interface {
	DevicePrimaryCtxRetain(dev Device) (Context, error)
	DevicePrimaryCtxRelease(dev Device) error
	// DevicePrimaryCtxGetState tells whether the primary context is alive; it
	// does not create it.
	DevicePrimaryCtxGetState(dev Device) (active bool, err error)
	// CtxCreate makes a user context, and unlike the CUDA call does not leave
	// it current on the calling thread.
	CtxCreate(dev Device) (Context, error)
	// CtxDestroy ends a user context with its memory, mappings and streams.
	CtxDestroy(ctx Context) error
	// CtxSynchronize waits for all work of the context.
	CtxSynchronize(ctx Context) error
	CtxGetDevice(ctx Context) (Device, error)
}

// CurrentContext reaches the calling thread's stack of contexts. Lock the
// goroutine to its thread first. No other method reads or changes the stack.
type CurrentContext interface {
	CtxPushCurrent(ctx Context) error
	CtxPopCurrent() (Context, error)
	// CtxGetCurrent returns 0 where the thread has no current context.
	CtxGetCurrent() (Context, error)
	// CtxSetCurrent replaces the top of the stack; 0 empties it.
	CtxSetCurrent(ctx Context) error
}

// Memory allocates device memory.
type Memory interface {
	MemAlloc(ctx Context, size uint64) (DevicePtr, error)
	// MemFree waits for work in flight in the context, then frees. Memory that
	// another process has open stays taken until that process closes it.
	MemFree(ctx Context, ptr DevicePtr) error
	// MemGetInfo returns the free and total bytes of the context's device.
	MemGetInfo(ctx Context) (free, total uint64, err error)
	// MemGetAddressRange returns base and size of the allocation, or of the
	// opened mapping, that ptr lies in.
	MemGetAddressRange(ctx Context, ptr DevicePtr) (base DevicePtr, size uint64, err error)
}

// Copies moves bytes. Calls without a stream run on the context's NULL stream;
// those that CUDA lets return early do so here too: MemsetD8 and MemcpyDtoD of
// device memory return before they are done, MemcpyDtoH does not, MemcpyHtoD
// returns when src may be reused.
type Copies interface {
	MemsetD8(ctx Context, dst DevicePtr, value byte, n uint64) error
	MemcpyHtoD(ctx Context, dst DevicePtr, src []byte) error
	MemcpyDtoH(ctx Context, dst []byte, src DevicePtr) error
	MemcpyDtoD(ctx Context, dst, src DevicePtr, n uint64) error

	MemsetD8Async(ctx Context, dst DevicePtr, value byte, n uint64, stream Stream) error
	MemcpyHtoDAsync(ctx Context, dst DevicePtr, src []byte, stream Stream) error
	MemcpyDtoHAsync(ctx Context, dst []byte, src DevicePtr, stream Stream) error
	MemcpyDtoDAsync(ctx Context, dst, src DevicePtr, n uint64, stream Stream) error
}

// Pointers asks about addresses. An address that the driver does not know is
// ErrorInvalidValue.
type Pointers interface {
	PointerGetAttribute(attr PointerAttribute, ptr DevicePtr) (uint64, error)
	// PointerSetAttribute sets PointerAttributeSyncMemops for the whole
	// allocation that ptr lies in; no other attribute can be set.
	PointerSetAttribute(attr PointerAttribute, ptr DevicePtr, value uint64) error
}

// IPC shares memory from MemAlloc between processes.
type IPC interface {
	// IpcGetMemHandle returns the handle of the allocation that ptr lies in.
	IpcGetMemHandle(ctx Context, ptr DevicePtr) (IpcMemHandle, error)
	// IpcOpenMemHandle maps another process's allocation and returns its base
	// here. Opening twice counts; see FACTS F5, F8, F9 and F20 for refusals.
	IpcOpenMemHandle(ctx Context, handle IpcMemHandle, flags uint32) (DevicePtr, error)
	// IpcCloseMemHandle waits for copies in flight from or to the mapping.
	IpcCloseMemHandle(ctx Context, ptr DevicePtr) error
}

// Streams orders work. Queries answer ErrorNotReady while work is pending.
type Streams interface {
	StreamCreate(ctx Context, flags uint32) (Stream, error)
	StreamDestroy(ctx Context, stream Stream) error
	StreamSynchronize(ctx Context, stream Stream) error
	StreamQuery(ctx Context, stream Stream) error
	StreamWaitEvent(ctx Context, stream Stream, event Event) error

	EventCreate(ctx Context, flags uint32) (Event, error)
	EventDestroy(ctx Context, event Event) error
	EventRecord(ctx Context, event Event, stream Stream) error
	EventQuery(ctx Context, event Event) error
	EventSynchronize(ctx Context, event Event) error
}

// Managed allocates memory that the driver moves between host and devices. No
// handle can share it. It is freed by MemFree.
type Managed interface {
	MemAllocManaged(ctx Context, size uint64, flags uint32) (DevicePtr, error)
}

// VirtualMemory is the VMM part of the driver: physical memory, address ranges
// and mappings made, joined and undone one by one. Sizes and addresses are
// multiples of the granularity.
type VirtualMemory interface {
	// MemGetAllocationGranularity returns the minimum granularity in bytes.
	MemGetAllocationGranularity(prop AllocationProp) (uint64, error)
	MemCreate(ctx Context, size uint64, prop AllocationProp) (MemHandle, error)
	// MemRelease drops one reference of the handle; the memory is freed when
	// no handle, mapping or exported descriptor holds it.
	MemRelease(ctx Context, handle MemHandle) error
	MemAddressReserve(ctx Context, size, alignment uint64) (DevicePtr, error)
	MemAddressFree(ctx Context, ptr DevicePtr, size uint64) error
	MemMap(ctx Context, ptr DevicePtr, size, offset uint64, handle MemHandle) error
	MemUnmap(ctx Context, ptr DevicePtr, size uint64) error
	// MemSetAccess must precede the first access from dev.
	MemSetAccess(ctx Context, ptr DevicePtr, size uint64, dev Device, flags AccessFlags) error
	// MemRetainAllocationHandle returns the handle mapped at ptr, with one
	// more reference, for MemRelease.
	MemRetainAllocationHandle(ctx Context, ptr DevicePtr) (MemHandle, error)
	// MemExportPosixFD is cuMemExportToShareableHandle for POSIX descriptors:
	// the caller owns the descriptor, which alone keeps the memory alive.
	MemExportPosixFD(ctx Context, handle MemHandle) (fd int, err error)
	// MemImportPosixFD is cuMemImportFromShareableHandle. It does not take fd.
	MemImportPosixFD(ctx Context, fd int) (MemHandle, error)
}

// MemoryPools is the stream-ordered allocator with pools that can be shared.
// Memory freed into a pool stays with it for later allocations. What a private
// pool does not need goes back to the device when a stream, event or context is
// next waited for; what an exported one does not need goes back when its owner
// destroys it (FACTS F13).
type MemoryPools interface {
	MemPoolCreate(ctx Context, prop MemPoolProp) (MemPool, error)
	// MemPoolDestroy ends the pool, of which allocations may be left: they stay
	// valid until they are freed.
	MemPoolDestroy(ctx Context, pool MemPool) error
	// MemPoolTrimTo gives unused memory back, down to keep bytes.
	MemPoolTrimTo(ctx Context, pool MemPool, keep uint64) error
	// MemPoolSetAccess says what dev may do with all of the pool's memory. The
	// device that has the memory may read and write it without.
	MemPoolSetAccess(ctx Context, pool MemPool, dev Device, flags AccessFlags) error
	// MemPoolExportPosixFD is cuMemPoolExportToShareableHandle for POSIX
	// descriptors: the caller owns the descriptor.
	MemPoolExportPosixFD(ctx Context, pool MemPool) (fd int, err error)
	// MemPoolImportPosixFD is cuMemPoolImportFromShareableHandle. It does not
	// take fd. Nothing can be allocated from an imported pool.
	MemPoolImportPosixFD(ctx Context, fd int) (MemPool, error)
	// MemPoolExportPointer describes an allocation of an exported pool.
	MemPoolExportPointer(ctx Context, ptr DevicePtr) (MemPoolPtrExportData, error)
	// MemPoolImportPointer maps the allocation that data describes, of the pool
	// that was imported as pool. It is freed by MemFreeAsync or MemFree, which
	// CUDA wants done before the exporter's free.
	MemPoolImportPointer(ctx Context, pool MemPool, data MemPoolPtrExportData) (DevicePtr, error)
	MemAllocFromPoolAsync(ctx Context, size uint64, pool MemPool, stream Stream) (DevicePtr, error)
	// MemFreeAsync frees memory of a pool when the stream gets to it.
	MemFreeAsync(ctx Context, ptr DevicePtr, stream Stream) error
}
