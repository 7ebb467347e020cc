package softgpu

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// processMu is held around every node lock of this process. Open file
// description locks do not exclude goroutines that share a description, and each
// goroutine that waits for one holds a thread: here at most one waits.
var processMu sync.Mutex

// lockFile takes the exclusive lock of f's open file description, waiting for
// it. The lock ends with unlockFile, or when every copy of the descriptor is
// closed, the process's death included.
func lockFile(f *os.File) error {
	return onFD(f, func(fd uintptr) error {
		for {
			err := unix.FcntlFlock(fd, unix.F_OFD_SETLKW, wholeFile(unix.F_WRLCK))
			if !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	})
}

// tryLockFile is lockFile without waiting; it tells whether it got the lock.
func tryLockFile(f *os.File) (bool, error) {
	err := onFD(f, func(fd uintptr) error {
		return unix.FcntlFlock(fd, unix.F_OFD_SETLK, wholeFile(unix.F_WRLCK))
	})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

func unlockFile(f *os.File) error {
	return onFD(f, func(fd uintptr) error {
		return unix.FcntlFlock(fd, unix.F_OFD_SETLK, wholeFile(unix.F_UNLCK))
	})
}

// lockedElsewhere tells whether another description than f's holds a lock on
// the file. It takes none.
func lockedElsewhere(f *os.File) (bool, error) {
	l := wholeFile(unix.F_WRLCK)
	err := onFD(f, func(fd uintptr) error {
		return unix.FcntlFlock(fd, unix.F_OFD_GETLK, l)
	})
	return err == nil && l.Type != unix.F_UNLCK, err
}

func wholeFile(kind int16) *unix.Flock_t { return &unix.Flock_t{Type: kind} }

// onFD runs call on f's descriptor, which stays open meanwhile.
func onFD(f *os.File, call func(fd uintptr) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = call(fd) }); err != nil {
		return err
	}
	return inner
}

func inode(f *os.File) (ino, links uint64, err error) {
	var st unix.Stat_t
	err = onFD(f, func(fd uintptr) error { return unix.Fstat(int(fd), &st) })
	return st.Ino, uint64(st.Nlink), err
}
