// A driver library for tests. It does as little as the calls' shapes allow, but
// keeps a stack of contexts for each thread, as CUDA does, and notes every call
// that comes without the context it needs.
//
// Memory is host memory. Everything crosses the public calls: a copy to the
// address CONSOLE is a command, a copy from it is a report.
//
//   fail SYMBOL RESULT TIMES   the next calls of SYMBOL answer RESULT
//   pop keep|take RESULT       the next pop answers RESULT, having popped or not
//   gate SYMBOL                calls of SYMBOL wait; a memset of CONSOLE lets them go
//   reset                      forget the calls made so far
//
// Built with -DVERSION=n, -DDEVICES=n, -DINIT=result; symbols are left out by a
// linker version script.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef VERSION
#define VERSION 13000
#endif
#ifndef DEVICES
#define DEVICES 2
#endif
#ifndef INIT
#define INIT 0
#endif

#define CONSOLE 0xC0450000ull
#define HOST_ADDRESS 0x4057ull
#define GRANULARITY (2ull << 20)

enum { OK = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, DESTROYED = 709 };

// A thread whose stack gets this deep has been left with contexts on it.
#define DEEPEST 64

typedef unsigned long long ptr;
typedef struct context {
	int device, alive, primary, references;
} context;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static __thread struct {
	context *stack[DEEPEST];
	int depth;
} thread;
static context primaries[8];
static long depths; // of all threads together
static long violations;
static char violation[128];

static struct {
	char symbol[48];
	int result, times;
} fault;
static struct {
	int armed, take, result;
} pop_fault;
static struct {
	char symbol[48];
	int waiting, most;
} gate;
static struct record {
	const char *symbol;
	long count;
	context *last;
} records[128];

static context *current(void) { return thread.depth ? thread.stack[thread.depth - 1] : NULL; }

static void violate(const char *symbol, const char *what)
{
	if (violations++ == 0)
		snprintf(violation, sizeof violation, "%s %s", symbol, what);
}

