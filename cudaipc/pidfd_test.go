package cudaipc

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func init() {
	// memfd: a process with an exported descriptor, without any GPU. The key
	// names it.
	roles["memfd"] = func(in *bufio.Scanner, out io.Writer) error {
		raw, err := unix.MemfdCreate("exported", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		fd, err := freshFDs.move(raw)
		if err != nil {
			return err
		}
		if _, err := unix.Write(fd, []byte("the exporter's bytes")); err != nil {
			return err
		}
		id, err := Self()
		if err != nil {
			return err
		}
		k := Key{Identity: id, Length: 20, UserLength: 20, Handles: []Handle{{KindPosixFD, []byte{byte(fd), byte(fd >> 8), 0, 0}}}}
		b, err := k.MarshalBinary()
		if err != nil {
			return err
		}
		fmt.Fprintln(out, hex.EncodeToString(b))
		for in.Scan() {
			switch in.Text() {
			case "close":
				err = unix.Close(fd)
			case "count":
			}
			fmt.Fprintln(out, openFDs(), err)
		}
		return nil
	}
}

func openFDs() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}

func fdOf(k *Key) int { return int(k.Handles[0].Data[0]) | int(k.Handles[0].Data[1])<<8 }

// S24: a descriptor is taken from a living process and from no other.
func TestS24DescriptorByPidfd(t *testing.T) {
	self, err := Self()
	require.NoError(t, err)
	exporter := startChild(t, "memfd")
	k := exporter.key()
	before, mine := exporter.say("count"), openFDs()

	t.Run("taken, 1000 times", func(t *testing.T) {
		for range 1000 {
			fd, err := takeFD(k.Identity, self, fdOf(k))
			require.NoError(t, err)
			var b [64]byte
			n, err := unix.Pread(fd, b[:], 0)
			require.NoError(t, err)
			require.Equal(t, "the exporter's bytes", string(b[:n]))
			require.NoError(t, unix.Close(fd))
		}
	})
	for name, refusal := range map[string]unix.Errno{"no right": unix.EPERM, "no such call": unix.ENOSYS} {
		t.Run(name, func(t *testing.T) {
			pidfdGetfd = func(int, int, int) (int, error) { return -1, refusal }
			t.Cleanup(func() { pidfdGetfd = unix.PidfdGetfd })
			_, err := takeFD(k.Identity, self, fdOf(k))
			require.ErrorIs(t, err, ErrUnreachable)
			require.ErrorIs(t, err, refusal)
			require.ErrorContains(t, err, "socket", "a hint")
		})
	}
	t.Run("pid reused", func(t *testing.T) {
		id := k.Identity
		id.Start++
		_, err := takeFD(id, self, fdOf(k))
		require.ErrorIs(t, err, ErrUnreachable)
		require.ErrorContains(t, err, "has died")
	})
	t.Run("another pid namespace", func(t *testing.T) {
		id := k.Identity
		id.PIDNS++
		_, err := takeFD(id, self, fdOf(k))
		require.ErrorIs(t, err, ErrUnreachable)
	})
	require.Equal(t, before, exporter.say("count"), "descriptors of the exporter")
	require.Equal(t, mine, openFDs(), "descriptors of the importer")

	t.Run("closed by the exporter", func(t *testing.T) {
		exporter.say("close")
		_, err := takeFD(k.Identity, self, fdOf(k))
		require.ErrorIs(t, err, ErrUnreachable)
		require.ErrorIs(t, err, unix.EBADF)
	})
	t.Run("exporter dead", func(t *testing.T) {
		exporter.kill()
		_, err := takeFD(k.Identity, self, fdOf(k))
		require.ErrorIs(t, err, ErrUnreachable)
	})
}

// A number that was exported is never exported again.
func TestExportedNumbersAreFresh(t *testing.T) {
	last := -1
	for range 100 {
		raw, err := unix.MemfdCreate("exported", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		fd, err := freshFDs.move(raw)
		require.NoError(t, err)
		require.Greater(t, fd, last)
		_, err = unix.FcntlInt(uintptr(raw), unix.F_GETFD, 0)
		require.ErrorIs(t, err, unix.EBADF, "the old number is closed")
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.Equal(t, unix.FD_CLOEXEC, flags)
		require.NoError(t, unix.Close(fd))
		last = fd
	}
}

func TestSelf(t *testing.T) {
	a, err := Self()
	require.NoError(t, err)
	b, err := Self()
	require.NoError(t, err)
	require.Equal(t, a, b)
	require.EqualValues(t, os.Getpid(), a.PID)
	require.NotZero(t, a.System)
	require.NotZero(t, a.Nonce)
	start, err := startTime(fmt.Sprintf("/proc/%d/stat", os.Getpid()))
	require.NoError(t, err)
	require.Equal(t, start, a.Start)
	other := startChild(t, "memfd").key().Identity
	require.Equal(t, a.System, other.System)
	require.NotEqual(t, a.Nonce, other.Nonce)
}

// The command in a stat file may hold anything.
func TestStartTime(t *testing.T) {
	path := t.TempDir() + "/stat"
	require.NoError(t, os.WriteFile(path, []byte("7 (a) b) (c) S 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 987654 23 24"), 0o600))
	got, err := startTime(path)
	require.NoError(t, err)
	require.EqualValues(t, 987654, got)
	for _, bad := range []string{"", "7 a S 3", "7 (a) S 3"} {
		require.NoError(t, os.WriteFile(path, []byte(bad), 0o600))
		_, err := startTime(path)
		require.Error(t, err)
	}
}
