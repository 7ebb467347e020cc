//go:build cgo

#include "scope.h"

int32_t lc_init(const lc_api *a) { return CALL(a, cuInit, 0); }

lc_value lc_driver_version(const lc_api *a)
{
	int version = 0;
	CUresult r = CALL(a, cuDriverGetVersion, &version);
	return VALUE(r, version);
}

// Devices

lc_value lc_device_count(const lc_api *a)
{
	int count = 0;
	CUresult r = CALL(a, cuDeviceGetCount, &count);
	return VALUE(r, count);
}

int32_t lc_device_name(const lc_api *a, int32_t dev, void *name, int32_t length)
{
	return CALL(a, cuDeviceGetName, name, length, dev);
}

// The second version tells the parts of one device (MIG) apart; before it came,
// there were none.
int32_t lc_device_uuid(const lc_api *a, int32_t dev, void *uuid)
{
	if (a->cuDeviceGetUuid_v2 != NULL)
		return CALL(a, cuDeviceGetUuid_v2, uuid, dev);
	return CALL(a, cuDeviceGetUuid, uuid, dev);
}

lc_value lc_device_total_mem(const lc_api *a, int32_t dev)
{
	size_t bytes = 0;
	CUresult r = CALL(a, cuDeviceTotalMem_v2, &bytes, dev);
	return VALUE(r, bytes);
}

lc_value lc_device_attribute(const lc_api *a, int32_t attr, int32_t dev)
{
	int value = 0;
	CUresult r = CALL(a, cuDeviceGetAttribute, &value, attr, dev);
	return VALUE(r, (int64_t)value);
}

lc_value lc_device_can_access_peer(const lc_api *a, int32_t dev, int32_t peer)
{
	int can = 0;
	CUresult r = CALL(a, cuDeviceCanAccessPeer, &can, dev, peer);
	return VALUE(r, can != 0);
}

// Contexts

lc_value lc_primary_retain(const lc_api *a, int32_t dev)
{
	CUcontext ctx = NULL;
	CUresult r = CALL(a, cuDevicePrimaryCtxRetain, &ctx, dev);
	return VALUE(r, (uintptr_t)ctx);
}

int32_t lc_primary_release(const lc_api *a, int32_t dev) { return CALL(a, cuDevicePrimaryCtxRelease_v2, dev); }

lc_value lc_primary_active(const lc_api *a, int32_t dev)
{
	unsigned int flags = 0;
	int active = 0;
	CUresult r = CALL(a, cuDevicePrimaryCtxGetState, dev, &flags, &active);
	return VALUE(r, active != 0);
}

// The driver leaves a new context current: leaving the scope takes it off.
lc_value lc_ctx_create(const lc_api *a, int32_t dev)
{
	CUcontext ctx = NULL;
	lc_scope s = {0};
	s.known = a->cuCtxGetCurrent(&s.before) == CUDA_SUCCESS;
	CUresult r = CALL(a, cuCtxCreate_v2, &ctx, 0, dev);
	if (r == CUDA_SUCCESS) {
		s.ctx = ctx;
		r = lc_leave(a, &s, r);
	}
	return VALUE(r, (uintptr_t)ctx);
}

int32_t lc_ctx_destroy(const lc_api *a, uintptr_t ctx) { return CALL(a, cuCtxDestroy_v2, (CUcontext)ctx); }

int32_t lc_ctx_synchronize(const lc_api *a, uintptr_t ctx) { return CALL_IN(a, ctx, cuCtxSynchronize); }

lc_value lc_ctx_device(const lc_api *a, uintptr_t ctx)
{
	CUdevice dev = 0;
	CUresult r = CALL_IN(a, ctx, cuCtxGetDevice, &dev);
	return VALUE(r, dev);
}

// The thread's own stack

int32_t lc_ctx_push(const lc_api *a, uintptr_t ctx) { return CALL(a, cuCtxPushCurrent_v2, (CUcontext)ctx); }