// enter notes a call and returns what it must answer at once, if anything.
static int enter(const char *symbol, int needs_context)
{
	int r = OK;
	pthread_mutex_lock(&lock);
	struct record *at = records;
	while (at->symbol && strcmp(at->symbol, symbol))
		at++;
	at->symbol = symbol;
	at->count++;
	at->last = current();
	if (needs_context && current() == NULL) {
		violate(symbol, "without a context");
		r = INVALID_CONTEXT;
	} else if (needs_context && !current()->alive) {
		r = DESTROYED;
	} else if (fault.times && !strcmp(fault.symbol, symbol)) {
		fault.times--;
		r = fault.result;
	}
	if (!strcmp(gate.symbol, symbol)) {
		if (++gate.waiting > gate.most)
			gate.most = gate.waiting;
		while (gate.symbol[0])
			pthread_cond_wait(&opened, &lock);
		gate.waiting--;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

#define CALLED()                                    \
	do {                                            \
		int r_ = enter(__func__, 0);                \
		if (r_)                                     \
			return r_;                              \
	} while (0)
#define IN_CONTEXT()                                \
	do {                                            \
		int r_ = enter(__func__, 1);                \
		if (r_)                                     \
			return r_;                              \
	} while (0)
#define REQUIRE(condition, result)                  \
	do {                                            \
		if (!(condition))                           \
			return result;                          \
	} while (0)

static int command(const char *text, size_t n)
{
	char line[128] = "", mode[8] = "", symbol[48] = "";
	int result = 0, times = 0, r = OK;
	memcpy(line, text, n < sizeof line ? n : sizeof line - 1);
	pthread_mutex_lock(&lock);
	if (sscanf(line, "fail %47s %d %d", symbol, &result, &times) == 3) {
		strcpy(fault.symbol, symbol);
		fault.result = result;
		fault.times = times;
	} else if (sscanf(line, "pop %7s %d", mode, &result) == 2) {
		pop_fault.armed = 2; // the copy that brings this pops once itself
		pop_fault.take = !strcmp(mode, "take");
		pop_fault.result = result;
	} else if (sscanf(line, "gate %47s", symbol) == 1) {
		strcpy(gate.symbol, symbol);
		gate.most = 0;
	} else if (!strcmp(line, "reset")) {
		memset(records, 0, sizeof records);
	} else {
		r = INVALID_VALUE;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

static int report(char *text, size_t n)
{
	pthread_mutex_lock(&lock);
	memset(text, 0, n);
	// Less the one that the copy from the console needed itself.
	size_t used = snprintf(text, n, "depths %ld\nviolations %ld %s\nmost %d\n", depths - 1, violations, violation, gate.most);
	for (struct record *at = records; at->symbol && used < n; at++)
		used += snprintf(text + used, n - used, "call %s %ld %lu\n", at->symbol, at->count, (unsigned long)(uintptr_t)at->last);
	pthread_mutex_unlock(&lock);
	return OK;
}

int cuInit(unsigned int flags) { return flags ? INVALID_VALUE : INIT; }

int cuDriverGetVersion(int *version)
{
	CALLED();
	*version = VERSION;
	return OK;
}

int cuDeviceGetCount(int *count)
{
	CALLED();
	*count = DEVICES;
	return OK;
}

static int device_known(int dev) { return dev >= 0 && dev < DEVICES; }

int cuDeviceGetName(char *name, int length, int dev)
{
	CALLED();
	REQUIRE(device_known(dev), INVALID_DEVICE);
	snprintf(name, length, "Fake %d", dev);
	return OK;
}

int cuDeviceGetUuid(char uuid[16], int dev)
{
	CALLED();
	REQUIRE(device_known(dev), INVALID_DEVICE);
	memset(uuid, 0x10 + dev, 16);
	return OK;
}

int cuDeviceGetUuid_v2(char uuid[16], int dev)
{
	CALLED();
	REQUIRE(device_known(dev), INVALID_DEVICE);
	memset(uuid, 0x20 + dev, 16);
	return OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, int dev)
{
	CALLED();
	REQUIRE(device_known(dev), INVALID_DEVICE);
	*bytes = 80ull << 30;
	return OK;
}

int cuDeviceGetAttribute(int *value, int attr, int dev)
{
	CALLED();
	REQUIRE(device_known(dev), INVALID_DEVICE);
	*value = attr == 1000 ? -1 : attr;
	return OK;
}

int cuDeviceCanAccessPeer(int *can, int dev, int peer)
{
	CALLED();
	REQUIRE(device_known(dev) && device_known(peer) && dev != peer, INVALID_DEVICE);
	*can = 1;
	return OK;
}

int cuDevicePrimaryCtxRetain(context **ctx, int dev)
{
	CALLED();
	REQUIRE(device_known(dev), INVALID_DEVICE);
	pthread_mutex_lock(&lock);
	context *c = &primaries[dev];
	c->device = dev;
	c->alive = c->primary = 1;
	c->references++;
	pthread_mutex_unlock(&lock);
	*ctx = c;
	return OK;
}

int cuDevicePrimaryCtxRelease_v2(int dev)
{
	CALLED();
	REQUIRE(device_known(dev) && primaries[dev].references > 0, INVALID_CONTEXT);
	pthread_mutex_lock(&lock);
	primaries[dev].alive = --primaries[dev].references > 0;
	pthread_mutex_unlock(&lock);
	return OK;
}

int cuDevicePrimaryCtxGetState(int dev, unsigned int *flags, int *active)
{
	CALLED();
	REQUIRE(device_known(dev), INVALID_DEVICE);
	*flags = 0;
	*active = primaries[dev].alive;
	return OK;
}

static void push(context *ctx)
{
	pthread_mutex_lock(&lock);
	thread.stack[thread.depth++] = ctx;
	depths++;
	pthread_mutex_unlock(&lock);
}

static context *pop(void)
{
	pthread_mutex_lock(&lock);
	context *ctx = thread.stack[--thread.depth];
	depths--;
	pthread_mutex_unlock(&lock);
	return ctx;
}

// The creation makes its context current, as CUDA's does.
int cuCtxCreate_v2(context **ctx, unsigned int flags, int dev)
{
	CALLED();
	REQUIRE(device_known(dev), INVALID_DEVICE);
	REQUIRE(flags == 0, INVALID_VALUE);
	*ctx = calloc(1, sizeof **ctx);
	(*ctx)->device = dev;
	(*ctx)->alive = 1;
	push(*ctx);
	return OK;
}

// A destroyed context stays allocated, so that uses of it can be told.
int cuCtxDestroy_v2(context *ctx)
{
	CALLED();
	REQUIRE(ctx && ctx->alive && !ctx->primary, INVALID_CONTEXT);
	ctx->alive = 0;
	if (current() == ctx)
		pop();
	return OK;
}

int cuCtxSynchronize(void)
{
	IN_CONTEXT();
	return OK;
}

int cuCtxGetDevice(int *dev)
{
	IN_CONTEXT();
	*dev = current()->device;
	return OK;
}

int cuCtxPushCurrent_v2(context *ctx)
{
	CALLED();
	if (ctx && !ctx->alive)
		return DESTROYED;
	REQUIRE(thread.depth < DEEPEST, INVALID_VALUE);
	push(ctx);
	return OK;
}

int cuCtxPopCurrent_v2(context **ctx)
{
	CALLED();
	REQUIRE(thread.depth > 0, INVALID_CONTEXT);
	if (pop_fault.armed && --pop_fault.armed == 0) {
		if (pop_fault.take)
			pop();
		return pop_fault.result;
	}
	*ctx = pop();
	return OK;
}

int cuCtxGetCurrent(context **ctx)
{
	CALLED();
	*ctx = current();
	return OK;
}

// Setting none pops; setting one replaces the top.
int cuCtxSetCurrent(context *ctx)
{
	CALLED();
	if (thread.depth > 0)
		pop();
	if (ctx)
		push(ctx);
	return OK;
}

int cuMemAlloc_v2(ptr *p, size_t size)
{
	IN_CONTEXT();
	REQUIRE(size > 0, INVALID_VALUE);
	*p = (ptr)(uintptr_t)calloc(1, size);
	return *p ? OK : 2;
}

int cuMemAllocManaged(ptr *p, size_t size, unsigned int flags)
{
	IN_CONTEXT();
	REQUIRE(size > 0 && flags == 1, INVALID_VALUE);
	*p = (ptr)(uintptr_t)calloc(1, size);
	return OK;
}

int cuMemFree_v2(ptr p)
{
	IN_CONTEXT();
	free((void *)(uintptr_t)p);
	return OK;
}

// What is free is how many calls wait at the gate.
int cuMemGetInfo_v2(size_t *free, size_t *total)
{
	IN_CONTEXT();
	pthread_mutex_lock(&lock);
	*free = gate.waiting;
	pthread_mutex_unlock(&lock);
	*total = 80ull << 30;
	return OK;
}

int cuMemGetAddressRange_v2(ptr *base, size_t *size, ptr p)
{
	IN_CONTEXT();
	*base = p & ~0xfffull;
	*size = 4096;
	return OK;
}

int cuMemsetD8_v2(ptr dst, unsigned char value, size_t n)
{
	if (dst == CONSOLE) {
		pthread_mutex_lock(&lock);
		gate.symbol[0] = 0;
		pthread_cond_broadcast(&opened);
		pthread_mutex_unlock(&lock);
		return OK;
	}
	IN_CONTEXT();
	memset((void *)(uintptr_t)dst, value, n);
	return OK;
}

int cuMemcpyHtoD_v2(ptr dst, const void *src, size_t n)
{
	if (dst == CONSOLE)
		return command(src, n);
	IN_CONTEXT();
	memcpy((void *)(uintptr_t)dst, src, n);
	return OK;
}

int cuMemcpyDtoH_v2(void *dst, ptr src, size_t n)
{
	if (src == CONSOLE)
		return report(dst, n);
	IN_CONTEXT();
	memcpy(dst, (void *)(uintptr_t)src, n);
	return OK;
}

int cuMemcpyDtoD_v2(ptr dst, ptr src, size_t n)
{
	IN_CONTEXT();
	memmove((void *)(uintptr_t)dst, (void *)(uintptr_t)src, n);
	return OK;
}

#define STREAM_KNOWN(s) REQUIRE((s) == NULL || *(s) == 0x57, INVALID_HANDLE)
#define EVENT_KNOWN(e) REQUIRE((e) != NULL && *(e) == 0xe7, INVALID_HANDLE)

int cuMemsetD8Async(ptr dst, unsigned char value, size_t n, int *stream)
{
	IN_CONTEXT();
	STREAM_KNOWN(stream);
	memset((void *)(uintptr_t)dst, value, n);
	return OK;
}

int cuMemcpyHtoDAsync_v2(ptr dst, const void *src, size_t n, int *stream)
{
	IN_CONTEXT();
	STREAM_KNOWN(stream);
	memcpy((void *)(uintptr_t)dst, src, n);
	return OK;
}

int cuMemcpyDtoHAsync_v2(void *dst, ptr src, size_t n, int *stream)
{
	IN_CONTEXT();
	STREAM_KNOWN(stream);
	memcpy(dst, (void *)(uintptr_t)src, n);
	return OK;
}

int cuMemcpyDtoDAsync_v2(ptr dst, ptr src, size_t n, int *stream)
{
	IN_CONTEXT();
	STREAM_KNOWN(stream);
	memmove((void *)(uintptr_t)dst, (void *)(uintptr_t)src, n);
	return OK;
}

// Each value is written in the size that CUDA gives it, and not a byte more.
int cuPointerGetAttribute(void *value, int attr, ptr p)
{
	CALLED();
	REQUIRE(p != 0, INVALID_VALUE);
	switch (attr) {
	case 1: // context
		*(context **)value = p == HOST_ADDRESS ? NULL : &primaries[0];
		return OK;
	case 2: // memory type
		*(unsigned int *)value = p == HOST_ADDRESS ? 1 : 2;
		return OK;
	case 6: // SYNC_MEMOPS
	case 8: // managed
	case 10: // legacy IPC
	case 13: // mapped
		*(unsigned char *)value = attr == 8 ? 0 : 0x80;
		return OK;
	case 7: // buffer id
	case 14: // handle types
		*(unsigned long long *)value = attr == 7 ? 0xfedcba9876543210ull : 9;
		return OK;
	case 9: // ordinal
		*(int *)value = p == HOST_ADDRESS ? -2 : 1;
		return OK;
	case 11: // range
		*(ptr *)value = p;
		return OK;
	case 12:
		*(size_t *)value = 5ull << 30;
		return OK;
	}
	return INVALID_VALUE;
}

int cuPointerSetAttribute(const void *value, int attr, ptr p)
{
	CALLED();
	REQUIRE(p != 0 && attr == 6 && *(const unsigned int *)value <= 1, INVALID_VALUE);
	return OK;
}

typedef struct {
	unsigned char bytes[64];
} handle;

int cuIpcGetMemHandle(handle *h, ptr p)
{
	IN_CONTEXT();
	memcpy(h->bytes, &p, sizeof p);
	for (int i = sizeof p; i < 64; i++)
		h->bytes[i] = i;
	return OK;
}

int cuIpcOpenMemHandle_v2(ptr *p, handle h, unsigned int flags)
{
	IN_CONTEXT();
	REQUIRE(flags == 1, INVALID_VALUE);
	for (int i = sizeof *p; i < 64; i++)
		REQUIRE(h.bytes[i] == i, INVALID_VALUE);
	memcpy(p, h.bytes, sizeof *p);
	return OK;
}

int cuIpcCloseMemHandle(ptr p)
{
	IN_CONTEXT();
	REQUIRE(p != 0, INVALID_VALUE);
	return OK;
}

int cuStreamCreate(int **stream, unsigned int flags)
{
	IN_CONTEXT();
	REQUIRE(flags <= 1, INVALID_VALUE);
	*stream = malloc(sizeof **stream);
	**stream = 0x57;
	return OK;
}

int cuStreamDestroy_v2(int *stream)
{
	IN_CONTEXT();
	STREAM_KNOWN(stream);
	free(stream);
	return OK;
}

int cuStreamSynchronize(int *stream)
{
	IN_CONTEXT();
	STREAM_KNOWN(stream);
	return OK;
}

int cuStreamQuery(int *stream)
{
	IN_CONTEXT();
	STREAM_KNOWN(stream);
	return OK;
}

int cuEventCreate(int **event, unsigned int flags)
{
	IN_CONTEXT();
	REQUIRE(flags == 0 || flags == 2, INVALID_VALUE);
	*event = malloc(sizeof **event);
	**event = 0xe7;
	return OK;
}

int cuStreamWaitEvent(int *stream, int *event, unsigned int flags)
{
	IN_CONTEXT();
	STREAM_KNOWN(stream);
	EVENT_KNOWN(event);
	REQUIRE(flags == 0, INVALID_VALUE);
	return OK;
}

int cuEventDestroy_v2(int *event)
{
	IN_CONTEXT();
	EVENT_KNOWN(event);
	free(event);
	return OK;
}

int cuEventRecord(int *event, int *stream)
{
	IN_CONTEXT();
	EVENT_KNOWN(event);
	STREAM_KNOWN(stream);
	return OK;
}

int cuEventQuery(int *event)
{
	IN_CONTEXT();
	EVENT_KNOWN(event);
	return OK;
}

int cuEventSynchronize(int *event)
{
	IN_CONTEXT();
	EVENT_KNOWN(event);
	return OK;
}

// The properties as the first two machine words and what follows them, not as
// the struct that the caller was compiled with.
static int prop_valid(const unsigned char *prop)
{
	int type, handles, location, id;
	unsigned long long rest[2];
	memcpy(&type, prop, 4);
	memcpy(&handles, prop + 4, 4);
	memcpy(&location, prop + 8, 4);
	memcpy(&id, prop + 12, 4);
	memcpy(rest, prop + 16, 16);
	return type == 1 && (handles == 0 || handles == 1) && location == 1 && device_known(id) && !rest[0] && !rest[1];
}

int cuMemGetAllocationGranularity(size_t *bytes, const void *prop, int option)
{
	CALLED();
	REQUIRE(prop_valid(prop) && option == 0, INVALID_VALUE);
	*bytes = GRANULARITY;
	return OK;
}

int cuMemCreate(unsigned long long *handle, size_t size, const void *prop, unsigned long long flags)
{
	IN_CONTEXT();
	REQUIRE(prop_valid(prop) && size && size % GRANULARITY == 0 && !flags, INVALID_VALUE);
	*handle = 0xaaaabbbbccccddddull;
	return OK;
}

#define HANDLE_KNOWN(h) REQUIRE((h) == 0xaaaabbbbccccddddull, INVALID_VALUE)

int cuMemRelease(unsigned long long handle)
{
	IN_CONTEXT();
	HANDLE_KNOWN(handle);
	return OK;
}

int cuMemAddressReserve(ptr *p, size_t size, size_t alignment, ptr hint, unsigned long long flags)
{
	IN_CONTEXT();
	REQUIRE(size % GRANULARITY == 0 && !alignment && !hint && !flags, INVALID_VALUE);
	*p = 0x7f0000000000ull;
	return OK;
}

int cuMemAddressFree(ptr p, size_t size)
{
	IN_CONTEXT();
	REQUIRE(p == 0x7f0000000000ull && size % GRANULARITY == 0, INVALID_VALUE);
	return OK;
}

int cuMemMap(ptr p, size_t size, size_t offset, unsigned long long handle, unsigned long long flags)
{
	IN_CONTEXT();
	HANDLE_KNOWN(handle);
	REQUIRE(p == 0x7f0000000000ull && size % GRANULARITY == 0 && !offset && !flags, INVALID_VALUE);
	return OK;
}

int cuMemUnmap(ptr p, size_t size)
{
	IN_CONTEXT();
	REQUIRE(p == 0x7f0000000000ull && size % GRANULARITY == 0, INVALID_VALUE);
	return OK;
}

int cuMemSetAccess(ptr p, size_t size, const int desc[3], size_t count)
{
	IN_CONTEXT();
	REQUIRE(p == 0x7f0000000000ull && size % GRANULARITY == 0 && count == 1, INVALID_VALUE);
	REQUIRE(desc[0] == 1 && device_known(desc[1]) && desc[2] == 3, INVALID_VALUE);
	return OK;
}

int cuMemRetainAllocationHandle(unsigned long long *handle, void *addr)
{
	IN_CONTEXT();
	REQUIRE((uintptr_t)addr == 0x7f0000000000ull, INVALID_VALUE);
	*handle = 0xaaaabbbbccccddddull;
	return OK;
}

int cuMemExportToShareableHandle(void *shareable, unsigned long long handle, int type, unsigned long long flags)
{
	IN_CONTEXT();
	HANDLE_KNOWN(handle);
	REQUIRE(type == 1 && !flags, INVALID_VALUE);
	*(int *)shareable = memfd_create("fakecuda", 0);
	return OK;
}

int cuMemImportFromShareableHandle(unsigned long long *handle, void *shareable, int type)
{
	IN_CONTEXT();
	struct stat st;
	REQUIRE(type == 1 && fstat((int)(intptr_t)shareable, &st) == 0, INVALID_VALUE);
	*handle = 0xaaaabbbbccccddddull;
	return OK;
}

// Pools

#define POOL ((void *)0x9001ull)

struct pool_props {
	int type, handle_types, location_type, device;
	void *security;
	size_t most;
	unsigned char rest[56];
};

int cuMemPoolCreate(void **pool, const struct pool_props *props)
{
	static const unsigned char zeros[56];
	IN_CONTEXT();
	REQUIRE(props->type == 1 && props->handle_types == 1 && props->location_type == 1, INVALID_VALUE);
	REQUIRE(device_known(props->device) && !props->security && !props->most, INVALID_VALUE);
	REQUIRE(!memcmp(props->rest, zeros, sizeof zeros), INVALID_VALUE);
	*pool = POOL;
	return OK;
}

int cuMemPoolDestroy(void *pool)
{
	IN_CONTEXT();
	REQUIRE(pool == POOL, INVALID_VALUE);
	return OK;
}

int cuMemPoolTrimTo(void *pool, size_t keep)
{
	IN_CONTEXT();
	REQUIRE(pool == POOL && keep == 5ull << 30, INVALID_VALUE);
	return OK;
}

int cuMemPoolSetAccess(void *pool, const int desc[3], size_t count)
{
	IN_CONTEXT();
	REQUIRE(pool == POOL && count == 1 && desc[0] == 1 && device_known(desc[1]) && desc[2] == 3, INVALID_VALUE);
	return OK;
}

int cuMemPoolExportToShareableHandle(void *shareable, void *pool, int type, unsigned long long flags)
{
	IN_CONTEXT();
	REQUIRE(pool == POOL && type == 1 && !flags, INVALID_VALUE);
	*(int *)shareable = memfd_create("fakecuda", 0);
	return OK;
}

int cuMemPoolImportFromShareableHandle(void **pool, void *shareable, int type, unsigned long long flags)
{
	IN_CONTEXT();
	struct stat st;
	REQUIRE(type == 1 && !flags && fstat((int)(intptr_t)shareable, &st) == 0, INVALID_VALUE);
	*pool = POOL;
	return OK;
}

int cuMemPoolExportPointer(handle *data, ptr p)
{
	IN_CONTEXT();
	memcpy(data->bytes, &p, sizeof p);
	for (int i = sizeof p; i < 64; i++)
		data->bytes[i] = i;
	return OK;
}

int cuMemPoolImportPointer(ptr *p, void *pool, const handle *data)
{
	IN_CONTEXT();
	REQUIRE(pool == POOL, INVALID_VALUE);
	for (int i = sizeof *p; i < 64; i++)
		REQUIRE(data->bytes[i] == i, INVALID_VALUE);
	memcpy(p, data->bytes, sizeof *p);
	return OK;
}

int cuMemAllocFromPoolAsync(ptr *p, size_t size, void *pool, int *stream)
{
	IN_CONTEXT();
	STREAM_KNOWN(stream);
	REQUIRE(pool == POOL && size == 5ull << 30, INVALID_VALUE);
	*p = 0x7f0000000000ull;
	return OK;
}

int cuMemFreeAsync(ptr p, int *stream)
{
	IN_CONTEXT();
	STREAM_KNOWN(stream);
	REQUIRE(p == 0x7f0000000000ull, INVALID_VALUE);
	return OK;
}
