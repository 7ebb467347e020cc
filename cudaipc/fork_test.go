package cudaipc

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A real fork: the child makes raw system calls only, since none of the Go
// runtime's other threads came along.
func TestForkedChildIsFound(t *testing.T) {
	mark := forkMark
	if mark == nil {
		t.Skip("found a kernel without MADV_WIPEONFORK, need Linux 4.14")
	}
	require.False(t, forked())
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 && errno == 0 {
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(40+mark[0]), 0, 0)
	}
	require.Zero(t, errno)
	var status unix.WaitStatus
	_, err := unix.Wait4(int(pid), &status, 0, nil)
	require.NoError(t, err)
	require.Equal(t, 40, status.ExitStatus(), "the mark was not wiped in the child")
}

// What a forked child gets from everything that would call the driver.
func TestForkedChildIsRefused(t *testing.T) {
	mark := forkMark
	if mark == nil {
		t.Skip("found a kernel without MADV_WIPEONFORK, need Linux 4.14")
	}
	d := newFake()
	c := mustCache(t, d, CacheOptions{})
	k := d.export(7, 0x1000, kib)
	var cl Claim
	m := mustMap(t, c, k, MapOptions{})
	m.ClaimInto(&cl)
	other := mustMap(t, c, k, MapOptions{})

	mark[0] = 0
	_, errs := Self()
	refused := []error{errs}
	_, err := c.Map(t.Context(), k, MapOptions{})
	refused = append(refused, err, c.Close())
	_, err = c.EvictIdle(0)
	refused = append(refused, err)
	_, err = c.CloseIdle(k)
	refused = append(refused, err)
	_, err = NewCache(d, CacheOptions{})
	refused = append(refused, err)
	_, err = Register(d, 0, 0x1000, 1, RegisterOptions{})
	refused = append(refused, err)
	var again Mapping
	pinned := cl.PinInto(&again)
	mark[0] = 1

	for i, err := range refused {
		require.ErrorIs(t, err, ErrForked, "call %d", i)
	}
	require.False(t, pinned)
	require.NoError(t, m.Release(FreeUnused))
	require.NoError(t, other.Release(FreeUnused))
	require.NoError(t, cl.Release(FreeUnused))
}
