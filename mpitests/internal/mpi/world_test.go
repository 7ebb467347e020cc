package mpi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// roleVariable names what a rank of this test binary does instead of testing.
const roleVariable = "GPURMA_MPI_TEST_ROLE"

var roles = map[string]func(*World) error{
	"messages":    messages,
	"collectives": collectives,
	"giveup":      giveUp,
	"goroutines":  goroutines,
	"abort":       func(w *World) error { w.Abort(40 + w.Rank()); return nil },
}

func TestMain(m *testing.M) {
	name := os.Getenv(roleVariable)
	if name == "" {
		os.Exit(m.Run())
	}
	os.Exit(Run(func(w *World) int {
		if err := roles[name](w); err != nil {
			fmt.Fprintf(os.Stderr, "rank %d: %v\n", w.Rank(), err)
			return 1
		}
		return 0
	}))
}

// launch runs this test binary in a role under mpirun.
func launch(t *testing.T, ranks int, role string, env ...string) (output string, code int) {
	t.Helper()
	mpirun, err := exec.LookPath("mpirun")
	if err != nil {
		t.Skip("found no mpirun on the PATH, need one")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	args := []string{"-mca", "plm", "isolated", "--oversubscribe", "--bind-to", "none", "-np", fmt.Sprint(ranks), self}
	if os.Geteuid() == 0 {
		args = append([]string{"--allow-run-as-root"}, args...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, mpirun, args...)
	cmd.Env = append(append(os.Environ(), roleVariable+"="+role), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func TestMessages(t *testing.T) {
	for _, role := range []string{"messages", "collectives", "goroutines"} {
		t.Run(role, func(t *testing.T) {
			output, code := launch(t, 3, role)
			require.Equal(t, 0, code, output)
		})
	}
}

func TestReceiveGivesUp(t *testing.T) {
	output, code := launch(t, 2, "giveup")
	require.Equal(t, 0, code, output)
}

func TestAbortEndsEveryRank(t *testing.T) {
	output, code := launch(t, 2, "abort")
	require.Contains(t, []int{40, 41}, code, output)
}

// messages sends every rank empty, short and long ones, the longest beyond what
// MPI sends without its receiver.
func messages(w *World) error {
	ctx := context.Background()
	next, previous := (w.Rank()+1)%w.Size(), (w.Rank()+w.Size()-1)%w.Size()
	for _, n := range []int{0, 1, 7, 300, 1 << 20} {
		want := bytes.Repeat([]byte{byte(n), 0x5a}, n)
		if w.Rank()%2 == 0 {
			w.Send(next, 5, want)
		}
		got, err := w.Recv(ctx, previous, 5)
		if err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("length %d: got %d bytes, error %v", n, len(got), err)
		}
		if w.Rank()%2 != 0 {
			w.Send(next, 5, want)
		}
		if w.Rank() < 2 {
			got, err := w.Exchange(ctx, 1-w.Rank(), 6, want)
			if err != nil || !bytes.Equal(got, want) {
				return fmt.Errorf("exchange of %d: got %d bytes, error %v", n, len(got), err)
			}
		}
	}
	return w.Barrier(ctx)
}

func collectives(w *World) error {
	ctx := context.Background()
	for round := range 50 {
		all, err := w.Gather(ctx, fmt.Appendf(nil, "%d of %d", w.Rank(), round))
		if err != nil {
			return err
		}
		for rank, got := range all {
			if want := fmt.Sprintf("%d of %d", rank, round); string(got) != want {
				return fmt.Errorf("gathered %q, want %q", got, want)
			}
		}
		var mine []byte
		if w.Rank() == Root {
			mine = bytes.Repeat([]byte{byte(round)}, round)
		}
		got, err := w.Broadcast(ctx, mine)
		if err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(round)}, round)) {
			return fmt.Errorf("broadcast of round %d: %x, %v", round, got, err)
		}
	}
	if version := LibraryVersion(); !strings.Contains(version, "MPI") {
		return fmt.Errorf("library version %q", version)
	}
	if path := LibraryPath(); !strings.HasPrefix(path, "/") || !strings.Contains(path, "libmpi") {
		return fmt.Errorf("library path %q", path)
	}
	if launched, _ := LaunchedSize(); launched != w.Size() {
		return fmt.Errorf("launched %d, size %d", launched, w.Size())
	}
	return w.CheckLaunch()
}

// giveUp waits for a message that never comes, and then for one that does.
func giveUp(w *World) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := w.Recv(ctx, 1-w.Rank(), 9); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("receive returned %v", err)
	}
	got, err := w.Exchange(context.Background(), 1-w.Rank(), 10, []byte("late"))
	if err != nil || string(got) != "late" {
		return fmt.Errorf("exchange: %q, %v", got, err)
	}
	return nil
}

// goroutines makes calls from many goroutines at once: all of them reach MPI on
// its owner.
func goroutines(w *World) error {
	var group sync.WaitGroup
	failures := make(chan error, 32)
	for tag := range 32 {
		group.Go(func() {
			next, previous := (w.Rank()+1)%w.Size(), (w.Rank()+w.Size()-1)%w.Size()
			w.Send(next, 100+tag, []byte{byte(tag)})
			got, err := w.Recv(context.Background(), previous, 100+tag)
			if err != nil || len(got) != 1 || got[0] != byte(tag) {
				failures <- fmt.Errorf("tag %d: %x, %v", tag, got, err)
			}
		})
	}
	group.Wait()
	close(failures)
	return <-failures
}

// TestP12WorldSizeOne is a rank of a job of two whose MPI knows nothing of its
// launcher, as when mpirun and libmpi come from two installations.
func TestP12WorldSizeOne(t *testing.T) {
	for _, variable := range sizeVariables {
		t.Setenv(variable, "")
	}
	t.Setenv("PMI_SIZE", "2")
	err := (&World{size: 1}).CheckLaunch()
	require.ErrorContains(t, err, "started 2 processes (PMI_SIZE)")
	require.ErrorContains(t, err, "job of 1")
	require.NoError(t, (&World{size: 2}).CheckLaunch())
	t.Setenv("PMI_SIZE", "")
	require.NoError(t, (&World{size: 1}).CheckLaunch())
}
