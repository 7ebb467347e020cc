// Every driver function that this package calls, by the name it has in the
// library. Each includer defines REQUIRED and OPTIONAL, both (name, parameters):
// without a required symbol a library is no usable CUDA driver; an optional one
// is missed only by the calls that need it.

REQUIRED(cuInit, (unsigned int flags))
REQUIRED(cuDriverGetVersion, (int *version))
REQUIRED(cuDeviceGetCount, (int *count))
REQUIRED(cuCtxPushCurrent_v2, (CUcontext ctx))
REQUIRED(cuCtxPopCurrent_v2, (CUcontext *ctx))
REQUIRED(cuCtxGetCurrent, (CUcontext *ctx))
REQUIRED(cuCtxSetCurrent, (CUcontext ctx))

OPTIONAL(cuDeviceGetName, (char *name, int length, CUdevice dev))
OPTIONAL(cuDeviceGetUuid, (CUuuid *uuid, CUdevice dev))
OPTIONAL(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice dev))
OPTIONAL(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice dev))
OPTIONAL(cuDeviceGetAttribute, (int *value, CUdevice_attribute attr, CUdevice dev))
OPTIONAL(cuDeviceCanAccessPeer, (int *can, CUdevice dev, CUdevice peer))

OPTIONAL(cuDevicePrimaryCtxRetain, (CUcontext *ctx, CUdevice dev))
OPTIONAL(cuDevicePrimaryCtxRelease_v2, (CUdevice dev))
OPTIONAL(cuDevicePrimaryCtxGetState, (CUdevice dev, unsigned int *flags, int *active))
OPTIONAL(cuCtxCreate_v2, (CUcontext *ctx, unsigned int flags, CUdevice dev))
OPTIONAL(cuCtxDestroy_v2, (CUcontext ctx))
OPTIONAL(cuCtxSynchronize, (void))
OPTIONAL(cuCtxGetDevice, (CUdevice *dev))

OPTIONAL(cuMemAlloc_v2, (CUdeviceptr *ptr, size_t size))
OPTIONAL(cuMemAllocManaged, (CUdeviceptr *ptr, size_t size, unsigned int flags))
OPTIONAL(cuMemFree_v2, (CUdeviceptr ptr))
OPTIONAL(cuMemGetInfo_v2, (size_t *free, size_t *total))
OPTIONAL(cuMemGetAddressRange_v2, (CUdeviceptr *base, size_t *size, CUdeviceptr ptr))

OPTIONAL(cuMemsetD8_v2, (CUdeviceptr dst, unsigned char value, size_t n))
OPTIONAL(cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t n))
OPTIONAL(cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t n))
OPTIONAL(cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t n))
OPTIONAL(cuMemsetD8Async, (CUdeviceptr dst, unsigned char value, size_t n, CUstream stream))
OPTIONAL(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void *src, size_t n, CUstream stream))
OPTIONAL(cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t n, CUstream stream))
OPTIONAL(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream))

OPTIONAL(cuPointerGetAttribute, (void *value, CUpointer_attribute attr, CUdeviceptr ptr))
OPTIONAL(cuPointerSetAttribute, (const void *value, CUpointer_attribute attr, CUdeviceptr ptr))

OPTIONAL(cuIpcGetMemHandle, (CUipcMemHandle *handle, CUdeviceptr ptr))
OPTIONAL(cuIpcOpenMemHandle_v2, (CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags))
OPTIONAL(cuIpcCloseMemHandle, (CUdeviceptr ptr))

OPTIONAL(cuStreamCreate, (CUstream *stream, unsigned int flags))
OPTIONAL(cuStreamDestroy_v2, (CUstream stream))
OPTIONAL(cuStreamSynchronize, (CUstream stream))
OPTIONAL(cuStreamQuery, (CUstream stream))
OPTIONAL(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags))

OPTIONAL(cuEventCreate, (CUevent *event, unsigned int flags))
OPTIONAL(cuEventDestroy_v2, (CUevent event))
OPTIONAL(cuEventRecord, (CUevent event, CUstream stream))
OPTIONAL(cuEventQuery, (CUevent event))
OPTIONAL(cuEventSynchronize, (CUevent event))

OPTIONAL(cuMemGetAllocationGranularity, (size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option))
OPTIONAL(cuMemCreate, (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags))
OPTIONAL(cuMemRelease, (CUmemGenericAllocationHandle handle))
OPTIONAL(cuMemAddressReserve, (CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags))
OPTIONAL(cuMemAddressFree, (CUdeviceptr ptr, size_t size))
OPTIONAL(cuMemMap, (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags))
OPTIONAL(cuMemUnmap, (CUdeviceptr ptr, size_t size))
OPTIONAL(cuMemSetAccess, (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count))
OPTIONAL(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *handle, void *addr))
OPTIONAL(cuMemExportToShareableHandle, (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags))
OPTIONAL(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type))
