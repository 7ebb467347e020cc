package cudaipc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// vmmMapping is memory imported by a descriptor: a handle, a range of addresses
// and the mapping of one in the other, each with its own undo.
type vmmMapping struct {
	drv  cuda.Driver
	ctx  cuda.Context
	size uint64

	handle cuda.MemHandle
	base   cuda.DevicePtr
	// What there is to undo.
	imported, reserved, mapped bool
}

// importPosixFD fetches the exporter's descriptor and maps its memory. A mapping
// beside an error is what could not be undone.
func (c *Cache) importPosixFD(ctx context.Context, e *entry, h Handle, mctx cuda.Context, opts MapOptions) (imported, error) {
	fd, err := c.fetchFD(ctx, e, h, opts)
	if err != nil {
		return nil, err
	}
	// The import takes a reference of its own.
	defer unix.Close(fd)
	m := &vmmMapping{drv: c.drv, ctx: mctx, size: e.key.Length}
	err = blocking(func() error { return m.open(fd, e.device) })
	if err == nil {
		return m, nil
	}
	if undo := m.close(); undo != nil {
		return m, errors.Join(err, undo)
	}
	return nil, err
}

func (c *Cache) fetchFD(ctx context.Context, e *entry, h Handle, opts MapOptions) (int, error) {
	if opts.FetchFD == nil {
		return takeFD(e.key.Identity, c.identity, int(binary.LittleEndian.Uint32(h.Data)))
	}
	key := e.key.clone() // what the function does with it is its own affair
	fd, err := opts.FetchFD(ctx, &key)
	if err != nil {
		return -1, fmt.Errorf("%w: fetch descriptor: %w", ErrUnreachable, err)
	}
	c.mu.Lock()
	c.totals.fetched++
	c.mu.Unlock()
	return fd, nil
}

// open makes the four steps and stops at the first that fails; close undoes.
func (m *vmmMapping) open(fd int, dev cuda.Device) (err error) {
	if m.handle, err = m.drv.MemImportPosixFD(m.ctx, fd); err != nil {
		return openError(KindPosixFD, err, "import descriptor")
	}
	m.imported = true
	if m.base, err = m.drv.MemAddressReserve(m.ctx, m.size, 0); err != nil {
		return lengthError(err, "reserve addresses", m.size)
	}
	m.reserved = true
	if err = m.drv.MemMap(m.ctx, m.base, m.size, 0, m.handle); err != nil {
		return lengthError(err, "map memory", m.size)
	}
	m.mapped = true
	if err = m.drv.MemSetAccess(m.ctx, m.base, m.size, dev, cuda.AccessReadWrite); err != nil {
		return openError(KindPosixFD, err, "set access")
	}
	return nil
}

// lengthError is for a step that only a wrong length makes invalid.
func lengthError(err error, what string, size uint64) error {
	if errors.Is(err, cuda.ErrorInvalidValue) {
		return fmt.Errorf("%w: %s of %d bytes: %w", ErrInvalidKey, what, size, err)
	}
	return openError(KindPosixFD, err, what)
}

func (m *vmmMapping) kind() Kind          { return KindPosixFD }
func (m *vmmMapping) ptr() cuda.DevicePtr { return m.base }

// close tries each step that is to undo, whatever became of the others.
func (m *vmmMapping) close() error {
	return blocking(func() error {
		return errors.Join(
			undoStep(&m.mapped, "unmap memory", func() error { return m.drv.MemUnmap(m.ctx, m.base, m.size) }),
			undoStep(&m.reserved, "free addresses", func() error { return m.drv.MemAddressFree(m.ctx, m.base, m.size) }),
			undoStep(&m.imported, "release memory", func() error { return m.drv.MemRelease(m.ctx, m.handle) }),
		)
	})
}

func undoStep(todo *bool, what string, undo func() error) error {
	if !*todo {
		return nil
	}
	if err := undo(); err != nil && !tornDown(err) {
		return fmt.Errorf("%s: %w", what, err)
	}
	*todo = false
	return nil
}
