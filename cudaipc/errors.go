package cudaipc

import "errors"

var (
	// ErrUnreachable is returned when this process cannot map what the key
	// names: another host, another pid namespace, a device pair that cannot
	// reach each other, a missing right, or an exporter that has died. The
	// text gives the reason.
	ErrUnreachable = errors.New("memory not reachable from this process")

	// ErrInvalidKey is returned for bytes that are no key and for a key that
	// lies about its memory.
	ErrInvalidKey = errors.New("invalid key")

	// ErrNotShareable is returned for a key of memory that no handle can share.
	ErrNotShareable = errors.New("memory not shareable")

	// ErrAlreadyMapped is returned when the driver refuses an open because
	// something else in this process has that address range mapped.
	ErrAlreadyMapped = errors.New("range already mapped in this process")

	// ErrStale is returned for a key whose allocation is gone.
	ErrStale = errors.New("stale key")

	// ErrBusy is returned when something is still in use.
	ErrBusy = errors.New("busy")

	// ErrReleased is returned when a registration is used after its Close.
	ErrReleased = errors.New("already released")

	// ErrClosed is returned by a cache that was closed.
	ErrClosed = errors.New("cache closed")

	// ErrForked is returned in a process that fork made of the one that owns
	// the cache: CUDA does not survive a fork.
	ErrForked = errors.New("process was forked: CUDA is not usable in the child")
)