lc_value lc_ctx_pop(const lc_api *a)
{
	CUcontext ctx = NULL;
	CUresult r = CALL(a, cuCtxPopCurrent_v2, &ctx);
	return VALUE(r, (uintptr_t)ctx);
}

lc_value lc_ctx_current(const lc_api *a)
{
	CUcontext ctx = NULL;
	CUresult r = CALL(a, cuCtxGetCurrent, &ctx);
	return VALUE(r, (uintptr_t)ctx);
}

int32_t lc_ctx_set(const lc_api *a, uintptr_t ctx) { return CALL(a, cuCtxSetCurrent, (CUcontext)ctx); }

// Memory

lc_value lc_mem_alloc(const lc_api *a, uintptr_t ctx, uint64_t size)
{
	CUdeviceptr ptr = 0;
	CUresult r = CALL_IN(a, ctx, cuMemAlloc_v2, &ptr, size);
	return VALUE(r, ptr);
}

lc_value lc_mem_alloc_managed(const lc_api *a, uintptr_t ctx, uint64_t size, uint32_t flags)
{
	CUdeviceptr ptr = 0;
	CUresult r = CALL_IN(a, ctx, cuMemAllocManaged, &ptr, size, flags);
	return VALUE(r, ptr);
}

int32_t lc_mem_free(const lc_api *a, uintptr_t ctx, uint64_t ptr) { return CALL_IN(a, ctx, cuMemFree_v2, ptr); }

lc_pair lc_mem_info(const lc_api *a, uintptr_t ctx)
{
	size_t free = 0, total = 0;
	CUresult r = CALL_IN(a, ctx, cuMemGetInfo_v2, &free, &total);
	return PAIR(r, free, total);
}

lc_pair lc_mem_range(const lc_api *a, uintptr_t ctx, uint64_t ptr)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	CUresult r = CALL_IN(a, ctx, cuMemGetAddressRange_v2, &base, &size, ptr);
	return PAIR(r, base, size);
}

// Copies

int32_t lc_memset(const lc_api *a, uintptr_t ctx, uint64_t dst, uint8_t value, uint64_t n)
{
	return CALL_IN(a, ctx, cuMemsetD8_v2, dst, value, n);
}

int32_t lc_copy_htod(const lc_api *a, uintptr_t ctx, uint64_t dst, const void *src, uint64_t n)
{
	return CALL_IN(a, ctx, cuMemcpyHtoD_v2, dst, src, n);
}

int32_t lc_copy_dtoh(const lc_api *a, uintptr_t ctx, void *dst, uint64_t src, uint64_t n)
{
	return CALL_IN(a, ctx, cuMemcpyDtoH_v2, dst, src, n);
}

int32_t lc_copy_dtod(const lc_api *a, uintptr_t ctx, uint64_t dst, uint64_t src, uint64_t n)
{
	return CALL_IN(a, ctx, cuMemcpyDtoD_v2, dst, src, n);
}

int32_t lc_memset_async(const lc_api *a, uintptr_t ctx, uint64_t dst, uint8_t value, uint64_t n, uintptr_t stream)
{
	return CALL_IN(a, ctx, cuMemsetD8Async, dst, value, n, (CUstream)stream);
}

int32_t lc_copy_htod_async(const lc_api *a, uintptr_t ctx, uint64_t dst, const void *src, uint64_t n, uintptr_t stream)
{
	return CALL_IN(a, ctx, cuMemcpyHtoDAsync_v2, dst, src, n, (CUstream)stream);
}

int32_t lc_copy_dtoh_async(const lc_api *a, uintptr_t ctx, void *dst, uint64_t src, uint64_t n, uintptr_t stream)
{
	return CALL_IN(a, ctx, cuMemcpyDtoHAsync_v2, dst, src, n, (CUstream)stream);
}

int32_t lc_copy_dtod_async(const lc_api *a, uintptr_t ctx, uint64_t dst, uint64_t src, uint64_t n, uintptr_t stream)
{
	return CALL_IN(a, ctx, cuMemcpyDtoDAsync_v2, dst, src, n, (CUstream)stream);
}

// Pointers

