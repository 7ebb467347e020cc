package drivertest

import (
	"encoding/binary"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// block is the unit in which device memory comes and goes.
const block = 2 << 20

// pattern fills buf with bytes that tell their offset and the seed.
func pattern(buf []byte, seed, offset uint64) {
	var word [8]byte
	for i := 0; i < len(buf); i += len(word) {
		binary.LittleEndian.PutUint64(word[:], mix(seed, offset+uint64(i)))
		copy(buf[i:], word[:])
	}
}

// mix is the finaliser of splitmix64.
func mix(seed, offset uint64) uint64 {
	x := seed<<48 ^ offset + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// edges returns the parts of an allocation that fill writes and verify reads:
// the first and the last block, or the whole where that is less.
func edges(size uint64) [][2]uint64 {
	if size <= 2*block {
		return [][2]uint64{{0, size}}
	}
	return [][2]uint64{{0, block}, {size - block, block}}
}

// fill writes the seed's pattern and waits until it is in place.
func fill(drv cuda.Driver, ctx cuda.Context, ptr cuda.DevicePtr, size, seed uint64) error {
	for _, e := range edges(size) {
		buf := make([]byte, e[1])
		pattern(buf, seed, e[0])
		if err := drv.MemcpyHtoD(ctx, ptr.Add(e[0]), buf); err != nil {
			return err
		}
	}
	return drv.CtxSynchronize(ctx)
}

// verify reads the pattern back and reports the first byte that is not the
// seed's.
func verify(drv cuda.Driver, ctx cuda.Context, ptr cuda.DevicePtr, size, seed uint64) error {
	for _, e := range edges(size) {
		got, want := make([]byte, e[1]), make([]byte, e[1])
		pattern(want, seed, e[0])
		if err := drv.MemcpyDtoH(ctx, got, ptr.Add(e[0])); err != nil {
			return err
		}
		for i := range got {
			if got[i] != want[i] {
				return fmt.Errorf("byte %d of %v is %#02x, pattern %d has %#02x",
					e[0]+uint64(i), ptr, got[i], seed, want[i])
			}
		}
	}
	return nil
}
