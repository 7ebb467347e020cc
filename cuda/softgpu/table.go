package softgpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A table file is a page of header, a bitmap of held blocks for each device,
// and slots. All numbers are little-endian. It is written with the node lock
// held and only by its owner; others read it with the node lock held.
const (
	tableMagic    = "SGPUTAB1"
	tableHeader   = 4096
	contextsAt    = 64 // a count of contexts for each device
	slotSize      = 128
	slotHeadSize  = 40
	slotExtents   = (slotSize - slotHeadSize) / 8
	continuesFlag = 1 << 63 // in a state word: the slot continues another one
)

// slot describes an allocation that other processes can open. Its first word,
// the state, is the allocation's number and is written last and cleared first.
type slot struct {
	id      uint64 // unique in its table, never 0
	device  uint32 // of the node
	size    uint64
	offset  uint32 // of the allocation in its first block
	va      uint64 // the owner's address
	extents []extent
}

// table is this process's own table.
type table struct {
	f        *os.File
	path     string
	id       uint64
	held     []bitmap   // per device, as in the file
	refs     [][]uint32 // per device and block: how often this process holds it
	contexts []uint32   // per device
	free     []uint32   // slots to use again
	slots    uint32
}

func bitmapBytes(blocks uint32) int { return (int(blocks) + 63) / 64 * 8 }

func slotsAt(h *header) int64 { return int64(tableHeader + h.devices*bitmapBytes(h.blocks)) }

// createTable makes, locks and links in a table, in this order: whoever sees it
// sees it locked.
func createTable(n *node, id uint64) (_ *table, err error) {
	t := &table{id: id, path: filepath.Join(n.path, fmt.Sprintf("%s%016x", tablePart, id)),
		contexts: make([]uint32, n.header.devices)}
	for range n.header.devices {
		t.held = append(t.held, newBitmap(n.blocks))
		t.refs = append(t.refs, make([]uint32, n.blocks))
	}
	head := make([]byte, slotsAt(&n.header))
	copy(head, tableMagic)
	binary.LittleEndian.PutUint64(head[8:], id)
	binary.LittleEndian.PutUint64(head[16:], uint64(os.Getpid()))
	t.f, err = createLocked(n.path, t.path, head)
	return t, err
}

// createLocked makes a file with the given content that appears under its name
// locked and complete.
func createLocked(dir, path string, content []byte) (_ *os.File, err error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "make file in", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if _, err := f.WriteAt(content, 0); err != nil {
		return nil, err
	}
	if got, err := tryLockFile(f); err != nil || !got {
		return nil, fmt.Errorf("lock new file %s: %v, %w", path, got, err)
	}
	proc := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := unix.Linkat(unix.AT_FDCWD, proc, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		return nil, &os.LinkError{Op: "link", Old: proc, New: path, Err: err}
	}
	return f, nil
}

// addContext counts contexts of a device up or down.
func (t *table) addContext(device int, delta int32) error {
	n := uint32(int32(t.contexts[device]) + delta)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	if _, err := t.f.WriteAt(b[:], int64(contextsAt+8*device)); err != nil {
		return err
	}
	t.contexts[device] = n
	return nil
}

// hold counts one more reference of each block.
func (t *table) hold(device int, es []extent) error {
	for _, e := range es {
		for i := e.first; i < e.first+e.count; i++ {
			if t.refs[device][i]++; t.refs[device][i] == 1 {
				t.held[device].set(i)
			}
		}
	}
	if err := t.writeHeld(device, es); err != nil {
		return errors.Join(err, t.writeHeld(device, t.unhold(device, es)))
	}
	return nil
}

// unhold counts one reference of each block down, and returns the blocks that
// this process no longer holds. The file still says that it does.
func (t *table) unhold(device int, es []extent) (dropped []extent) {
	for _, e := range es {
		for i := e.first; i < e.first+e.count; i++ {
			if t.refs[device][i]--; t.refs[device][i] == 0 {
				t.held[device].clear(i)
				dropped = appendBlock(dropped, i)
			}
		}
	}
	return dropped
}

// writeHeld brings the file's bitmap up to date for the given blocks.
func (t *table) writeHeld(device int, es []extent) error {
	at := int64(tableHeader + device*len(t.held[device])*8)
	for _, e := range es {
		first, last := e.first/64, (e.first+e.count-1)/64
		b := make([]byte, 0, 8*(last-first+1))
		for _, w := range t.held[device][first : last+1] {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		if _, err := t.f.WriteAt(b, at+int64(first)*8); err != nil {
			return err
		}
	}
	return nil
}

// remove takes the table out of its node and ends the process's life there.
func (t *table) remove() error {
	return errors.Join(os.Remove(t.path), t.f.Close())
}