// The driver writes one, four or eight bytes, by attribute. Into zeroed memory
// each of them reads as the same little-endian number.
lc_value lc_pointer_attribute(const lc_api *a, int32_t attr, uint64_t ptr)
{
	uint64_t room[2] = {0};
	CUresult r = CALL(a, cuPointerGetAttribute, room, attr, ptr);
	return VALUE(r, room[0]);
}

// Set in the context that owns the memory, since drivers have wanted a current
// one here; memory that none owns is set as the thread stands.
int32_t lc_pointer_set_attribute(const lc_api *a, int32_t attr, uint64_t ptr, uint32_t value)
{
	lc_value owner = lc_pointer_attribute(a, CU_POINTER_ATTRIBUTE_CONTEXT, ptr);
	if (owner.code != CUDA_SUCCESS)
		return owner.code;
	if (owner.value == 0)
		return CALL(a, cuPointerSetAttribute, &value, attr, ptr);
	return CALL_IN(a, owner.value, cuPointerSetAttribute, &value, attr, ptr);
}

// IPC

int32_t lc_ipc_get(const lc_api *a, uintptr_t ctx, uint64_t ptr, void *handle)
{
	return CALL_IN(a, ctx, cuIpcGetMemHandle, handle, ptr);
}

lc_value lc_ipc_open(const lc_api *a, uintptr_t ctx, const void *handle, uint32_t flags)
{
	CUdeviceptr ptr = 0;
	CUresult r = CALL_IN(a, ctx, cuIpcOpenMemHandle_v2, &ptr, *(const CUipcMemHandle *)handle, flags);
	return VALUE(r, ptr);
}

int32_t lc_ipc_close(const lc_api *a, uintptr_t ctx, uint64_t ptr) { return CALL_IN(a, ctx, cuIpcCloseMemHandle, ptr); }

// Streams and events

lc_value lc_stream_create(const lc_api *a, uintptr_t ctx, uint32_t flags)
{
	CUstream stream = NULL;
	CUresult r = CALL_IN(a, ctx, cuStreamCreate, &stream, flags);
	return VALUE(r, (uintptr_t)stream);
}

int32_t lc_stream_destroy(const lc_api *a, uintptr_t ctx, uintptr_t stream)
{
	return CALL_IN(a, ctx, cuStreamDestroy_v2, (CUstream)stream);
}

int32_t lc_stream_synchronize(const lc_api *a, uintptr_t ctx, uintptr_t stream)
{
	return CALL_IN(a, ctx, cuStreamSynchronize, (CUstream)stream);
}

int32_t lc_stream_query(const lc_api *a, uintptr_t ctx, uintptr_t stream)
{
	return CALL_IN(a, ctx, cuStreamQuery, (CUstream)stream);
}

int32_t lc_stream_wait_event(const lc_api *a, uintptr_t ctx, uintptr_t stream, uintptr_t event)
{
	return CALL_IN(a, ctx, cuStreamWaitEvent, (CUstream)stream, (CUevent)event, 0);
}

lc_value lc_event_create(const lc_api *a, uintptr_t ctx, uint32_t flags)
{
	CUevent event = NULL;
	CUresult r = CALL_IN(a, ctx, cuEventCreate, &event, flags);
	return VALUE(r, (uintptr_t)event);
}

int32_t lc_event_destroy(const lc_api *a, uintptr_t ctx, uintptr_t event)
{
	return CALL_IN(a, ctx, cuEventDestroy_v2, (CUevent)event);
}

int32_t lc_event_record(const lc_api *a, uintptr_t ctx, uintptr_t event, uintptr_t stream)
{
	return CALL_IN(a, ctx, cuEventRecord, (CUevent)event, (CUstream)stream);
}

int32_t lc_event_query(const lc_api *a, uintptr_t ctx, uintptr_t event)
{
	return CALL_IN(a, ctx, cuEventQuery, (CUevent)event);
}

int32_t lc_event_synchronize(const lc_api *a, uintptr_t ctx, uintptr_t event)
{
	return CALL_IN(a, ctx, cuEventSynchronize, (CUevent)event);
}
