package softgpu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// sweepLimit bounds how many directory entries a sweep looks at.
const sweepLimit = 4096

// youngNode is how long a half-made node may be in the making.
const youngNode = time.Minute

// sweep removes the nodes in a directory whose processes have all died. It is
// done in passing: what it cannot read or lock it leaves alone.
func sweep(parent string) {
	dir, err := os.Open(parent)
	if err != nil {
		return
	}
	names, _ := dir.Readdirnames(sweepLimit)
	dir.Close()
	for _, name := range names {
		path := filepath.Join(parent, name)
		if checkDir(path) == nil {
			sweepNode(path)
		}
	}
}

func sweepNode(path string) {
	name := filepath.Base(path)
	if strings.HasPrefix(name, oldNodePart) {
		os.RemoveAll(path)
		return
	}
	f, err := os.OpenFile(filepath.Join(path, nodeFile), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		st, err := os.Stat(path)
		if err == nil && strings.HasPrefix(name, newNodePart) && time.Since(st.ModTime()) > youngNode {
			os.RemoveAll(path)
		}
		return
	}
	if err != nil {
		return
	}
	defer f.Close()
	processMu.Lock()
	defer processMu.Unlock()
	if got, err := tryLockFile(f); err != nil || !got {
		return
	}
	buf := make([]byte, headerSize)
	if _, err := f.ReadAt(buf, 0); err != nil {
		return
	}
	h, err := decodeHeader(buf)
	n := &node{header: h, path: path, lockf: f}
	if err != nil || n.stillThere() != nil {
		return
	}
	if alive, err := n.anyAlive(); err == nil && !alive {
		// The next sweep tries again what could not be removed.
		_ = n.remove()
	}
}

// anyAlive tells whether a process or a ticket of the node lives.
func (n *node) anyAlive() (bool, error) {
	entries, err := os.ReadDir(n.path)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if !isHolderFile(e.Name()) {
			continue
		}
		f, err := os.Open(filepath.Join(n.path, e.Name()))
		if err != nil {
			return false, err
		}
		alive, err := lockedElsewhere(f)
		f.Close()
		if alive || err != nil {
			return alive, err
		}
	}
	return false, nil
}

func isHolderFile(name string) bool {
	return strings.HasPrefix(name, tablePart) || strings.HasPrefix(name, ticketPart)
}

func isNodeFile(name string) bool {
	return name == nodeFile || isHolderFile(name) || strings.HasPrefix(name, devicePart)
}
