// Package staged moves bytes between two processes through shared memory, for
// device memory that cannot be mapped.
//
// The initiator makes a memfd of equal slots, one half for puts, one for gets,
// and owns every free slot. A Put frame lends the target a slot that is full, a
// Get frame one to fill; Transferred gives it back. That is all the flow control
// there is: nobody can have more in flight than there are slots. Frames carry
// every length and address. The shared memory holds payload only, so nothing
// in it is ever believed.
//
// Each side copies on goroutines of its own, one a direction, never on the one
// that reads the socket: a slow device delays only this lane of this peer.
package staged

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	maxSlots    = 64
	maxSlotSize = 64 << 20
)

// ErrShape is returned for shared memory that is not what its sender said, or
// could change under us.
var ErrShape = errors.New("unusable shared memory")

// Ring is the shared memory: slots for puts, then as many for gets.
type Ring struct {
	mem   []byte
	slots int
	size  int
}

// mustSeals keep a peer from truncating memory that we have mapped, which
// would kill this process by SIGBUS at the next access.
const mustSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Create makes a ring and returns the descriptor for the target, the caller's
// to close.
func Create(slots, size int) (_ *Ring, fd int, err error) {
	if err := checkShape(uint64(slots), uint64(size)); err != nil {
		return nil, -1, err
	}
	fd, err = unix.MemfdCreate("gpurma-staged", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, fmt.Errorf("create shared memory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("create shared memory: %w", err), unix.Close(fd))
			fd = -1
		}
	}()
	bytes := 2 * slots * size
	if err = unix.Ftruncate(fd, int64(bytes)); err != nil {
		return nil, fd, err
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, mustSeals); err != nil {
		return nil, fd, err
	}
	mem, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fd, err
	}
	return &Ring{mem, slots, size}, fd, nil
}

// Open maps a ring that a peer made, after checking that it has the size that
// was said and can never get another. fd stays the caller's.
func Open(fd int, slots uint32, size uint64) (*Ring, error) {
	if err := checkShape(uint64(slots), size); err != nil {
		return nil, err
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: not sealable: %w", ErrShape, err)
	}
	if seals&mustSeals != mustSeals {
		return nil, fmt.Errorf("%w: seals %#x, need %#x", ErrShape, seals, mustSeals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrShape, err)
	}
	bytes := 2 * int(slots) * int(size)
	if st.Size != int64(bytes) {
		return nil, fmt.Errorf("%w: %d bytes, not 2 x %d slots of %d", ErrShape, st.Size, slots, size)
	}
	mem, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: %w", err)
	}
	return &Ring{mem, int(slots), int(size)}, nil
}

func checkShape(slots, size uint64) error {
	if slots == 0 || slots > maxSlots || size == 0 || size > maxSlotSize {
		return fmt.Errorf("%w: %d slots of %d bytes", ErrShape, slots, size)
	}
	return nil
}

// slot is slot i of a direction; the capacity ends with it.
func (r *Ring) slot(get bool, i int) []byte {
	if get {
		i += r.slots
	}
	return r.mem[i*r.size : (i+1)*r.size : (i+1)*r.size]
}

// Close unmaps. Nobody may be copying.
func (r *Ring) Close() error {
	if r.mem == nil {
		return nil
	}
	mem := r.mem
	r.mem = nil
	return unix.Munmap(mem)
}
