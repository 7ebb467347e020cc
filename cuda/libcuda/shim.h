// What Go calls: one function of shim.c for each method of the driver.
//
// Handles cross as integers, so that Go never holds one as a pointer, and
// results come back by value, so that no Go variable has to be passed by
// address. A code below zero stands for a missing symbol, see lc_symbol_name.

#ifndef GPURMA_LIBCUDA_SHIM_H
#define GPURMA_LIBCUDA_SHIM_H

#include <stddef.h>
#include <stdint.h>

typedef struct lc_api lc_api; // one opened library

typedef struct {
	int32_t code;
	uint64_t value;
} lc_value;

typedef struct {
	int32_t code;
	uint64_t first, second;
} lc_pair;

// lc_open loads the library of that name and looks its symbols up. On failure
// it returns NULL and the reason in message, which has room for length bytes.
// It does not call the driver.
lc_api *lc_open(const char *name, char *message, size_t length);

// lc_close makes every later call answer CUDA_ERROR_DEINITIALIZED. The table
// stays, for calls that other threads are about to make.
void lc_close(lc_api *a);

// lc_symbol_name names the symbol that a code below zero stands for.
const char *lc_symbol_name(int32_t code);

// lc_missing returns the code of the first missing symbol after the one that
// code stands for (0: from the start), or 0.
int32_t lc_missing(const lc_api *a, int32_t code);

int32_t lc_init(const lc_api *a);
lc_value lc_driver_version(const lc_api *a);

lc_value lc_device_count(const lc_api *a);
int32_t lc_device_name(const lc_api *a, int32_t dev, void *name, int32_t length);
int32_t lc_device_uuid(const lc_api *a, int32_t dev, void *uuid);
lc_value lc_device_total_mem(const lc_api *a, int32_t dev);
lc_value lc_device_attribute(const lc_api *a, int32_t attr, int32_t dev);
lc_value lc_device_can_access_peer(const lc_api *a, int32_t dev, int32_t peer);

lc_value lc_primary_retain(const lc_api *a, int32_t dev);
int32_t lc_primary_release(const lc_api *a, int32_t dev);
lc_value lc_primary_active(const lc_api *a, int32_t dev);
lc_value lc_ctx_create(const lc_api *a, int32_t dev);
int32_t lc_ctx_destroy(const lc_api *a, uintptr_t ctx);
int32_t lc_ctx_synchronize(const lc_api *a, uintptr_t ctx);
lc_value lc_ctx_device(const lc_api *a, uintptr_t ctx);

int32_t lc_ctx_push(const lc_api *a, uintptr_t ctx);
lc_value lc_ctx_pop(const lc_api *a);
lc_value lc_ctx_current(const lc_api *a);
int32_t lc_ctx_set(const lc_api *a, uintptr_t ctx);

lc_value lc_mem_alloc(const lc_api *a, uintptr_t ctx, uint64_t size);
lc_value lc_mem_alloc_managed(const lc_api *a, uintptr_t ctx, uint64_t size, uint32_t flags);
int32_t lc_mem_free(const lc_api *a, uintptr_t ctx, uint64_t ptr);
lc_pair lc_mem_info(const lc_api *a, uintptr_t ctx);
lc_pair lc_mem_range(const lc_api *a, uintptr_t ctx, uint64_t ptr);

int32_t lc_memset(const lc_api *a, uintptr_t ctx, uint64_t dst, uint8_t value, uint64_t n);
int32_t lc_copy_htod(const lc_api *a, uintptr_t ctx, uint64_t dst, const void *src, uint64_t n);
int32_t lc_copy_dtoh(const lc_api *a, uintptr_t ctx, void *dst, uint64_t src, uint64_t n);
int32_t lc_copy_dtod(const lc_api *a, uintptr_t ctx, uint64_t dst, uint64_t src, uint64_t n);
int32_t lc_memset_async(const lc_api *a, uintptr_t ctx, uint64_t dst, uint8_t value, uint64_t n, uintptr_t stream);
int32_t lc_copy_htod_async(const lc_api *a, uintptr_t ctx, uint64_t dst, const void *src, uint64_t n, uintptr_t stream);
int32_t lc_copy_dtoh_async(const lc_api *a, uintptr_t ctx, void *dst, uint64_t src, uint64_t n, uintptr_t stream);
int32_t lc_copy_dtod_async(const lc_api *a, uintptr_t ctx, uint64_t dst, uint64_t src, uint64_t n, uintptr_t stream);

