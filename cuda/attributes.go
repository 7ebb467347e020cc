package cuda

// PointerAttribute is a CUpointer_attribute. Every value fits 64 bits; booleans
// are 0 or 1.
type PointerAttribute int32

const (
	// PointerAttributeContext is the context that owns the memory; 0 where
	// none does (memory mapped by the VMM calls).
	PointerAttributeContext PointerAttribute = 1
	// PointerAttributeMemoryType is a [MemoryType].
	PointerAttributeMemoryType PointerAttribute = 2
	// PointerAttributeSyncMemops can be set, by PointerSetAttribute: copies and
	// memsets of this memory then complete before they return.
	PointerAttributeSyncMemops PointerAttribute = 6
	// PointerAttributeBufferID identifies the allocation in this process for
	// the process's life; an address that is allocated again gets a new one.
	PointerAttributeBufferID PointerAttribute = 7
	// PointerAttributeIsManaged is 1 for memory from MemAllocManaged.
	PointerAttributeIsManaged PointerAttribute = 8
	// PointerAttributeDeviceOrdinal is the [Device] the memory is on.
	PointerAttributeDeviceOrdinal PointerAttribute = 9
	// PointerAttributeIsLegacyIpcCapable is 1 where IpcGetMemHandle works.
	PointerAttributeIsLegacyIpcCapable PointerAttribute = 10
	// PointerAttributeRangeStart and RangeSize give the mapping's base and
	// length.
	PointerAttributeRangeStart PointerAttribute = 11
	PointerAttributeRangeSize  PointerAttribute = 12
	// PointerAttributeMapped is 1 while the address is backed by memory.
	PointerAttributeMapped PointerAttribute = 13
	// PointerAttributeAllowedHandleTypes is a mask of [HandleType].
	PointerAttributeAllowedHandleTypes PointerAttribute = 14
)

// MemoryType says what kind of memory an address names (CUmemorytype).
type MemoryType uint64

const (
	MemoryTypeHost    MemoryType = 1
	MemoryTypeDevice  MemoryType = 2
	MemoryTypeUnified MemoryType = 4
)

// DeviceAttribute is a CUdevice_attribute.
type DeviceAttribute int32

const (
	DeviceAttributeMultiprocessorCount       DeviceAttribute = 16
	DeviceAttributeIntegrated                DeviceAttribute = 18
	DeviceAttributeComputeMode               DeviceAttribute = 20
	DeviceAttributePCIBusID                  DeviceAttribute = 33
	DeviceAttributeUnifiedAddressing         DeviceAttribute = 41
	DeviceAttributePCIDomainID               DeviceAttribute = 50
	DeviceAttributeComputeCapabilityMajor    DeviceAttribute = 75
	DeviceAttributeComputeCapabilityMinor    DeviceAttribute = 76
	DeviceAttributeManagedMemory             DeviceAttribute = 83
	DeviceAttributeVirtualMemoryManagement   DeviceAttribute = 102
	DeviceAttributeHandleTypePosixFD         DeviceAttribute = 103
	DeviceAttributeMemoryPoolsSupported      DeviceAttribute = 115
	DeviceAttributeMempoolSupportedHandles   DeviceAttribute = 119
	DeviceAttributeHandleTypeFabricSupported DeviceAttribute = 128
)
