package cudaipc

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/drivers"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
)

// Tests in real processes, on the emulator always and on a GPU where there is
// one.

const (
	driverVariable = "CUDAIPC_TEST_DRIVER"
	memoryVariable = "CUDAIPC_TEST_MEMORY"
	ownedBytes     = 64 * mib
)

func init() { roles["owner"] = runOwner }

// runOwner exports 64 MiB of the kind that memoryVariable says, and says the key.
// "free" frees the memory, "close" ends the registration.
func runOwner(in *bufio.Scanner, out io.Writer) error {
	d, err := drivers.Open(os.Getenv(driverVariable))
	if err != nil {
		return err
	}
	ctx, err := d.DevicePrimaryCtxRetain(0)
	if err != nil {
		return err
	}
	p, free, err := allocate(d, ctx, os.Getenv(memoryVariable))
	if err != nil {
		return err
	}
	if err := d.MemcpyHtoD(ctx, p, bytes.Repeat([]byte{0x77}, 4096)); err != nil {
		return err
	}
	r, err := Register(d, ctx, p, ownedBytes, RegisterOptions{})
	if err != nil {
		return err
	}
	b, err := r.AppendKey(nil)
	if err != nil {
		return err
	}
	if err := d.CtxSynchronize(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, hex.EncodeToString(b))
	for in.Scan() {
		switch in.Text() {
		case "free":
			err = free()
		case "close":
			err = r.Close()
		}
		fmt.Fprintln(out, err)
	}
	return d.Close()
}

func allocate(d cuda.Driver, ctx cuda.Context, memory string) (cuda.DevicePtr, func() error, error) {
	if memory == KindLegacy.String() {
		p, err := d.MemAlloc(ctx, ownedBytes)
		return p, func() error { return d.MemFree(ctx, p) }, err
	}
	h, err := d.MemCreate(ctx, ownedBytes, cuda.AllocationProp{HandleTypes: cuda.HandleTypePosixFD})
	if err != nil {
		return 0, nil, err
	}
	p, err := d.MemAddressReserve(ctx, ownedBytes, 0)
	if err != nil {
		return 0, nil, err
	}
	if err := errors.Join(
		d.MemMap(ctx, p, ownedBytes, 0, h),
		d.MemRelease(ctx, h),
		d.MemSetAccess(ctx, p, ownedBytes, 0, cuda.AccessReadWrite),
	); err != nil {
		return 0, nil, err
	}
	return p, func() error {
		return errors.Join(d.MemUnmap(ctx, p, ownedBytes), d.MemAddressFree(ctx, p, ownedBytes))
	}, nil
}

// importer is this process's side of a test with a real owner process.
type importer struct {
	tb  testing.TB
	d   cuda.Driver
	c   *Cache
	ctx cuda.Context
	env []string
	// slack is how far free memory may be off, and for how long: nothing on the
	// emulator; a GPU gives a dead process's memory back a little later.
	slack uint64
	wait  time.Duration
}

func (i *importer) owner(memory Kind) *child {
	return startChild(i.tb, "owner", append(i.env, memoryVariable+"="+memory.String())...)
}

func (i *importer) free() uint64 {
	i.tb.Helper()
	n, _, err := i.d.MemGetInfo(i.ctx)
	require.NoError(i.tb, err)
	return n
}

func (i *importer) requireFree(want uint64) {
	i.tb.Helper()
	off := func() uint64 { n := i.free(); return max(n, want) - min(n, want) }
	if i.wait > 0 {
		require.Eventually(i.tb, func() bool { return off() <= i.slack }, i.wait, time.Millisecond)
	}
	require.LessOrEqual(i.tb, off(), i.slack)
}

func (i *importer) requireBytes(m *Mapping) {
	i.tb.Helper()
	b := make([]byte, 4096)
	require.NoError(i.tb, i.d.MemcpyDtoH(i.ctx, b, m.Ptr()))
	require.Equal(i.tb, bytes.Repeat([]byte{0x77}, 4096), b)
}

