// Package cuda is the CUDA driver API as a Go interface: the ground that every
// other package of this module stands on.
//
// It holds no driver. Two packages implement [Driver]: cuda/libcuda calls the
// NVIDIA driver, cuda/softgpu emulates one in shared memory so that everything
// above runs, and is tested, on machines without a GPU. cuda/drivers opens one
// of them by name.
//
// # Conventions
//
// A method carries the name of the CUDA driver call it stands for, without the
// prefix "cu" (cuMemAlloc is MemAlloc), and does what that call does: the same
// results, the same errors, the same synchronisation.
//
// Every call that needs a context takes it as its first argument and leaves
// the calling thread's current context as it found it: a goroutine has no
// thread of its own, and CUDA's current context belongs to the thread. The
// methods of [CurrentContext] reach the thread's own stack; they are only
// meaningful between runtime.LockOSThread and UnlockOSThread.
//
// Device memory is named by [DevicePtr], an integer. It is never an address
// that this process could dereference.
//
// Sizes and offsets are bytes. Host buffers are byte slices. A synchronous
// call may use the slice only until it returns; an asynchronous one needs it
// pinned (runtime.Pinner) and untouched until the stream has passed the copy.
//
// A failed call returns an error that matches its [Result] with errors.Is.
// All methods may be called from any goroutine.
package cuda
