package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
	"github.com/gpurma/gpurma/ucxlite"
)

// tolerance is what may be missing on a GPU, where the driver takes memory for
// itself now and then, as long as nothing is mapped. The emulator has no such
// excuse.
const tolerance = 4 << 20

// session is what a rank keeps over all cases.
type session struct {
	flags

	lib      *ucxlite.Context
	worker   *ucxlite.Worker
	endpoint *ucxlite.Endpoint // to the other rank of the pair

	primaries []cuda.Context // of this rank's device and the next one
	devices   []cuda.Device  // likewise
	scratch   cuda.DevicePtr // the local side of puts and gets, dataBytes long
	beacon    *beacon
	second    error // why the beacon cannot be mapped on the second device

	controlRan bool
	control    error // what the negative control came to
}

// beacon is a small piece of each rank's memory that stays registered, with the
// other rank's key of its own: mapping it makes the peer a known one.
type beacon struct {
	ptr    cuda.DevicePtr
	memory *ucxlite.Memory
	peer   []byte // the other rank's packed key
}

const beaconSize = 2 << 20

// policy is what this program's keys do with unused mappings.
func policy(r *harness.Rank) ucxlite.Policy {
	if r.Leak() {
		return ucxlite.Retain
	}
	return ucxlite.FreeUnused
}

// setUp connects the pair, makes everything that stays for the whole run and
// warms up, so that no baseline moves later.
func (s *session) setUp(ctx context.Context, r *harness.Rank) error {
	if r.Driver.Name() != "softgpu" && uint64(s.Size)/2 < 8*tolerance {
		return fmt.Errorf("--size %s: half of it is too near to what a GPU's driver may take by itself, %d bytes", s.Size, tolerance)
	}
	if err := s.contexts(r); err != nil {
		return err
	}
	var err error
	config := ucxlite.DefaultConfig() // and not the environment's
	if s.lib, err = ucxlite.NewContext(r.Driver, ucxlite.ContextOptions{Config: &config, Logger: r.Log}); err != nil {
		return err
	}
	if s.worker, err = s.lib.NewWorker(ucxlite.WorkerOptions{}); err != nil {
		return err
	}
	address, err := r.Exchange(s.worker.Address())
	if err != nil {
		return err
	}
	p := policy(r)
	if s.endpoint, err = s.worker.NewEndpoint(address, ucxlite.EndpointOptions{Policy: &p}); err != nil {
		return err
	}
	if err := s.endpoint.WaitConnected(ctx); err != nil {
		return err
	}
	if s.scratch, err = r.Driver.MemAlloc(r.Primary, dataBytes); err != nil {
		return err
	}
	// An emulated device's memory takes room only once it is touched.
	if err := r.Driver.MemcpyHtoD(r.Primary, s.scratch, make([]byte, dataBytes)); err != nil {
		return err
	}
	if err := s.lightBeacon(r); err != nil {
		return err
	}
	if err := s.tryDevices(r); err != nil {
		return err
	}
	for owner := range 2 {
		if err := s.warmUp(ctx, r, owner); err != nil {
			return fmt.Errorf("warm-up: %w", err)
		}
	}
	return r.Barrier()
}

// contexts retains the primary context of the next device beside this rank's
// own, where there is one: a context costs memory, and must be there before the
// first baseline.
func (s *session) contexts(r *harness.Rank) error {
	s.devices, s.primaries = []cuda.Device{r.Device}, []cuda.Context{r.Primary}
	n, err := r.Driver.DeviceGetCount()
	if err != nil || n < 2 {
		return err
	}
	next := (r.Device + 1) % cuda.Device(n)
	ctx, err := r.Driver.DevicePrimaryCtxRetain(next)
	if err != nil {
		return fmt.Errorf("primary context of device %d: %w", next, err)
	}
	s.devices, s.primaries = append(s.devices, next), append(s.primaries, ctx)
	return nil
}

func (s *session) lightBeacon(r *harness.Rank) error {
	b := &beacon{}
	s.beacon = b
	var err error
	if b.ptr, err = r.Driver.MemAlloc(r.Primary, beaconSize); err != nil {
		return err
	}
	if b.memory, err = s.lib.MemMap(r.Primary, b.ptr, beaconSize, ucxlite.MemMapOptions{}); err != nil {
		return err
	}
	key, err := b.memory.PackRkey()
	if err != nil {
		return err
	}
	b.peer, err = r.Exchange(key)
	return err
}

// tryDevices maps the other rank's beacon on this rank's devices, one after the
// other: what the cases rest on is tried and not asked for.
func (s *session) tryDevices(r *harness.Rank) error {
	var tried [2]error
	for n, dev := range s.devices {
		free := ucxlite.FreeUnused
		key, err := s.endpoint.UnpackRkey(s.beacon.peer, ucxlite.UnpackOptions{Policy: &free, Device: &dev})
		if err != nil {
			return err
		}
		_, tried[n] = key.Ptr(key.Address())
		if err := key.Destroy(); err != nil {
			return err
		}
	}
	s.second = tried[1]
	if errors.Is(tried[0], ucxlite.ErrNotShareable) || errors.Is(tried[0], ucxlite.ErrUnreachable) {
		return harness.Skipf("found memory of cuMemAlloc that cannot be mapped (%v), need CUDA IPC between the ranks", tried[0])
	}
	return errors.Join(tried[0], r.Barrier())
}

// warmUp is one throw-away round through everything that the cases use: modules,
// streams and tables of the driver then have what they need.
func (s *session) warmUp(ctx context.Context, r *harness.Rank, owner int) error {
	for _, u := range []use{useGet, usePut, useTwoDevices} {
		if u.needs != nil && u.needs(s, r) != nil {
			continue
		}
		if _, err := s.round(ctx, r, u, 2*chunk, owner); err != nil {
			return err
		}
		if _, err := s.lib.Cache().EvictIdle(0); err != nil {
			return err
		}
	}
	return nil
}

// tearDown gives back what setUp took, as far as it came.
func (s *session) tearDown(ctx context.Context, r *harness.Rank) error {
	var errs []error
	if s.lib != nil {
		// What --policy leak has left would have to be closed here.
		_, err := s.lib.Cache().EvictIdle(0)
		errs = append(errs, err)
	}
	// The other rank's mappings go before this one's memory.
	errs = append(errs, r.Barrier())
	if s.endpoint != nil {
		errs = append(errs, s.endpoint.Close())
	}
	if s.beacon != nil && s.beacon.memory != nil {
		errs = append(errs, s.beacon.memory.Unmap(ctx))
	}
	for _, ptr := range s.allocations() {
		errs = append(errs, r.Driver.MemFree(r.Primary, ptr))
	}
	if s.worker != nil {
		errs = append(errs, s.worker.Close())
	}
	if s.lib != nil {
		errs = append(errs, s.lib.Close())
	}
	for i := 1; i < len(s.devices); i++ { // the first is the harness's
		errs = append(errs, r.Driver.DevicePrimaryCtxRelease(s.devices[i]))
	}
	return errors.Join(errs...)
}

func (s *session) allocations() (all []cuda.DevicePtr) {
	if s.scratch != 0 {
		all = append(all, s.scratch)
	}
	if s.beacon != nil && s.beacon.ptr != 0 {
		all = append(all, s.beacon.ptr)
	}
	return all
}