// eachDriver runs the test on the emulator and on the real driver, with legacy
// handles and with descriptors.
func eachDriver(t *testing.T, test func(i *importer, memory Kind)) {
	for _, memory := range []Kind{KindLegacy, KindPosixFD} {
		t.Run("softgpu/"+memory.String(), func(t *testing.T) {
			d := softgputest.New(t)
			test(mustImporter(t, d, "softgpu", "SOFTGPU_NODE="+d.NodePath(), drivers.RequireGPUVariable+"="), memory)
		})
		t.Run("libcuda/"+memory.String(), func(t *testing.T) {
			d, err := drivers.Open(drivers.LibCUDA)
			if need, _ := drivers.GPURequired(); err != nil && !need {
				t.Skipf("found %v, need a GPU", err)
			}
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, d.Close()) })
			i := mustImporter(t, d, drivers.LibCUDA)
			i.slack, i.wait = 4*mib, 5*time.Second
			test(i, memory)
		})
	}
}

func mustImporter(tb testing.TB, d cuda.Driver, name string, env ...string) *importer {
	ctx, err := d.DevicePrimaryCtxRetain(0)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, d.DevicePrimaryCtxRelease(0)) })
	return &importer{tb: tb, d: d, ctx: ctx, c: mustCache(tb, d, CacheOptions{}), env: append(env, driverVariable+"="+name)}
}

// S01: the memory is back at the last of free and close, F1, F11.
func TestS01TwoProcesses(t *testing.T) {
	eachDriver(t, func(i *importer, memory Kind) {
		owner := i.owner(memory)
		k := owner.key()
		require.Equal(i.tb, memory, k.Kind())
		with := i.free()
		m := mustMap(i.tb, i.c, k, MapOptions{})
		require.EqualValues(i.tb, ownedBytes, m.Size())
		i.requireBytes(m)
		require.Equal(i.tb, "<nil>", owner.say("free"))
		require.Equal(i.tb, "<nil>", owner.say("close"))
		i.requireBytes(m)
		i.requireFree(with)
		require.NoError(i.tb, m.Release(FreeUnused))
		i.requireFree(with + ownedBytes)
		_, err := i.c.Map(i.tb.Context(), k, MapOptions{})
		if memory == KindLegacy {
			require.ErrorIs(i.tb, err, ErrStale)
		} else {
			require.ErrorIs(i.tb, err, ErrUnreachable)
		}
	})
}

// S09: the owner is killed. Its memory stays as long as it is mapped here, and
// EvictPeer alone gives it back.
func TestS09OwnerDies(t *testing.T) {
	eachDriver(t, func(i *importer, memory Kind) {
		before := i.free()
		owner := i.owner(memory)
		k := owner.key()
		m := mustMap(i.tb, i.c, k, MapOptions{})
		var cl Claim
		m.ClaimInto(&cl)
		i.requireBytes(m)

		owner.kill()
		i.requireBytes(m)
		i.requireFree(before - ownedBytes)
		n, busy, err := i.c.EvictPeer(k.Identity)
		require.NoError(i.tb, err)
		require.Equal(i.tb, []int{0, 1}, []int{n, busy})
		i.requireBytes(m)
		require.NoError(i.tb, m.Release(Retain))
		n, busy, err = i.c.EvictPeer(k.Identity)
		require.NoError(i.tb, err)
		require.Equal(i.tb, []int{1, 0}, []int{n, busy})
		i.requireFree(before)

		require.False(i.tb, cl.PinInto(m))
		_, err = i.c.Map(i.tb.Context(), k, MapOptions{})
		require.ErrorIs(i.tb, err, ErrUnreachable)
		require.NoError(i.tb, cl.Release(FreeUnused))

		// A new owner may come, and works.
		k = i.owner(memory).key()
		m = mustMap(i.tb, i.c, k, MapOptions{})
		i.requireBytes(m)
		require.NoError(i.tb, m.Release(FreeUnused))
	})
}

// Two hundred turns leave nothing: memory, mappings, descriptors.
func TestManyTurnsLeaveNothing(t *testing.T) {
	eachDriver(t, func(i *importer, memory Kind) {
		k := i.owner(memory).key()
		require.NoError(i.tb, mustMap(i.tb, i.c, k, MapOptions{}).Release(FreeUnused))
		with, fds := i.free(), openFDs()
		for range 200 {
			m := mustMap(i.tb, i.c, k, MapOptions{})
			require.NoError(i.tb, m.Release(FreeUnused))
		}
		require.Equal(i.tb, fds, openFDs())
		i.requireFree(with)
		require.Zero(i.tb, i.c.Stats().Live)
	})
}
