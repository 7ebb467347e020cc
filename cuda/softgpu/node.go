package softgpu

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	nodeFile    = "node"
	devicePart  = "device-"
	tablePart   = "table-"
	ticketPart  = "ticket-"
	newNodePart = ".softgpu-new-"
	oldNodePart = ".softgpu-old-"
)

// errNodeGone is returned by attach when the node does not exist, or went away
// meanwhile: make it and try again.
var errNodeGone = errors.New("node is gone")

// node is a process's access to a node directory.
type node struct {
	header
	path    string
	lockf   *os.File // the node file; its description carries the node lock
	devices []*deviceFile
	disk    disk
}

// openNode joins the node that cfg names, making it where there is none, and
// returns with the node lock held.
func openNode(cfg Config) (*node, error) {
	const tries = 1000
	for range tries {
		n, err := attachNode(cfg)
		if errors.Is(err, errNodeGone) {
			n, err = createNode(cfg)
		}
		if errors.Is(err, errNodeGone) {
			continue
		}
		return n, err
	}
	return nil, fmt.Errorf("node %s came and went %d times", cfg.Node, tries)
}

// attachNode joins an existing directory. One without a node file becomes a
// node in place, and its directory stays when the node ends.
func attachNode(cfg Config) (_ *node, err error) {
	if err := checkDir(cfg.Node); err != nil {
		return nil, err
	}
	n := &node{path: cfg.Node, disk: realDisk{}}
	name := filepath.Join(n.path, nodeFile)
	n.lockf, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNodeGone
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err := n.lock(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.unlock())
		}
	}()
	if err := n.stillThere(); err != nil {
		return nil, err
	}
	buf := make([]byte, headerSize)
	switch got, rerr := n.lockf.ReadAt(buf, 0); {
	case got == headerSize:
		if n.header, err = decodeHeader(buf); err != nil {
			return nil, fmt.Errorf("node %s: %w", n.path, err)
		}
		if err := n.matches(cfg); err != nil {
			return nil, fmt.Errorf("node %s: %w", n.path, err)
		}
	case rerr != nil && got == 0 && n.isEmpty():
		if err := n.initialise(cfg, false); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("node %s: damaged node file of %d bytes (%v)", n.path, got, rerr)
	}
	if err := n.openDevices(); err != nil {
		return nil, err
	}
	return n, nil
}

// createNode makes a node beside its place and renames it there, complete and
// locked, so that nobody sees half of one.
func createNode(cfg Config) (_ *node, err error) {
	parent := filepath.Dir(cfg.Node)
	temp, err := os.MkdirTemp(parent, newNodePart)
	if err != nil {
		return nil, err
	}
	n := &node{path: temp, disk: realDisk{}}
	locked := false
	defer func() {
		if err == nil {
			return
		}
		if locked {
			err = errors.Join(err, n.unlock())
		}
		err = errors.Join(err, n.close(), os.RemoveAll(temp))
	}()
	n.lockf, err = os.OpenFile(filepath.Join(temp, nodeFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := n.lock(); err != nil {
		return nil, err
	}
	locked = true
	if err := n.initialise(cfg, true); err != nil {
		return nil, err
	}
	if err := n.openDevices(); err != nil {
		return nil, err
	}
	err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, cfg.Node, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		return nil, errNodeGone
	}
	if err != nil {
		return nil, fmt.Errorf("make node %s: %w", cfg.Node, err)
	}
	n.path = cfg.Node
	return n, nil
}

func (n *node) initialise(cfg Config, ownDir bool) error {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	h := newHeader(cfg, id)
	if err := h.matches(cfg); err != nil {
		return err
	}
	h.ownDir = ownDir
	n.header = h
	if _, err := n.lockf.WriteAt(h.encode(), 0); err != nil {
		return fmt.Errorf("make node %s: %w", n.path, err)
	}
	return nil
}

func (n *node) openDevices() error {
	for i := range n.header.devices {
		d, err := openDevice(filepath.Join(n.path, fmt.Sprintf("%s%d", devicePart, i)), n.memory())
		if err != nil {
			return fmt.Errorf("node %s: %w", n.path, err)
		}
		n.devices = append(n.devices, d)
	}
	return nil
}

// checkDir refuses a directory that somebody else could have prepared.
func checkDir(path string) error {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return errNodeGone
	case err != nil:
		return fmt.Errorf("node %s: %w", path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("node %s is not a directory", path)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("node %s belongs to user %d, this process runs as user %d", path, st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return fmt.Errorf("node %s has mode %#o, want 0700: others could reach it", path, st.Mode&0o7777)
	}
	return nil
}

// stillThere tells whether the locked node file is the one that the path names.
func (n *node) stillThere() error {
	ino, links, err := inode(n.lockf)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(n.path, nodeFile), &st); err != nil || links == 0 || st.Ino != ino {
		return errNodeGone
	}
	return nil
}

// isEmpty tells whether the directory holds nothing but the node file.
func (n *node) isEmpty() bool {
	entries, err := os.ReadDir(n.path)
	return err == nil && len(entries) == 1
}

func (n *node) lock() error {
	processMu.Lock()
	if err := lockFile(n.lockf); err != nil {
		processMu.Unlock()
		return fmt.Errorf("lock node %s: %w", n.path, err)
	}
	return nil
}

func (n *node) unlock() error {
	defer processMu.Unlock()
	return unlockFile(n.lockf)
}

// close gives back what this process has of the node; the node stays.
func (n *node) close() error {
	var errs []error
	for _, d := range n.devices {
		errs = append(errs, d.close())
	}
	n.devices = nil
	if n.lockf != nil {
		errs = append(errs, n.lockf.Close())
	}
	return errors.Join(errs...)
}

// remove ends the node, under its lock. The directory is renamed first, so that
// a new node of that name can be made at once and a remover that is killed
// leaves only what the next sweep takes away.
func (n *node) remove() error {
	if !n.ownDir {
		return n.removeFiles()
	}
	old, err := retire(n.path)
	if err != nil {
		return err
	}
	return os.RemoveAll(old)
}

func (n *node) removeFiles() error {
	entries, err := os.ReadDir(n.path)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if isNodeFile(e.Name()) && e.Name() != nodeFile {
			errs = append(errs, os.Remove(filepath.Join(n.path, e.Name())))
		}
	}
	errs = append(errs, os.Remove(filepath.Join(n.path, nodeFile)))
	return errors.Join(errs...)
}

func retire(path string) (string, error) {
	old := filepath.Join(filepath.Dir(path), oldNodePart+rand.Text())
	return old, os.Rename(path, old)
}
