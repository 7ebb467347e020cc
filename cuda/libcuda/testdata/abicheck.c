// Compiles where this package and CUDA's own header agree: on every function's
// type, every layout and every constant.

#define __CUDA_API_VERSION_INTERNAL // old names are declared, new ones not mapped
#include <cuda.h>
#include <stddef.h>

#include "layout.h"

#define REQUIRED(name, parameters) \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&name), CUresult(*) parameters), #name);
#define OPTIONAL(name, parameters) REQUIRED(name, parameters)
#include "symbols.h"

_Static_assert(sizeof(CUresult) == 4 && sizeof(CUpointer_attribute) == 4 && sizeof(CUdevice_attribute) == 4, "enums");
_Static_assert(sizeof(CUmemAllocationHandleType) == 4 && sizeof(CUmemAccess_flags) == 4, "enums");
_Static_assert(CU_MEM_LOCATION_TYPE_DEVICE == 1 && CU_MEM_ALLOCATION_TYPE_PINNED == 1, "memory");
_Static_assert(CU_MEM_ALLOC_GRANULARITY_MINIMUM == 0 && CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR == 1, "memory");
_Static_assert(CU_MEM_ACCESS_FLAGS_PROT_READ == 1 && CU_MEM_ACCESS_FLAGS_PROT_READWRITE == 3, "access");

_Static_assert(CU_POINTER_ATTRIBUTE_CONTEXT == 1, "context");
_Static_assert(CU_POINTER_ATTRIBUTE_MEMORY_TYPE == 2, "memory type");
_Static_assert(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS == 6, "SYNC_MEMOPS");
_Static_assert(CU_POINTER_ATTRIBUTE_BUFFER_ID == 7, "buffer id");
_Static_assert(CU_POINTER_ATTRIBUTE_IS_MANAGED == 8, "managed");
_Static_assert(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL == 9, "ordinal");
_Static_assert(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE == 10, "legacy IPC");
_Static_assert(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR == 11 && CU_POINTER_ATTRIBUTE_RANGE_SIZE == 12, "range");
_Static_assert(CU_POINTER_ATTRIBUTE_MAPPED == 13, "mapped");
_Static_assert(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES == 14, "handle types");

_Static_assert(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == 16, "multiprocessors");
_Static_assert(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID == 33 && CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID == 50, "PCI");
_Static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == 75, "capability");
_Static_assert(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY == 83, "managed");
_Static_assert(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED == 102, "VMM");
_Static_assert(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED == 103, "POSIX fd");
_Static_assert(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED == 115, "pools");
_Static_assert(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES == 119, "pool handles");
_Static_assert(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED == 128, "fabric");

_Static_assert(CUDA_ERROR_DEINITIALIZED == 4 && CUDA_ERROR_STUB_LIBRARY == 34, "results");
_Static_assert(CUDA_ERROR_ALREADY_MAPPED == 208 && CUDA_ERROR_INVALID_CONTEXT == 201, "results");
_Static_assert(CUDA_ERROR_NOT_READY == 600 && CUDA_ERROR_CONTEXT_IS_DESTROYED == 709, "results");
_Static_assert(CUDA_ERROR_NOT_PERMITTED == 800 && CUDA_ERROR_NOT_SUPPORTED == 801, "results");
_Static_assert(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH == 803, "results");
_Static_assert(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE == 804, "results");
