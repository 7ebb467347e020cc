// The part of the CUDA driver's binary interface that this package calls.
// Types and layouts are those of x86-64 and arm64 Linux, where they are fixed:
// the driver keeps every symbol and its signature for good, and gives a changed
// one a new name (_v2).

#ifndef GPURMA_LIBCUDA_ABI_H
#define GPURMA_LIBCUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUmemPoolHandle_st *CUmemoryPool;

// Enumerations in CUDA's own header, none with a value below zero.
typedef int CUresult;
typedef int CUdevice_attribute;
typedef int CUpointer_attribute;
typedef int CUmemLocationType;
typedef int CUmemAllocationType;
typedef int CUmemAllocationHandleType;
typedef int CUmemAllocationGranularity_flags;
typedef int CUmemAccess_flags;

typedef struct {
	char bytes[16];
} CUuuid;

typedef struct {
	char reserved[64];
} CUipcMemHandle;

typedef struct {
	CUmemLocationType type;
	int id;
} CUmemLocation;

typedef struct {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct {
	CUmemAllocationType allocType;
	CUmemAllocationHandleType handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
	unsigned char reserved[64];
} CUmemPoolPtrExportData;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_INVALID_CONTEXT = 201,

	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
};

#include "layout.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "attributes are read as zero-extended little-endian");

#endif
