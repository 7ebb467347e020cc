package softgpu

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// deviceFile is one device's physical memory, mapped once in this process.
type deviceFile struct {
	f   *os.File
	mem []byte
}

// openDevice maps the file of a device with the given bytes of memory, making
// the file where there is none. It is called under the node lock.
func openDevice(name string, memory uint64) (_ *deviceFile, err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch uint64(st.Size()) {
	case memory:
	case 0:
		if err := f.Truncate(int64(memory)); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("damaged device file: %d bytes, want %d", st.Size(), memory)
	}
	d := &deviceFile{f: f}
	err = onFD(f, func(fd uintptr) (err error) {
		d.mem, err = unix.Mmap(int(fd), 0, int(memory), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of device memory: %w", memory, err)
	}
	return d, nil
}

func (d *deviceFile) close() error {
	err := unix.Munmap(d.mem)
	d.mem = nil
	return errors.Join(err, d.f.Close())
}
