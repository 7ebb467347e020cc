// Package control holds the control connections between contexts: a Unix
// SOCK_SEQPACKET socket in a private directory, frames of package wire on it,
// and descriptors that travel with them.
package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxPath is what fits into sun_path with its terminator.
const maxPath = 107

const (
	socketSuffix = ".sock"
	lockSuffix   = ".lock"
	sweepLock    = "sweep" // held while files are made or swept
)

// Listener is a bound control socket. A lock file beside it, locked while the
// process lives, tells others that the socket is not stale.
type Listener struct {
	*net.UnixListener
	Path string
	lock *os.File
}

// Listen makes the socket name.sock in dir, or in the default directory where
// dir is "", and removes what dead processes left there.
func Listen(dir, name string) (*Listener, error) {
	dir, err := privateDir(dir, name)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	sweeping, err := lockFile(filepath.Join(dir, sweepLock), unix.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	defer sweeping.Close()
	sweep(dir)

	base := filepath.Join(dir, name)
	lock, err := lockFile(base+lockSuffix, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: base + socketSuffix, Net: "unixpacket"})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), os.Remove(lock.Name()), lock.Close())
	}
	return &Listener{UnixListener: l, Path: base + socketSuffix, lock: lock}, nil
}

// Close removes the socket; connections that were accepted stay.
func (l *Listener) Close() error {
	err := l.UnixListener.Close() // unlinks the socket
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return errors.Join(err, os.Remove(l.lock.Name()), l.lock.Close())
}

// privateDir returns a directory that only this user can enter.
func privateDir(dir, name string) (string, error) {
	candidates := []string{dir}
	if dir == "" {
		candidates = nil
		own := "gpurma-" + strconv.Itoa(os.Getuid())
		for _, parent := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), "/tmp"} {
			if parent != "" {
				candidates = append(candidates, filepath.Join(parent, own))
			}
		}
	}
	var errs []error
	for _, d := range candidates {
		err := makePrivate(d)
		if err == nil && len(d)+1+len(name)+len(socketSuffix) > maxPath {
			err = fmt.Errorf("%s: too long for a Unix socket", d)
		}
		if err == nil {
			return d, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

func makePrivate(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o077 != 0 || int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s: mode %o, owner %d: not a private directory of uid %d", dir, st.Mode&0o7777, st.Uid, os.Getuid())
	}
	return nil
}

func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "lock", Path: path, Err: err}, f.Close())
	}
	return f, nil
}

// sweep removes the files of processes that are gone: those whose lock is
// free. Failures are left to the next one who tries.
func sweep(dir string) {
	locks, _ := filepath.Glob(filepath.Join(dir, "*"+lockSuffix))
	for _, path := range locks {
		f, err := lockFile(path, unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue
		}
		_ = os.Remove(strings.TrimSuffix(path, lockSuffix) + socketSuffix)
		_ = os.Remove(path)
		_ = f.Close()
	}
}
