package softgpu

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// ticket is what the file behind an exported descriptor says. Its lock belongs
// to the open file description: it holds the memory as long as any copy of the
// descriptor is open, in whatever process or message. The ticket of a pool
// names the pool and holds no memory.
type ticket struct {
	id      uint64
	device  uint32 // of the node
	types   cuda.HandleType
	size    uint64
	pool    poolName // the zero name for memory
	extents []extent // none for a pool
}

const (
	ticketMagic = "SGPUTIK2"
	ticketHead  = 72
)

var errBadTicket = errors.New("not a ticket of this node")

func (t *ticket) encode(h *header) []byte {
	b := make([]byte, ticketHead, ticketHead+8*len(t.extents))
	copy(b, ticketMagic)
	copy(b[8:], h.id[:])
	binary.LittleEndian.PutUint64(b[24:], t.id)
	binary.LittleEndian.PutUint32(b[32:], t.device)
	binary.LittleEndian.PutUint32(b[36:], uint32(t.types))
	binary.LittleEndian.PutUint64(b[40:], t.size)
	binary.LittleEndian.PutUint32(b[48:], uint32(len(t.extents)))
	binary.LittleEndian.PutUint64(b[56:], t.pool.table)
	binary.LittleEndian.PutUint64(b[64:], t.pool.number)
	for _, e := range t.extents {
		b = binary.LittleEndian.AppendUint32(b, e.first)
		b = binary.LittleEndian.AppendUint32(b, e.count)
	}
	return b
}

// readTicket trusts nothing that it reads.
func readTicket(f *os.File, h *header) (*ticket, error) {
	b := make([]byte, ticketHead)
	if n, _ := f.ReadAt(b, 0); n < ticketHead || string(b[:8]) != ticketMagic || [16]byte(b[8:24]) != h.id {
		return nil, errBadTicket
	}
	t := &ticket{
		id:     binary.LittleEndian.Uint64(b[24:]),
		device: binary.LittleEndian.Uint32(b[32:]),
		types:  cuda.HandleType(binary.LittleEndian.Uint32(b[36:])),
		size:   binary.LittleEndian.Uint64(b[40:]),
		pool:   poolName{binary.LittleEndian.Uint64(b[56:]), binary.LittleEndian.Uint64(b[64:])},
	}
	count := binary.LittleEndian.Uint32(b[48:])
	if count > h.blocks {
		return nil, errBadTicket
	}
	es := make([]byte, 8*count)
	if n, _ := f.ReadAt(es, ticketHead); n < len(es) {
		return nil, errBadTicket
	}
	for ; len(es) > 0; es = es[8:] {
		t.extents = append(t.extents, extent{binary.LittleEndian.Uint32(es), binary.LittleEndian.Uint32(es[4:])})
	}
	if t.pool != (poolName{}) {
		if count != 0 || int64(t.device) >= int64(h.devices) {
			return nil, errBadTicket
		}
		return t, nil
	}
	if !validExtents(h, t.device, t.extents) || t.size != uint64(blockCount(t.extents))*BlockSize {
		return nil, errBadTicket
	}
	return t, nil
}

func (n *node) ticketPath(id uint64) string {
	return filepath.Join(n.path, fmt.Sprintf("%s%016x", ticketPart, id))
}

// MemExportPosixFD returns a descriptor that holds the handle's memory.
func (d *Driver) MemExportPosixFD(ctx cuda.Context, id cuda.MemHandle) (fd int, err error) {
	const call = "cuMemExportToShareableHandle"
	if err := d.enter(call); err != nil {
		return -1, err
	}
	fd = -1
	err = d.locked(func() error {
		m, err := d.exportable(ctx, id)
		if err != nil {
			return err
		}
		fd, err = d.issue(&ticket{device: uint32(m.phys), types: m.types, size: m.size, extents: m.extents})
		return err
	})
	return fd, failed(call, err)
}

// issue puts a ticket into the node, under the node lock, and returns the
// descriptor that holds it.
func (d *Driver) issue(t *ticket) (fd int, err error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return -1, err
	}
	t.id = binary.LittleEndian.Uint64(random[:])
	path := d.node.ticketPath(t.id)
	f, err := createLocked(d.node.path, path, t.encode(&d.node.header))
	if err != nil {
		return -1, err
	}
	// The copy is of the same description, and outlives f.
	err = onFD(f, func(own uintptr) (err error) {
		fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		fd, err = -1, errors.Join(err, os.Remove(path))
	}
	return fd, errors.Join(err, f.Close())
}

func (d *Driver) exportable(ctx cuda.Context, id cuda.MemHandle) (*physical, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if _, err := d.context(ctx); err != nil {
		return nil, err
	}
	m, err := d.memory(id)
	if err == nil && m.types&cuda.HandleTypePosixFD == 0 {
		err = cuda.ErrorInvalidValue
	}
	return m, err
}

// MemImportPosixFD makes a handle of its own for each call; fd stays the
// caller's. What is no descriptor of this node's memory is ErrorInvalidValue.
func (d *Driver) MemImportPosixFD(ctx cuda.Context, fd int) (id cuda.MemHandle, err error) {
	const call = "cuMemImportFromShareableHandle"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	if _, err := d.useContext(ctx); err != nil {
		return 0, failed(call, err)
	}
	err = d.locked(func() error {
		t, err := d.readDescriptor(fd)
		if err == nil && t.pool != (poolName{}) {
			err = fmt.Errorf("%w: descriptor %d is a pool's", cuda.ErrorInvalidValue, fd)
		}
		if err != nil {
			return err
		}
		dev, err := d.ordinal(int(t.device))
		if err != nil {
			return err
		}
		if err := d.table.hold(int(t.device), t.extents); err != nil {
			return err
		}
		id = d.addHandle(&physical{
			device: dev, phys: int(t.device), extents: t.extents, size: t.size, types: t.types,
		})
		return nil
	})
	return id, failed(call, err)
}

// readDescriptor reads the ticket behind fd, and makes sure that it is the one
// that stands in the node and holds its memory.
func (d *Driver) readDescriptor(fd int) (*ticket, error) {
	refuse := func(why error) (*ticket, error) {
		return nil, fmt.Errorf("%w: descriptor %d: %w", cuda.ErrorInvalidValue, fd, why)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return refuse(err)
	}
	f := os.NewFile(uintptr(own), "ticket")
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return refuse(errBadTicket)
	}
	t, err := readTicket(f, &d.node.header)
	if err != nil {
		return refuse(err)
	}
	named, err := os.Open(d.node.ticketPath(t.id))
	if err != nil {
		return refuse(err)
	}
	defer named.Close()
	a, _, errA := inode(f)
	b, _, errB := inode(named)
	held, err := lockedElsewhere(named)
	if err := errors.Join(errA, errB, err); err != nil {
		return refuse(err)
	}
	if a != b || !held {
		return refuse(errBadTicket)
	}
	return t, nil
}

// ordinal translates a device of the node to this process's ordinal.
func (d *Driver) ordinal(phys int) (cuda.Device, error) {
	for i, v := range d.visible {
		if v == phys {
			return cuda.Device(i), nil
		}
	}
	return 0, fmt.Errorf("%w: the memory's device is not visible", cuda.ErrorInvalidDevice)
}
