//go:build cgo

#include "scope.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const symbol_names[LC_SYMBOLS] = {
#define REQUIRED(name, parameters) [LC_INDEX_##name] = #name,
#define OPTIONAL(name, parameters) [LC_INDEX_##name] = #name,
#include "symbols.h"
#undef REQUIRED
#undef OPTIONAL
};

lc_api *lc_open(const char *name, char *message, size_t length)
{
	void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL) {
		// The text belongs to this thread: it is read before anything else runs.
		snprintf(message, length, "%s", dlerror());
		return NULL;
	}
	const char *lacks = NULL;
	lc_api *a = calloc(1, sizeof *a);
	if (a == NULL) {
		snprintf(message, length, "out of memory");
		dlclose(lib);
		return NULL;
	}
	atomic_init(&a->closed, false);
#define OPTIONAL(name, parameters) *(void **)&a->name = dlsym(lib, #name);
#define REQUIRED(name, parameters)                                  \
	if ((*(void **)&a->name = dlsym(lib, #name)) == NULL && !lacks) \
		lacks = #name;
#include "symbols.h"
#undef REQUIRED
#undef OPTIONAL
	if (lacks != NULL) {
		snprintf(message, length, "%s: no symbol %s", name, lacks);
		free(a);
		dlclose(lib);
		return NULL;
	}
	return a;
}

void lc_close(lc_api *a)
{
	atomic_store(&a->closed, true);
}

const char *lc_symbol_name(int32_t code)
{
	int32_t i = -1 - code;
	return i >= 0 && i < LC_SYMBOLS ? symbol_names[i] : "?";
}

int32_t lc_missing(const lc_api *a, int32_t code)
{
	// i counts the symbols in the order of the list, -code is where to go on.
	int32_t i = 0;
#define REQUIRED(name, parameters) i++;
#define OPTIONAL(name, parameters)                \
	if (i >= -code && a->name == NULL)            \
		return -1 - i;                            \
	i++;
#include "symbols.h"
#undef REQUIRED
#undef OPTIONAL
	return 0;
}
