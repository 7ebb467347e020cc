package softgpu

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// disk is the file system under the device files, as far as it can run short.
type disk interface {
	// available is how many bytes can still be stored; ok is false where the
	// file system has no limit.
	available(d *deviceFile) (n uint64, ok bool, err error)
	// stored is how many bytes the device's file takes.
	stored(d *deviceFile) (uint64, error)
	// reserve stores a range of the file for good.
	reserve(d *deviceFile, off, n int64) error
	// punch takes the storage of a range away.
	punch(d *deviceFile, off, n int64) error
}

// sparseShare: blocks are left sparse as long as everything that is promised
// but not stored is at most this share of what is available.
const sparseShare = 4

// back makes sure that writes to newly taken blocks cannot run into a full file
// system: it leaves them sparse where there is plenty, else it stores them.
func (n *node) back(device int, es []extent, c *census) error {
	var stored, promised uint64
	for d, f := range n.devices {
		s, err := n.disk.stored(f)
		if err != nil {
			return err
		}
		stored += s
		promised += c.used[d].count() * BlockSize
	}
	sparse := promised - min(stored, promised)
	want := uint64(blockCount(es)) * BlockSize
	avail, limited, err := n.disk.available(n.devices[device])
	switch {
	case err != nil:
		return err
	case !limited || (sparse+want) <= avail/sparseShare:
		return nil
	case want > avail || sparse > avail-want:
		return fmt.Errorf("%w: the file system of %s has %d bytes left, %d of them promised",
			cuda.ErrorOutOfMemory, n.path, avail, sparse)
	}
	for i, e := range es {
		err := n.reserveExtent(device, e)
		if err == nil {
			continue
		}
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: the file system of %s is full", cuda.ErrorOutOfMemory, n.path)
		}
		return errors.Join(err, n.punch(device, es[:i+1]))
	}
	return nil
}

// reserveExtent stores blocks piece by piece: a long call can be interrupted by
// the runtime's signals again and again.
func (n *node) reserveExtent(device int, e extent) error {
	const piece = 32
	for done := uint32(0); done < e.count; {
		count := min(piece, e.count-done)
		err := n.disk.reserve(n.devices[device], int64(e.first+done)*BlockSize, int64(count)*BlockSize)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		done += count
	}
	return nil
}

// punch gives the storage of blocks back that nobody holds.
func (n *node) punch(device int, es []extent) error {
	if n.devices == nil {
		return nil // a node that is being swept, file and all
	}
	var errs []error
	for _, e := range es {
		errs = append(errs, n.disk.punch(n.devices[device], int64(e.first)*BlockSize, int64(e.count)*BlockSize))
	}
	return errors.Join(errs...)
}

// realDisk asks the operating system.
type realDisk struct{}

func (realDisk) available(d *deviceFile) (uint64, bool, error) {
	var st unix.Statfs_t
	err := onFD(d.f, func(fd uintptr) error { return unix.Fstatfs(int(fd), &st) })
	return st.Bavail * uint64(st.Bsize), st.Blocks != 0, err
}

func (realDisk) stored(d *deviceFile) (uint64, error) {
	var st unix.Stat_t
	err := onFD(d.f, func(fd uintptr) error { return unix.Fstat(int(fd), &st) })
	return uint64(st.Blocks) * 512, err
}

func (realDisk) reserve(d *deviceFile, off, n int64) error {
	return onFD(d.f, func(fd uintptr) error {
		return unix.Fallocate(int(fd), unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
}

func (realDisk) punch(d *deviceFile, off, n int64) error {
	return onFD(d.f, func(fd uintptr) error {
		for {
			err := unix.Fallocate(int(fd), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, off, n)
			if !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	})
}
