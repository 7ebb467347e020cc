package staged

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gpurma/gpurma/ucxlite/internal/wire"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bytesMemory is host memory on either side.
type bytesMemory struct {
	mu   sync.Mutex
	b    []byte
	hold chan struct{} // a copy waits for it, if not nil
	err  error
}

func (m *bytesMemory) Read(dst []byte, off uint64) error {
	if m.hold != nil {
		<-m.hold
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(dst, m.b[off:])
	return m.err
}

func (m *bytesMemory) Write(src []byte, off uint64) error {
	if m.hold != nil {
		<-m.hold
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(m.b[off:], src)
	return m.err
}

func (m *bytesMemory) Leave() {}

var errTarget = errors.New("target failed")

// pair is an initiator and a target joined by function calls, with rings that
// are two mappings of one memfd.
type pair struct {
	in     *Initiator
	target *Target
	remote *bytesMemory
}

func mustPair(tb testing.TB, slots, size int, remote *bytesMemory) *pair {
	tb.Helper()
	mine, fd, err := Create(slots, size)
	require.NoError(tb, err)
	theirs, err := Open(fd, uint32(slots), uint64(size))
	require.NoError(tb, err)
	require.NoError(tb, unix.Close(fd))
	p := &pair{remote: remote}
	ready := make(chan struct{})
	p.in = NewInitiator(mine, func(f wire.Frame) error { <-ready; return p.target.Handle(f) },
		func(f wire.Transferred) error { return fmt.Errorf("%w: %s", errTarget, f.Reason) })
	p.target = NewTarget(theirs, func(f wire.Frame) error { return p.in.Handle(f.(*wire.Transferred)) },
		func(wire.Transfer) (Memory, error) { return remote, nil },
		func(err error) wire.Transferred {
			return wire.Transferred{Status: wire.StatusDriver, Reason: err.Error()}
		})
	close(ready)
	require.NoError(tb, p.in.Start())
	tb.Cleanup(func() {
		p.in.Fail(errors.New("test over"))
		require.NoError(tb, p.target.Close())
		require.NoError(tb, p.in.Finish())
	})
	return p
}

// do runs an operation and returns how it ended.
func (p *pair) do(tb testing.TB, get bool, local Local, n, address uint64) error {
	tb.Helper()
	done := make(chan error, 2)
	require.NoError(tb, p.in.Submit(&Op{Get: get, Local: local, Length: n, Address: address, Done: func(err error) { done <- err }}))
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		tb.Fatal("operation hangs")
		return nil
	}
}

func TestStagedSizes(t *testing.T) {
	const size, guard = 4096, 64
	p := mustPair(t, 4, size, &bytesMemory{b: make([]byte, 20*size)})
	for _, n := range []int{1, 8, size - 1, size, size + 1, 4 * size, 9*size + 17} {
		for _, at := range []int{guard, guard + 3} {
			want := make([]byte, n)
			_, _ = rand.Read(want)
			for i := range p.remote.b {
				p.remote.b[i] = 0xee
			}
			require.NoError(t, p.do(t, false, &bytesMemory{b: bytes.Clone(want)}, uint64(n), uint64(at)))
			require.Equal(t, want, p.remote.b[at:at+n], "put of %d", n)
			rest := append(bytes.Clone(p.remote.b[:at]), p.remote.b[at+n:]...)
			require.Equal(t, bytes.Repeat([]byte{0xee}, len(rest)), rest, "guard bytes of a put of %d", n)

			got := &bytesMemory{b: make([]byte, n)}
			require.NoError(t, p.do(t, true, got, uint64(n), uint64(at)))
			require.Equal(t, want, got.b, "get of %d", n)
		}
	}
}

func TestStagedBothWaysAtOnce(t *testing.T) {
	const size, ops = 512, 40
	p := mustPair(t, 2, size, &bytesMemory{b: make([]byte, 2*ops*3*size)})
	var all sync.WaitGroup
	for i := range 2 * ops {
		all.Go(func() {
			want := bytes.Repeat([]byte{byte(i + 1)}, 3*size-1)
			at := uint64(i * 3 * size)
			if err := p.do(t, false, &bytesMemory{b: want}, uint64(len(want)), at); err != nil {
				t.Errorf("put: %v", err)
			}
			got := &bytesMemory{b: make([]byte, len(want))}
			if err := p.do(t, true, got, uint64(len(want)), at); err != nil || !bytes.Equal(want, got.b) {
				t.Errorf("get %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

func TestStagedErrors(t *testing.T) {
	p := mustPair(t, 2, 512, &bytesMemory{b: make([]byte, 4096)})
	broken := errors.New("broken")
	for _, get := range []bool{false, true} {
		require.ErrorIs(t, p.do(t, get, &bytesMemory{b: make([]byte, 4096), err: broken}, 4096, 0), broken)
	}
	p.remote.mu.Lock()
	p.remote.err = broken
	p.remote.mu.Unlock()
	for _, get := range []bool{false, true} {
		require.ErrorIs(t, p.do(t, get, &bytesMemory{b: make([]byte, 4096)}, 4096, 0), errTarget)
	}
	p.remote.mu.Lock()
	p.remote.err = nil
	p.remote.mu.Unlock()
	require.NoError(t, p.do(t, false, &bytesMemory{b: make([]byte, 4096)}, 4096, 0), "the lane survives")
}

// When the connection dies, an operation ends only after the copy that runs on
// this side is over.
func TestStagedDeathWaitsForTheCopy(t *testing.T) {
	p := mustPair(t, 1, 512, &bytesMemory{b: make([]byte, 4096)})
	local := &bytesMemory{b: make([]byte, 512), hold: make(chan struct{})}
	done := make(chan error, 1)
	require.NoError(t, p.in.Submit(&Op{Local: local, Length: 512, Done: func(err error) { done <- err }}))
	queued := make(chan error, 1)
	require.NoError(t, p.in.Submit(&Op{Local: local, Length: 512, Done: func(err error) { queued <- err }}))
	reset := errors.New("reset")
	p.in.Fail(reset)
	finished := make(chan error)
	go func() { finished <- p.in.Finish() }()
	select {
	case <-done:
		t.Fatal("completed under a running copy")
	case <-finished:
		t.Fatal("finished under a running copy")
	default:
	}
	close(local.hold)
	require.NoError(t, <-finished)
	<-done // with or without an error: the chunk may have gone out
	require.ErrorIs(t, <-queued, reset)
	require.ErrorIs(t, p.in.Submit(&Op{}), reset)
}

func TestPeersThatBreakTheRules(t *testing.T) {
	remote := &bytesMemory{b: make([]byte, 512), hold: make(chan struct{})}
	p := mustPair(t, 2, 512, remote)
	for name, f := range map[string]wire.Frame{
		"slot outside":  &wire.Put{Transfer: wire.Transfer{Index: 2, Length: 1}},
		"slot far off":  &wire.Get{Transfer: wire.Transfer{Index: 1 << 31, Length: 1}},
		"length 0":      &wire.Put{Transfer: wire.Transfer{}},
		"length beyond": &wire.Get{Transfer: wire.Transfer{Length: 513}},
	} {
		require.ErrorIs(t, p.target.Handle(f), wire.ErrMalformed, name)
	}
	require.ErrorIs(t, p.in.Handle(&wire.Transferred{Index: 2}), wire.ErrMalformed)
	require.ErrorIs(t, p.in.Handle(&wire.Transferred{Index: 0}), wire.ErrMalformed, "a slot that is not lent")
	require.ErrorIs(t, p.in.Start(), wire.ErrMalformed)

	err := error(nil)
	for range 4 { // one may be taken by the mover, two fit
		if err = p.target.Handle(&wire.Put{Transfer: wire.Transfer{Length: 1}}); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, wire.ErrMalformed, "beyond its credit")
	p.target.send = func(wire.Frame) error { return errors.New("gone") } // answers nobody asked for
	close(remote.hold)
}

func TestRingMustBeSealed(t *testing.T) {
	memfd := func(size int64, seals int) int {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		require.NoError(t, unix.Ftruncate(fd, size))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
		return fd
	}
	for name, fd := range map[string]int{
		"no seals":      memfd(8192, 0),
		"may shrink":    memfd(8192, unix.F_SEAL_GROW|unix.F_SEAL_SEAL),
		"another size":  memfd(8191, mustSeals),
		"no descriptor": -1,
	} {
		_, err := Open(fd, 1, 4096)
		require.ErrorIs(t, err, ErrShape, name)
	}
	good := memfd(8192, mustSeals)
	for _, shape := range [][2]uint64{{0, 4096}, {1, 0}, {maxSlots + 1, 64}, {1, maxSlotSize + 1}, {2, 4096}} {
		_, err := Open(good, uint32(shape[0]), shape[1])
		require.ErrorIs(t, err, ErrShape, "%v", shape)
	}
	r, err := Open(good, 1, 4096)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
}
