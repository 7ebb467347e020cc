package softgpu

import (
	"errors"

	"golang.org/x/sys/unix"
)

// sparseFrom is the length from which a range is worth asking whether it has
// holes. A hole is read as zeros without being touched: touching one, even to
// read, would take storage.
const sparseFrom = 256 << 10

// fillStep is the length of the pattern that fill repeats: it stays in the
// cache.
const fillStep = 64 << 10

// fill sets every byte to value.
func fill(dst []segment, value byte) {
	for _, s := range dst {
		if value == 0 {
			s.zero()
			continue
		}
		b := s.bytes()
		step := min(len(b), fillStep)
		b[0] = value
		for done := 1; done < step; done *= 2 {
			copy(b[done:step], b[:done])
		}
		for at := step; at < len(b); at += step {
			copy(b[at:], b[:step])
		}
	}
}

// store copies from host memory.
func store(dst []segment, src []byte) {
	for _, s := range dst {
		src = src[copy(s.bytes(), src):]
	}
}

// load copies to host memory.
func load(dst []byte, src []segment) {
	for _, s := range src {
		part := dst[:s.n]
		dst = dst[s.n:]
		s.parts(func(p segment, data bool) {
			to := part[p.off-s.off:][:p.n]
			if data {
				copy(to, p.bytes())
			} else {
				clear(to)
			}
		})
	}
}

// transport copies between segment lists of the same length.
func transport(dst, src []segment) {
	var di int
	var din uint64
	for _, s := range src {
		for s.n > 0 {
			to := dst[di]
			to.off, to.n = to.off+din, to.n-din
			n := min(to.n, s.n)
			to.n = n
			copySegment(to, segment{s.d, s.off, n})
			s.off, s.n = s.off+n, s.n-n
			if din += n; din == dst[di].n {
				di, din = di+1, 0
			}
		}
	}
}

func copySegment(dst, src segment) {
	src.parts(func(p segment, data bool) {
		to := segment{dst.d, dst.off + p.off - src.off, p.n}
		if data {
			copy(to.bytes(), p.bytes())
		} else {
			to.zero()
		}
	})
}

// zero clears the bytes that are stored; the rest are zeros already.
func (s segment) zero() {
	s.parts(func(p segment, data bool) {
		if data {
			clear(p.bytes())
		}
	})
}

// parts calls f for the stored parts of the segment and for its holes, in order.
func (s segment) parts(f func(p segment, data bool)) {
	if s.n < sparseFrom {
		f(s, true)
		return
	}
	at, end := s.off, s.off+s.n
	for at < end {
		data := s.d.seek(at, end, unix.SEEK_DATA)
		if data > at {
			f(segment{s.d, at, data - at}, false)
			at = data
			continue
		}
		hole := s.d.seek(at, end, unix.SEEK_HOLE)
		if hole <= at {
			hole = end
		}
		f(segment{s.d, at, hole - at}, true)
		at = hole
	}
}

// seek returns the first offset from at on, and at most end, that is data or a
// hole. What the file system cannot tell is data.
func (d *deviceFile) seek(at, end uint64, whence int) uint64 {
	var off int64
	err := onFD(d.f, func(fd uintptr) (err error) {
		off, err = unix.Seek(int(fd), int64(at), whence)
		return err
	})
	switch {
	case err == nil:
		return min(uint64(off), end)
	case errors.Is(err, unix.ENXIO) || whence == unix.SEEK_HOLE:
		return end
	default:
		return at
	}
}
