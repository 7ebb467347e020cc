package softgpu

import "math/bits"

// extent is a run of blocks of one device.
type extent struct{ first, count uint32 }

func blockCount(es []extent) (n uint32) {
	for _, e := range es {
		n += e.count
	}
	return n
}

// bitmap has a bit for each block of a device.
type bitmap []uint64

func newBitmap(blocks uint32) bitmap { return make(bitmap, (blocks+63)/64) }

func (b bitmap) has(i uint32) bool { return b[i/64]&(1<<(i%64)) != 0 }
func (b bitmap) set(i uint32)      { b[i/64] |= 1 << (i % 64) }
func (b bitmap) clear(i uint32)    { b[i/64] &^= 1 << (i % 64) }

func (b bitmap) add(o bitmap) {
	for i := range min(len(b), len(o)) {
		b[i] |= o[i]
	}
}

func (b bitmap) setExtents(es []extent) {
	for _, e := range es {
		for i := range e.count {
			b.set(e.first + i)
		}
	}
}

func (b bitmap) count() (n uint64) {
	for _, w := range b {
		n += uint64(bits.OnesCount64(w))
	}
	return n
}

// without returns the runs of blocks that b has and o has not.
func (b bitmap) without(o bitmap) (es []extent) {
	for w, word := range b {
		word &^= o[w]
		for word != 0 {
			i := uint32(w*64 + bits.TrailingZeros64(word))
			word &= word - 1
			es = appendBlock(es, i)
		}
	}
	return es
}

func appendBlock(es []extent, i uint32) []extent {
	if n := len(es); n > 0 && es[n-1].first+es[n-1].count == i {
		es[n-1].count++
		return es
	}
	return append(es, extent{i, 1})
}

// findFree returns want of the first total blocks that are clear: the first run
// that is long enough, else the lowest ones; nil where there are too few.
func (b bitmap) findFree(total, want uint32) []extent {
	var pieces []extent
	var gathered, run uint32
	for i := uint32(0); i < total; i++ {
		if i%64 == 0 && b[i/64] == ^uint64(0) {
			i, run = i+63, 0
			continue
		}
		if b.has(i) {
			run = 0
			continue
		}
		if run++; run == want {
			return []extent{{i + 1 - want, want}}
		}
		if gathered < want {
			pieces = appendBlock(pieces, i)
			gathered++
		}
	}
	if gathered < want {
		return nil
	}
	return pieces
}
