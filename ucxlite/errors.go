package ucxlite

import (
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
)

// The errors that this package returns, to be asked for with errors.Is. Each
// text names the peer, the key and the cause. A driver's result, where one was
// the cause, matches too.
var (
	// ErrNotConnected is returned by TryRemoteMemList while the wire-up runs:
	// progress the worker and try again.
	ErrNotConnected = errors.New("endpoint not connected yet")
	// ErrUnreachable is returned when this process cannot map the memory and
	// no other lane may serve. The text gives the reason.
	ErrUnreachable = cudaipc.ErrUnreachable
	// ErrInvalidParam is returned for an argument that can never be right.
	ErrInvalidParam = errors.New("invalid parameter")
	// ErrInvalidKey is returned for bytes that are no packed key, for a key of
	// another process than the endpoint's peer, and for a key that lies about
	// its memory.
	ErrInvalidKey = cudaipc.ErrInvalidKey
	// ErrOutOfRange is returned for a remote range outside the key's. The
	// driver has not been called.
	ErrOutOfRange = errors.New("remote range outside the key")
	// ErrNotShareable is returned for memory that no handle can share, where
	// IPC alone was asked for.
	ErrNotShareable = cudaipc.ErrNotShareable
	// ErrUnsupported is returned for what this version or this peer does not
	// do.
	ErrUnsupported = errors.New("unsupported")
	// ErrNoMemory is returned when host or device memory ran out.
	ErrNoMemory = errors.New("out of memory")
	// ErrBusy is returned by Close and Unmap while something is in use.
	ErrBusy = cudaipc.ErrBusy
	// ErrCanceled is returned by an operation that was given up before it ran.
	ErrCanceled = errors.New("canceled")
	// ErrEndpointTimeout is returned when the peer did not answer the wire-up
	// in time.
	ErrEndpointTimeout = errors.New("endpoint timed out")
	// ErrConnectionReset is returned when the peer is gone.
	ErrConnectionReset = errors.New("connection reset by peer")
	// ErrStale is returned for a key whose registration or memory is gone.
	ErrStale = cudaipc.ErrStale
	// ErrEndpointClosed is returned for an endpoint that was closed, and for
	// its keys.
	ErrEndpointClosed = errors.New("endpoint closed")
	// ErrDestroyed is returned for any other object that was destroyed or
	// closed: key, memory, list, worker, context.
	ErrDestroyed = errors.New("object destroyed")
)

// translate gives a driver's out-of-memory and an unusable cache their name
// here; all other errors already match what they should.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cuda.ErrorOutOfMemory):
		return fmt.Errorf("%w: %w", ErrNoMemory, err)
	case errors.Is(err, cudaipc.ErrClosed):
		return fmt.Errorf("%w: %w", ErrDestroyed, err)
	}
	return err
}
