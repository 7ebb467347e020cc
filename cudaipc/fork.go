package cudaipc

import (
	"os"

	"golang.org/x/sys/unix"
)

// forkMark is a page that the kernel wipes in a forked child, so that asking
// costs one load and no system call; nil where the kernel cannot do that.
var forkMark = newForkMark()

func newForkMark() []byte {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil
	}
	if err := unix.Madvise(page, unix.MADV_WIPEONFORK); err != nil {
		_ = unix.Munmap(page)
		return nil
	}
	page[0] = 1
	return page
}

// bornAs is the pid this package was initialised in.
var bornAs = os.Getpid()

// forked tells whether this process is a forked child of the one that
// initialised the package.
func forked() bool {
	if len(forkMark) > 0 {
		return forkMark[0] == 0
	}
	return os.Getpid() != bornAs
}
