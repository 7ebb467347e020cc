package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
	"github.com/gpurma/gpurma/mpitests/internal/pattern"
	"github.com/gpurma/gpurma/ucxlite"
)

// The checks of data touch the ends of an allocation and random pages between
// them: enough to see a wrong mapping, and an emulated gigabyte stays sparse.
const (
	chunk     = 2 << 20 // at each end
	page      = 4 << 10
	pages     = 1000
	dataBytes = 2*chunk + pages*page
)

// piece is a stretch of the owner's memory, and where its bytes stand in the
// image of all pieces.
type piece struct {
	remote, image, length uint64
}

// pieces chooses what is touched of an allocation of size bytes, which is at
// least two chunks or else one that is all touched.
func pieces(size, seed uint64) []piece {
	if size < 2*chunk {
		return []piece{{0, 0, min(size, chunk)}}
	}
	all := []piece{{0, 0, chunk}, {size - chunk, chunk, chunk}}
	middle := (size - 2*chunk) / page
	random := rand.New(rand.NewPCG(seed, size))
	chosen := map[uint64]bool{}
	for n := min(pages, middle); uint64(len(chosen)) < n; {
		p := random.Uint64N(middle)
		if chosen[p] {
			continue
		}
		chosen[p] = true
		all = append(all, piece{chunk + p*page, 2*chunk + uint64(len(chosen)-1)*page, page})
	}
	return all
}

// image is the bytes of all pieces, different for each part of a case.
func image(seed uint64, part string) []byte {
	b := make([]byte, dataBytes)
	pattern.Fill(b, pattern.Derive(seed, part))
	return b
}

// write fills the pieces of memory at base, through the driver alone.
func write(r *harness.Rank, base cuda.DevicePtr, all []piece, img []byte) error {
	for _, p := range all {
		if err := r.Driver.MemcpyHtoD(r.Primary, base.Add(p.remote), img[p.image:][:p.length]); err != nil {
			return fmt.Errorf("fill at %d: %w", p.remote, err)
		}
	}
	return r.Driver.CtxSynchronize(r.Primary)
}

// check reads the pieces of memory at base, through the driver alone, and
// compares them.
func check(r *harness.Rank, base cuda.DevicePtr, all []piece, img []byte) error {
	got := make([]byte, chunk)
	for _, p := range all {
		if err := r.Driver.MemcpyDtoH(r.Primary, got[:p.length], base.Add(p.remote)); err != nil {
			return fmt.Errorf("read back at %d: %w", p.remote, err)
		}
		if err := pattern.Compare(got[:p.length], img[p.image:][:p.length]); err != nil {
			return fmt.Errorf("wrong bytes in the piece at %d: %w", p.remote, err)
		}
	}
	return nil
}

// get reads the pieces by the endpoint, all in flight at once, and compares them.
func (i *importer) get(ctx context.Context, key *ucxlite.Rkey) error {
	if err := i.r.Driver.MemsetD8(i.r.Primary, i.scratch, 0, dataBytes); err != nil {
		return err
	}
	if err := i.r.Driver.CtxSynchronize(i.r.Primary); err != nil {
		return err
	}
	for _, p := range i.pieces {
		local := ucxlite.DeviceBuffer(i.scratch.Add(p.image), p.length)
		if _, err := i.endpoint.Get(local, key.Address()+p.remote, key, ucxlite.OpOptions{}); err != nil {
			return err
		}
	}
	if err := i.endpoint.Flush(ctx); err != nil {
		return err
	}
	got := make([]byte, dataBytes)
	if err := i.r.Driver.MemcpyDtoH(i.r.Primary, got, i.scratch); err != nil {
		return err
	}
	want := image(i.r.Seed, partFilled)
	for _, p := range i.pieces {
		if err := pattern.Compare(got[p.image:][:p.length], want[p.image:][:p.length]); err != nil {
			return fmt.Errorf("get: wrong bytes of the piece at %d: %w", p.remote, err)
		}
	}
	return nil
}

// put writes the pieces by the endpoint. The owner looks at them afterwards.
func (i *importer) put(ctx context.Context, key *ucxlite.Rkey) error {
	if err := i.r.Driver.MemcpyHtoD(i.r.Primary, i.scratch, image(i.r.Seed, partPut)); err != nil {
		return err
	}
	if err := i.r.Driver.CtxSynchronize(i.r.Primary); err != nil {
		return err
	}
	for _, p := range i.pieces {
		local := ucxlite.DeviceBuffer(i.scratch.Add(p.image), p.length)
		if _, err := i.endpoint.Put(local, key.Address()+p.remote, key, ucxlite.OpOptions{}); err != nil {
			return err
		}
	}
	return i.endpoint.Flush(ctx)
}

// The parts that have bytes of their own.
const (
	partFilled = "filled by the owner"
	partPut    = "put by the importer"
)