lc_value lc_pointer_attribute(const lc_api *a, int32_t attr, uint64_t ptr);
int32_t lc_pointer_set_attribute(const lc_api *a, int32_t attr, uint64_t ptr, uint32_t value);

int32_t lc_ipc_get(const lc_api *a, uintptr_t ctx, uint64_t ptr, void *handle);
lc_value lc_ipc_open(const lc_api *a, uintptr_t ctx, const void *handle, uint32_t flags);
int32_t lc_ipc_close(const lc_api *a, uintptr_t ctx, uint64_t ptr);

lc_value lc_stream_create(const lc_api *a, uintptr_t ctx, uint32_t flags);
int32_t lc_stream_destroy(const lc_api *a, uintptr_t ctx, uintptr_t stream);
int32_t lc_stream_synchronize(const lc_api *a, uintptr_t ctx, uintptr_t stream);
int32_t lc_stream_query(const lc_api *a, uintptr_t ctx, uintptr_t stream);
int32_t lc_stream_wait_event(const lc_api *a, uintptr_t ctx, uintptr_t stream, uintptr_t event);

lc_value lc_event_create(const lc_api *a, uintptr_t ctx, uint32_t flags);
int32_t lc_event_destroy(const lc_api *a, uintptr_t ctx, uintptr_t event);
int32_t lc_event_record(const lc_api *a, uintptr_t ctx, uintptr_t event, uintptr_t stream);
int32_t lc_event_query(const lc_api *a, uintptr_t ctx, uintptr_t event);
int32_t lc_event_synchronize(const lc_api *a, uintptr_t ctx, uintptr_t event);

lc_value lc_vmm_granularity(const lc_api *a, int32_t dev, uint32_t handle_types);
lc_value lc_vmm_create(const lc_api *a, uintptr_t ctx, uint64_t size, int32_t dev, uint32_t handle_types);
int32_t lc_vmm_release(const lc_api *a, uintptr_t ctx, uint64_t handle);
lc_value lc_vmm_reserve(const lc_api *a, uintptr_t ctx, uint64_t size, uint64_t alignment);
int32_t lc_vmm_address_free(const lc_api *a, uintptr_t ctx, uint64_t ptr, uint64_t size);
int32_t lc_vmm_map(const lc_api *a, uintptr_t ctx, uint64_t ptr, uint64_t size, uint64_t offset, uint64_t handle);
int32_t lc_vmm_unmap(const lc_api *a, uintptr_t ctx, uint64_t ptr, uint64_t size);
int32_t lc_vmm_set_access(const lc_api *a, uintptr_t ctx, uint64_t ptr, uint64_t size, int32_t dev, uint32_t flags);
lc_value lc_vmm_retain(const lc_api *a, uintptr_t ctx, uint64_t ptr);
lc_value lc_vmm_export_fd(const lc_api *a, uintptr_t ctx, uint64_t handle);
lc_value lc_vmm_import_fd(const lc_api *a, uintptr_t ctx, int32_t fd);

lc_value lc_pool_create(const lc_api *a, uintptr_t ctx, int32_t dev, uint32_t handle_types);
int32_t lc_pool_destroy(const lc_api *a, uintptr_t ctx, uintptr_t pool);
int32_t lc_pool_trim(const lc_api *a, uintptr_t ctx, uintptr_t pool, uint64_t keep);
int32_t lc_pool_set_access(const lc_api *a, uintptr_t ctx, uintptr_t pool, int32_t dev, uint32_t flags);
lc_value lc_pool_export_fd(const lc_api *a, uintptr_t ctx, uintptr_t pool);
lc_value lc_pool_import_fd(const lc_api *a, uintptr_t ctx, int32_t fd);
int32_t lc_pool_export_pointer(const lc_api *a, uintptr_t ctx, uint64_t ptr, void *data);
lc_value lc_pool_import_pointer(const lc_api *a, uintptr_t ctx, uintptr_t pool, void *data);
lc_value lc_pool_alloc(const lc_api *a, uintptr_t ctx, uint64_t size, uintptr_t pool, uintptr_t stream);
int32_t lc_free_async(const lc_api *a, uintptr_t ctx, uint64_t ptr, uintptr_t stream);

#endif
