// How a driver call is made: in the context it was given, on whatever thread
// the goroutine runs, with the thread's own context stack left as found.

#ifndef GPURMA_LIBCUDA_SCOPE_H
#define GPURMA_LIBCUDA_SCOPE_H

#include "abi.h"
#include "shim.h"

#include <stdatomic.h>
#include <stdbool.h>

struct lc_api {
	atomic_bool closed;
#define REQUIRED(name, parameters) CUresult(*name) parameters;
#define OPTIONAL(name, parameters) CUresult(*name) parameters;
#include "symbols.h"
#undef REQUIRED
#undef OPTIONAL
};

enum {
#define REQUIRED(name, parameters) LC_INDEX_##name,
#define OPTIONAL(name, parameters) LC_INDEX_##name,
#include "symbols.h"
#undef REQUIRED
#undef OPTIONAL
	LC_SYMBOLS
};

#define LC_MISSING(name) (-1 - LC_INDEX_##name)

// A scope remembers what a call must leave behind.
typedef struct {
	CUcontext before; // current on the thread, where known
	bool known;
	CUcontext ctx; // pushed on top of it, NULL where nothing was
} lc_scope;

CUresult lc_enter(const lc_api *a, CUcontext ctx, lc_scope *s);

// lc_leave undoes lc_enter and returns r, the call's own result. Only where the
// call succeeded and the thread's stack could not be put right does it return
// why: then the driver itself is in ruins.
CUresult lc_leave(const lc_api *a, const lc_scope *s, CUresult r);

// CALL makes a call that needs no context.
#define CALL(a, name, ...)                                                             \
	(atomic_load_explicit(&(a)->closed, memory_order_relaxed) ? CUDA_ERROR_DEINITIALIZED \
	 : (a)->name == NULL                                      ? LC_MISSING(name)         \
	                                                          : (a)->name(__VA_ARGS__))

// CALL_IN makes a call in context ctx. A missing symbol is found before the
// thread's stack is touched.
#define CALL_IN(a, context, name, ...)                                       \
	({                                                                       \
		lc_scope scope_;                                                     \
		CUresult r_ = CUDA_SUCCESS;                                          \
		if (atomic_load_explicit(&(a)->closed, memory_order_relaxed))        \
			r_ = CUDA_ERROR_DEINITIALIZED;                                   \
		else if ((a)->name == NULL)                                          \
			r_ = LC_MISSING(name);                                           \
		else if ((r_ = lc_enter(a, (CUcontext)(context), &scope_)) == CUDA_SUCCESS) \
			r_ = lc_leave(a, &scope_, (a)->name(__VA_ARGS__));               \
		r_;                                                                  \
	})

// The results of a call that was made, for Go: nothing but the code where it
// failed.
#define VALUE(r, v) ((lc_value){.code = (r), .value = (r) == CUDA_SUCCESS ? (uint64_t)(v) : 0})
#define PAIR(r, v, w) ((r) == CUDA_SUCCESS ? (lc_pair){0, (v), (w)} : (lc_pair){.code = (r)})

#endif
