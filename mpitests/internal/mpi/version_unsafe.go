package mpi

/*
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

// MPI_MAX_LIBRARY_VERSION_STRING is 256 in Open MPI and 8192 in MPICH.
enum { VERSION_MAX = 8192 };

// The symbol is looked up at run time, so that this package needs neither
// MPI's header nor its linker flags: gompi has brought the library.
static int library_version(char *version, int *length) {
	int (*get)(char *, int *) = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
	return get == NULL ? 1 : get(version, length);
}
*/
// #cgo LDFLAGS: -ldl
import "C"

import (
	"bytes"
	"strings"
)

// LibraryVersion is what the MPI library calls itself, one line. It may be
// called before MPI is initialised.
func LibraryVersion() string {
	var version [C.VERSION_MAX]C.char
	var length C.int
	if C.library_version(&version[0], &length) != 0 {
		return "unknown"
	}
	text := []byte(C.GoStringN(&version[0], length))
	if end := bytes.IndexByte(text, 0); end >= 0 {
		text = text[:end]
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	// Open MPI adds who built it, where and when.
	if parts := strings.Split(first, ","); len(parts) > 1 && strings.HasPrefix(first, "Open MPI") {
		return parts[0]
	}
	return first
}
