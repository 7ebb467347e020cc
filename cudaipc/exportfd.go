package cudaipc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// makePosixFD exports VMM memory as a descriptor. The descriptor alone keeps the
// memory (FACTS F11), so nothing else is held.
func (x *export) makePosixFD(drv cuda.Driver, ctx cuda.Context, a *allocation) (err error) {
	handle, err := drv.MemRetainAllocationHandle(ctx, a.base)
	switch {
	case errors.Is(err, cuda.ErrorInvalidValue), errors.Is(err, cuda.ErrNotSupported):
		x.reason = "pool memory, which this version does not export"
		return nil
	case err != nil:
		return fmt.Errorf("retain allocation handle: %w", err)
	}
	defer func() {
		if rerr := drv.MemRelease(ctx, handle); rerr != nil {
			err = errors.Join(err, fmt.Errorf("release allocation handle: %w", rerr))
			if x.undo != nil {
				err = errors.Join(err, x.undo())
			}
		}
	}()
	raw, err := drv.MemExportPosixFD(ctx, handle)
	switch {
	case errors.Is(err, cuda.ErrorInvalidValue), errors.Is(err, cuda.ErrNotSupported), errors.Is(err, cuda.ErrorNotPermitted):
		x.reason = fmt.Sprintf("the driver gives no descriptor of it: %v", err)
		return nil
	case err != nil:
		return fmt.Errorf("export descriptor: %w", err)
	}
	fd, err := freshFDs.move(raw)
	if err != nil {
		return fmt.Errorf("export descriptor: %w", err)
	}
	x.handles = []Handle{{Kind: KindPosixFD, Data: binary.LittleEndian.AppendUint32(nil, uint32(fd))}}
	x.undo = func() error {
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("close exported descriptor %d: %w", fd, err)
		}
		return nil
	}
	return nil
}

// fdNumbers gives descriptors numbers that this process never used for an export
// before: an importer that takes a descriptor by its number, from a key of an
// allocation that is gone, must find nothing rather than other memory.
type fdNumbers struct {
	mu   sync.Mutex
	next int
}

var freshFDs fdNumbers

// move gives fd a fresh number. The old one is closed, also on an error.
func (n *fdNumbers) move(fd int) (int, error) {
	defer unix.Close(fd)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == 0 {
		n.next = firstFreshFD()
	}
	fresh, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, n.next)
	if err != nil {
		return -1, fmt.Errorf("no fresh descriptor number from %d (RLIMIT_NOFILE): %w", n.next, err)
	}
	n.next = fresh + 1
	return fresh, nil
}

// firstFreshFD is above what the rest of the process gets, which is always the
// lowest free number, and leaves most of the numbers to us.
func firstFreshFD() int {
	const enough = 1 << 14
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur/4 < 64 {
		return 64
	}
	return int(min(limit.Cur/4, enough))
}
