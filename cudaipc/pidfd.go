package cudaipc

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// pidfdGetfd is unix.PidfdGetfd, unless a test stands in for a kernel that
// refuses.
var pidfdGetfd = unix.PidfdGetfd

// takeFD copies descriptor number fd of the process that id names. The kernel
// asks for the rights of a debugger for it.
func takeFD(id, self Identity, fd int) (int, error) {
	if id.PIDNS != 0 && self.PIDNS != 0 && id.PIDNS != self.PIDNS {
		return -1, fmt.Errorf("%w: the exporter's pid %d is of another pid namespace; its descriptor can only come by a socket", ErrUnreachable, id.PID)
	}
	pidfd, err := unix.PidfdOpen(int(id.PID), 0)
	if err != nil {
		return -1, pidfdError("find the exporter", id, err)
	}
	defer unix.Close(pidfd)
	// The start time tells whether the pid was reused; that the process the
	// pidfd stands for lives afterwards shows that it was its own.
	start, err := startTime(fmt.Sprintf("/proc/%d/stat", id.PID))
	if err != nil {
		return -1, fmt.Errorf("%w: the exporter, pid %d: %w", ErrUnreachable, id.PID, err)
	}
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); errors.Is(err, unix.ESRCH) {
		return -1, pidfdError("find the exporter", id, err)
	}
	if start != id.Start {
		return -1, fmt.Errorf("%w: the exporter has died, its pid %d is another process's now", ErrUnreachable, id.PID)
	}
	got, err := pidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return -1, pidfdError(fmt.Sprintf("take descriptor %d of the exporter", fd), id, err)
	}
	return got, nil
}

// pidfdError adds what to do about err.
func pidfdError(what string, id Identity, err error) error {
	hint := ""
	switch {
	case errors.Is(err, unix.EPERM):
		hint = " (needs the rights of a debugger: the same user, and kernel.yama.ptrace_scope 0 or CAP_SYS_PTRACE; or hand the descriptor over by a socket)"
	case errors.Is(err, unix.ENOSYS):
		hint = " (needs Linux 5.6, and a container that allows the call; or hand the descriptor over by a socket)"
	case errors.Is(err, unix.EBADF):
		hint = " (the exporter has closed it: its registration is gone)"
	case errors.Is(err, unix.ESRCH):
		hint = " (the exporter has died)"
	}
	return fmt.Errorf("%w: %s, pid %d: %w%s", ErrUnreachable, what, id.PID, err, hint)
}
