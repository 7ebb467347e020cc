package softgpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// census is what all live processes and tickets of a node hold, counted under
// the node lock.
type census struct {
	others   []bitmap // per device: held by other processes and by tickets
	used     []bitmap // the same and this process's own
	contexts []uint64 // per device: bytes taken by contexts
	holders  int      // live processes and tickets besides this process
}

// free is how many bytes of a device nobody holds.
func (c *census) free(h *header, device int) uint64 {
	taken := c.used[device].count()*BlockSize + c.contexts[device]
	return h.memory() - min(taken, h.memory())
}

// takeCensus counts, and drops the holders that have died. own may be nil.
func (n *node) takeCensus(own *table) (*census, error) {
	c := &census{contexts: make([]uint64, n.header.devices)}
	for d := range n.header.devices {
		c.others = append(c.others, newBitmap(n.blocks))
		if own != nil && own.contexts[d] > 0 {
			c.contexts[d] += n.contextCost
		}
	}
	entries, err := os.ReadDir(n.path)
	if err != nil {
		return nil, err
	}
	var dead []string
	for _, e := range entries {
		name := filepath.Join(n.path, e.Name())
		if !isHolderFile(e.Name()) || own != nil && name == own.path {
			continue
		}
		alive, err := n.countHolder(name, c)
		if err != nil {
			return nil, err
		}
		if !alive {
			dead = append(dead, name)
		}
	}
	for d := range n.header.devices {
		used := newBitmap(n.blocks)
		used.add(c.others[d])
		if own != nil {
			used.add(own.held[d])
		}
		c.used = append(c.used, used)
	}
	for _, name := range dead {
		if err := n.bury(name, c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// countHolder adds what the process or ticket of a file holds, if it lives.
func (n *node) countHolder(name string, c *census) (alive bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if alive, err = lockedElsewhere(f); err != nil || !alive {
		return alive, err
	}
	held, contexts, err := n.readHolder(f, name)
	if err != nil {
		return true, fmt.Errorf("%s of a live process: %w", name, err)
	}
	for d := range held {
		c.others[d].add(held[d])
		if contexts[d] > 0 {
			c.contexts[d] += n.contextCost
		}
	}
	c.holders++
	return true, nil
}

// bury drops a dead holder: first its blocks that nobody else holds, then its
// file. Whoever is killed in between leaves it to the next one.
func (n *node) bury(name string, c *census) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	// A dead holder whose file is damaged is dropped with what it says unread:
	// its blocks are free, as nobody holds them.
	if held, _, err := n.readHolder(f, name); err == nil {
		for d := range held {
			if err := n.punch(d, held[d].without(c.used[d])); err != nil {
				return err
			}
		}
	}
	return os.Remove(name)
}

// readHolder reads which blocks a table or ticket holds on each device, and how
// many contexts it has there.
func (n *node) readHolder(f *os.File, name string) (held []bitmap, contexts []uint64, err error) {
	contexts = make([]uint64, n.header.devices)
	if strings.HasPrefix(filepath.Base(name), ticketPart) {
		t, err := readTicket(f, &n.header)
		if err != nil {
			return nil, nil, err
		}
		for range n.header.devices {
			held = append(held, newBitmap(n.blocks))
		}
		held[t.device].setExtents(t.extents) // none of a pool's
		return held, contexts, nil
	}
	b := make([]byte, slotsAt(&n.header))
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, nil, err
	}
	if string(b[:len(tableMagic)]) != tableMagic {
		return nil, nil, errors.New("damaged table")
	}
	for d := range n.header.devices {
		contexts[d] = binary.LittleEndian.Uint64(b[contextsAt+8*d:])
		bits := newBitmap(n.blocks)
		for w := range bits {
			bits[w] = binary.LittleEndian.Uint64(b[tableHeader+d*bitmapBytes(n.blocks)+8*w:])
		}
		if tail := n.blocks % 64; tail != 0 {
			bits[len(bits)-1] &= 1<<tail - 1
		}
		held = append(held, bits)
	}
	return held, contexts, nil
}
