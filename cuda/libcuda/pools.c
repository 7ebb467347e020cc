//go:build cgo

#include "scope.h"

lc_value lc_pool_create(const lc_api *a, uintptr_t ctx, int32_t dev, uint32_t handle_types)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = (int)handle_types,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev},
	};
	CUmemoryPool pool = NULL;
	CUresult r = CALL_IN(a, ctx, cuMemPoolCreate, &pool, &props);
	return VALUE(r, (uintptr_t)pool);
}

int32_t lc_pool_destroy(const lc_api *a, uintptr_t ctx, uintptr_t pool)
{
	return CALL_IN(a, ctx, cuMemPoolDestroy, (CUmemoryPool)pool);
}

int32_t lc_pool_trim(const lc_api *a, uintptr_t ctx, uintptr_t pool, uint64_t keep)
{
	return CALL_IN(a, ctx, cuMemPoolTrimTo, (CUmemoryPool)pool, keep);
}

int32_t lc_pool_set_access(const lc_api *a, uintptr_t ctx, uintptr_t pool, int32_t dev, uint32_t flags)
{
	CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev}, .flags = (int)flags};
	return CALL_IN(a, ctx, cuMemPoolSetAccess, (CUmemoryPool)pool, &desc, 1);
}

lc_value lc_pool_export_fd(const lc_api *a, uintptr_t ctx, uintptr_t pool)
{
	int fd = -1;
	CUresult r = CALL_IN(a, ctx, cuMemPoolExportToShareableHandle, &fd, (CUmemoryPool)pool,
			     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	return VALUE(r, fd);
}

// A descriptor is imported by its number, in the place of a pointer.
lc_value lc_pool_import_fd(const lc_api *a, uintptr_t ctx, int32_t fd)
{
	CUmemoryPool pool = NULL;
	CUresult r = CALL_IN(a, ctx, cuMemPoolImportFromShareableHandle, &pool, (void *)(intptr_t)fd,
			     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	return VALUE(r, (uintptr_t)pool);
}

int32_t lc_pool_export_pointer(const lc_api *a, uintptr_t ctx, uint64_t ptr, void *data)
{
	return CALL_IN(a, ctx, cuMemPoolExportPointer, data, ptr);
}

lc_value lc_pool_import_pointer(const lc_api *a, uintptr_t ctx, uintptr_t pool, void *data)
{
	CUdeviceptr ptr = 0;
	CUresult r = CALL_IN(a, ctx, cuMemPoolImportPointer, &ptr, (CUmemoryPool)pool, data);
	return VALUE(r, ptr);
}

lc_value lc_pool_alloc(const lc_api *a, uintptr_t ctx, uint64_t size, uintptr_t pool, uintptr_t stream)
{
	CUdeviceptr ptr = 0;
	CUresult r = CALL_IN(a, ctx, cuMemAllocFromPoolAsync, &ptr, size, (CUmemoryPool)pool, (CUstream)stream);
	return VALUE(r, ptr);
}

int32_t lc_free_async(const lc_api *a, uintptr_t ctx, uint64_t ptr, uintptr_t stream)
{
	return CALL_IN(a, ctx, cuMemFreeAsync, ptr, (CUstream)stream);
}
