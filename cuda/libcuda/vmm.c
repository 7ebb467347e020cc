//go:build cgo

#include "scope.h"

static CUmemAllocationProp device_memory(int32_t dev, uint32_t handle_types)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = (int)handle_types,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev},
	};
}

lc_value lc_vmm_granularity(const lc_api *a, int32_t dev, uint32_t handle_types)
{
	CUmemAllocationProp prop = device_memory(dev, handle_types);
	size_t bytes = 0;
	CUresult r = CALL(a, cuMemGetAllocationGranularity, &bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	return VALUE(r, bytes);
}

lc_value lc_vmm_create(const lc_api *a, uintptr_t ctx, uint64_t size, int32_t dev, uint32_t handle_types)
{
	CUmemAllocationProp prop = device_memory(dev, handle_types);
	CUmemGenericAllocationHandle handle = 0;
	CUresult r = CALL_IN(a, ctx, cuMemCreate, &handle, size, &prop, 0);
	return VALUE(r, handle);
}

int32_t lc_vmm_release(const lc_api *a, uintptr_t ctx, uint64_t handle)
{
	return CALL_IN(a, ctx, cuMemRelease, handle);
}

lc_value lc_vmm_reserve(const lc_api *a, uintptr_t ctx, uint64_t size, uint64_t alignment)
{
	CUdeviceptr ptr = 0;
	CUresult r = CALL_IN(a, ctx, cuMemAddressReserve, &ptr, size, alignment, 0, 0);
	return VALUE(r, ptr);
}

int32_t lc_vmm_address_free(const lc_api *a, uintptr_t ctx, uint64_t ptr, uint64_t size)
{
	return CALL_IN(a, ctx, cuMemAddressFree, ptr, size);
}

int32_t lc_vmm_map(const lc_api *a, uintptr_t ctx, uint64_t ptr, uint64_t size, uint64_t offset, uint64_t handle)
{
	return CALL_IN(a, ctx, cuMemMap, ptr, size, offset, handle, 0);
}

int32_t lc_vmm_unmap(const lc_api *a, uintptr_t ctx, uint64_t ptr, uint64_t size)
{
	return CALL_IN(a, ctx, cuMemUnmap, ptr, size);
}

int32_t lc_vmm_set_access(const lc_api *a, uintptr_t ctx, uint64_t ptr, uint64_t size, int32_t dev, uint32_t flags)
{
	CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev}, .flags = (int)flags};
	return CALL_IN(a, ctx, cuMemSetAccess, ptr, size, &desc, 1);
}

lc_value lc_vmm_retain(const lc_api *a, uintptr_t ctx, uint64_t ptr)
{
	CUmemGenericAllocationHandle handle = 0;
	CUresult r = CALL_IN(a, ctx, cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)ptr);
	return VALUE(r, handle);
}

lc_value lc_vmm_export_fd(const lc_api *a, uintptr_t ctx, uint64_t handle)
{
	int fd = -1;
	CUresult r = CALL_IN(a, ctx, cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	return VALUE(r, fd);
}

// A descriptor is imported by its number, in the place of a pointer.
lc_value lc_vmm_import_fd(const lc_api *a, uintptr_t ctx, int32_t fd)
{
	CUmemGenericAllocationHandle handle = 0;
	CUresult r = CALL_IN(a, ctx, cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd,
			     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	return VALUE(r, handle);
}
