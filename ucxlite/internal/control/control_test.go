package control

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpurma/gpurma/ucxlite/internal/wire"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mustDir has a name that fits a Unix socket; TempDir's may not.
func mustDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/tmp", "u")
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, os.RemoveAll(dir)) })
	return dir
}

func mustListen(tb testing.TB, dir, name string) *Listener {
	tb.Helper()
	l, err := Listen(dir, name)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, l.Close()) })
	return l
}

// mustConns are the two ends of a connection.
func mustConns(tb testing.TB) (dialled, accepted *Conn) {
	tb.Helper()
	l := mustListen(tb, mustDir(tb), "x")
	dialled, err := Dial(l.Path)
	require.NoError(tb, err)
	sock, err := l.AcceptUnix()
	require.NoError(tb, err)
	accepted = NewConn(sock)
	tb.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled, accepted
}

func TestFramesAndDescriptors(t *testing.T) {
	a, b := mustConns(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer file.Close()
	_, err = file.WriteString("hello")
	require.NoError(t, err)

	require.NoError(t, a.Send(&wire.FD{ID: 7}, int(file.Fd())))
	require.NoError(t, a.Send(&wire.FD{ID: 8}))
	f, fd, err := b.Recv()
	require.NoError(t, err)
	require.EqualValues(t, 7, f.(*wire.FD).ID)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	got := make([]byte, 5)
	_, err = unix.Pread(fd, got, 0)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	require.NoError(t, unix.Close(fd))

	f, fd, err = b.Recv()
	require.NoError(t, err)
	require.EqualValues(t, 8, f.(*wire.FD).ID)
	require.Equal(t, -1, fd)

	uid, err := b.PeerUID()
	require.NoError(t, err)
	require.EqualValues(t, os.Getuid(), uid)
	require.NoError(t, a.Close())
	_, _, err = b.Recv()
	require.ErrorIs(t, err, io.EOF)
}

// Descriptors of a message that is refused are closed, however many.
func TestRefusedDescriptorsAreClosed(t *testing.T) {
	a, b := mustConns(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	for _, c := range []struct {
		name  string
		bytes []byte
		fds   int
	}{
		{"garbage", []byte{1, 2, 3}, 1},
		{"more than one", wire.Append(nil, &wire.FD{ID: 1}), 2},
		{"far too many", wire.Append(nil, &wire.FD{ID: 1}), 100},
		{"too long", make([]byte, wire.MaxFrame+2), 1},
	} {
		fds := make([]int, c.fds)
		for i := range fds {
			fds[i] = int(w.Fd())
		}
		_, _, err := a.sock.WriteMsgUnix(c.bytes, unix.UnixRights(fds...), nil)
		require.NoError(t, err, c.name)
		_, fd, err := b.Recv()
		require.ErrorIs(t, err, wire.ErrMalformed, c.name)
		require.Equal(t, -1, fd)
	}
	require.NoError(t, w.Close())
	_, err = r.Read(make([]byte, 1)) // the end comes only when no writer is left
	require.ErrorIs(t, err, io.EOF)
}

func TestListenerFiles(t *testing.T) {
	dir := mustDir(t)
	// A dead process's files: its lock is free.
	for _, name := range []string{"dead.sock", "dead.lock"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	live := mustListen(t, dir, "live")
	_, err := Listen(dir, "live")
	require.Error(t, err, "the name is taken")
	require.NoError(t, mustListen(t, dir, "other").Close())

	entries, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	for i := range entries {
		entries[i] = filepath.Base(entries[i])
	}
	require.Equal(t, []string{"live.lock", "live.sock", "sweep"}, entries)
	st, err := os.Stat(dir)
	require.NoError(t, err)
	require.EqualValues(t, 0o700, st.Mode().Perm())
	require.NoError(t, live.Close())
	require.NoFileExists(t, live.Path)
	require.NoError(t, live.Close())
	_, err = Dial(live.Path)
	require.ErrorIs(t, err, unix.ENOENT)
}

func TestListenRefusesBadDirectories(t *testing.T) {
	open := mustDir(t)
	require.NoError(t, os.Chmod(open, 0o755))
	link := filepath.Join(mustDir(t), "link")
	require.NoError(t, os.Symlink(mustDir(t), link))
	long := filepath.Join(mustDir(t), strings.Repeat("x", 100))
	for name, dir := range map[string]string{"open to others": open, "a link": link, "too long": long, "no parent": "/nonexistent/x"} {
		_, err := Listen(dir, "x")
		require.Error(t, err, name)
		require.ErrorContains(t, err, dir, name)
	}
}

// The default place falls back where the first choices do not fit.
func TestListenDefault(t *testing.T) {
	runtime := mustDir(t)
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	l := mustListen(t, "", "x")
	require.True(t, strings.HasPrefix(l.Path, runtime), l.Path)
	t.Setenv("XDG_RUNTIME_DIR", "/nonexistent")
	t.Setenv("TMPDIR", filepath.Join(runtime, strings.Repeat("x", 100)))
	require.NoError(t, os.Mkdir(os.Getenv("TMPDIR"), 0o700))
	l = mustListen(t, "", "y")
	require.True(t, strings.HasPrefix(l.Path, "/tmp/gpurma-"), l.Path)
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: l.Path, Net: "unixpacket"})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}
