package cudaipc

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/gpurma/gpurma/cuda"
)

// nullDriver answers every open at once, so that a benchmark can have a million
// regions.
type nullDriver struct {
	fakeDriver
	next atomic.Uint64
}

func (d *nullDriver) IpcOpenMemHandle(cuda.Context, cuda.IpcMemHandle, uint32) (cuda.DevicePtr, error) {
	return cuda.DevicePtr(d.next.Add(1) << 21), nil
}
func (d *nullDriver) IpcCloseMemHandle(cuda.Context, cuda.DevicePtr) error { return nil }
func (d *nullDriver) MemGetAddressRange(_ cuda.Context, p cuda.DevicePtr) (cuda.DevicePtr, uint64, error) {
	return p, 1 << 21, nil
}

func filledCache(b *testing.B, regions int) (*Cache, []*Key) {
	d := &nullDriver{fakeDriver: *newFake()}
	c, err := NewCache(d, CacheOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.CheckInvariants(); err != nil {
			b.Error(err)
		}
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	})
	keys := exportMany(&d.fakeDriver, 7, regions, kib)
	for _, k := range keys {
		m, err := c.Map(b.Context(), k, MapOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := m.Release(Retain); err != nil {
			b.Fatal(err)
		}
	}
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	// The keys lie in the order of their use, so that what is measured is the
	// cache's memory and not the caller's.
	lined := make([]struct {
		key    Key
		handle [1]Handle
		data   [64]byte
	}, len(keys))
	for i, k := range keys {
		x := &lined[i]
		x.key = *k
		copy(x.data[:], k.Handles[0].Data)
		x.handle[0] = Handle{KindLegacy, x.data[:]}
		x.key.Handles = x.handle[:]
		keys[i] = &x.key
	}
	return c, keys
}

func BenchmarkMapInto(b *testing.B) {
	for _, regions := range []int{1, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("hit/regions=%d", regions), func(b *testing.B) {
			c, keys := filledCache(b, regions)
			ctx := b.Context()
			var m Mapping
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if err := c.MapInto(ctx, &m, keys[i], MapOptions{}); err != nil {
					b.Fatal(err)
				}
				_ = m.Release(Retain)
				if i++; i == len(keys) {
					i = 0
				}
			}
		})
	}
	b.Run("hit/parallel", func(b *testing.B) {
		c, keys := filledCache(b, 10_000)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			ctx := b.Context()
			var m Mapping
			for i := rand.IntN(len(keys)); pb.Next(); i = (i + 1) % len(keys) {
				if err := c.MapInto(ctx, &m, keys[i], MapOptions{}); err != nil {
					b.Error(err)
					return
				}
				_ = m.Release(Retain)
			}
		})
	})
	b.Run("miss", func(b *testing.B) {
		c, keys := filledCache(b, 1)
		ctx := b.Context()
		var m Mapping
		b.ReportAllocs()
		for b.Loop() {
			_ = c.MapInto(ctx, &m, keys[0], MapOptions{})
			_ = m.Release(FreeUnused)
		}
	})
	b.Run("evict", func(b *testing.B) {
		c, keys := filledCache(b, 10_000)
		if err := c.SetLimits(1000, 0); err != nil {
			b.Fatal(err)
		}
		ctx := b.Context()
		var m Mapping
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if err := c.MapInto(ctx, &m, keys[i], MapOptions{}); err != nil {
				b.Fatal(err)
			}
			_ = m.Release(Retain)
			i = (i + 1) % len(keys)
		}
	})
}

func BenchmarkPinInto(b *testing.B) {
	c, keys := filledCache(b, 1)
	var cl Claim
	var m Mapping
	if err := c.MapInto(b.Context(), &m, keys[0], MapOptions{}); err != nil {
		b.Fatal(err)
	}
	m.ClaimInto(&cl)
	_ = m.Release(Retain)
	b.ReportAllocs()
	for b.Loop() {
		if !cl.PinInto(&m) {
			b.Fatal("not pinned")
		}
		_ = m.Release(Retain)
	}
	_ = cl.Release(Retain)
}

func BenchmarkKey(b *testing.B) {
	k := goldenKeys()["legacy"]
	packed, _ := k.MarshalBinary()
	b.Run("pack", func(b *testing.B) {
		buf := make([]byte, 0, 256)
		b.ReportAllocs()
		for b.Loop() {
			_, _ = k.AppendBinary(buf)
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = ParseKey(packed)
		}
	})
}
