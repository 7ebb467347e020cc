//go:build cgo

#include "scope.h"

CUresult lc_enter(const lc_api *a, CUcontext ctx, lc_scope *s)
{
	// The driver would take NULL and push it.
	if (ctx == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	s->before = NULL;
	s->ctx = NULL;
	// An error here can mean that what is current was destroyed elsewhere,
	// which is no reason to refuse work in another context.
	s->known = a->cuCtxGetCurrent(&s->before) == CUDA_SUCCESS;
	if (s->known && s->before == ctx)
		return CUDA_SUCCESS;
	CUresult r = a->cuCtxPushCurrent_v2(ctx);
	if (r == CUDA_SUCCESS)
		s->ctx = ctx;
	return r;
}

// current_is tells whether want is what is current now.
static bool current_is(const lc_api *a, CUcontext want)
{
	CUcontext now = NULL;
	return a->cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == want;
}

// restore is for a pop that failed or popped something else, after which the
// stack may or may not be one too deep. failure is what the pop answered.
static CUresult restore(const lc_api *a, const lc_scope *s, CUresult failure)
{
	if (failure == CUDA_SUCCESS)
		failure = CUDA_ERROR_INVALID_CONTEXT;
	if (!s->known)
		return failure;
	if (current_is(a, s->before))
		return CUDA_SUCCESS;
	// Setting no context takes the top away: a pop by another road.
	if (current_is(a, s->ctx) && a->cuCtxSetCurrent(NULL) == CUDA_SUCCESS && current_is(a, s->before))
		return CUDA_SUCCESS;
	if (a->cuCtxSetCurrent(s->before) == CUDA_SUCCESS && current_is(a, s->before))
		return CUDA_SUCCESS;
	return failure;
}

CUresult lc_leave(const lc_api *a, const lc_scope *s, CUresult r)
{
	if (s->ctx == NULL)
		return r;
	CUcontext popped = NULL;
	CUresult undone = a->cuCtxPopCurrent_v2(&popped);
	if (undone == CUDA_SUCCESS && popped == s->ctx)
		return r;
	undone = restore(a, s, undone);
	return r != CUDA_SUCCESS ? r : undone;
}
