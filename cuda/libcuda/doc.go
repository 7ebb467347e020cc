// Package libcuda is the real driver: [Open] returns a [cuda.Driver] over the
// NVIDIA driver's library, libcuda.so.1.
//
// The library is opened at run time and every symbol is looked up by name, so
// nothing of CUDA is needed to build, and a program that imports this package
// starts on any machine. What is missing is said when it is asked for: no
// library, a library that is none, or no device is an error of Open that
// matches [cuda.ErrNoDriver]; a symbol that this driver's age lacks is a
// [*MissingSymbolError] of just the calls that need it.
//
// # Contexts
//
// CUDA's current context belongs to the thread, and a goroutine has no thread
// of its own. Each method with a context argument therefore makes one crossing
// into C (shim.c), where the context is pushed, the call made and the context
// popped: no other code runs on the thread between, and the thread's stack of
// contexts is afterwards what it was before, whatever the call answered. Only
// the methods of [cuda.CurrentContext] change it. The one exception is CUDA's:
// CtxDestroy of a context that is current on the calling thread pops it.
//
// # Threads
//
// A goroutine inside a driver call holds an operating system thread. Calls that
// may wait for the device take one of a fixed number of places (see blocking.go),
// so that any number of goroutines may wait at once.
//
// # Life
//
// The library is never unloaded: its own threads run until the process ends. A
// driver that is torn down while the process exits answers ErrorDeinitialized,
// which is returned like any other result; the package prints nothing.
//
// Built without cgo, the package compiles and Open says why it cannot work.
package libcuda

// LibraryVariable names the environment variable that replaces libcuda.so.1 by
// another library: a path, or a name for the dynamic linker to search.
const LibraryVariable = "GPURMA_LIBCUDA"

// defaultLibrary is the name that every NVIDIA driver installs; the name
// without ".1" belongs to the toolkit's link-time stub.
const defaultLibrary = "libcuda.so.1"
