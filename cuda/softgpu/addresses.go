package softgpu

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/gpurma/gpurma/cuda"
)

// Arenas are reserved from the operating system in the larger size, where an
// address space limit forbids that in smaller ones.
const (
	arenaSize    = 1 << 40
	arenaMinimum = 1 << 32
)

// pages is a run of the address space, in pages of BlockSize.
type pages struct{ first, count uint64 }

func (p pages) end() uint64 { return p.first + p.count }

// addressSpace gives out addresses, first-fit.
type addressSpace struct {
	arenas [][]byte
	free   []pages // sorted, never adjacent
}

// take returns the first page of the lowest free run of count pages that starts
// at a multiple of align pages.
func (a *addressSpace) take(count, align uint64) (uint64, error) {
	if first, ok := a.fit(count, align); ok {
		return first, nil
	}
	if err := a.grow(count, align); err != nil {
		return 0, err
	}
	first, ok := a.fit(count, align)
	if !ok {
		return 0, fmt.Errorf("%w: no free range of %d pages", cuda.ErrorOutOfMemory, count)
	}
	return first, nil
}

func (a *addressSpace) fit(count, align uint64) (uint64, bool) {
	for i, f := range a.free {
		first := (f.first + align - 1) / align * align
		if first < f.first || first+count > f.end() {
			continue
		}
		var rest []pages
		if first > f.first {
			rest = append(rest, pages{f.first, first - f.first})
		}
		if end := first + count; end < f.end() {
			rest = append(rest, pages{end, f.end() - end})
		}
		switch len(rest) {
		case 1:
			a.free[i] = rest[0]
		default:
			a.free = slices.Replace(a.free, i, i+1, rest...)
		}
		return first, true
	}
	return 0, false
}

// give returns pages that take gave out.
func (a *addressSpace) give(p pages) {
	i := sort.Search(len(a.free), func(i int) bool { return a.free[i].first > p.first })
	if i < len(a.free) && a.free[i].first == p.end() {
		p.count += a.free[i].count
		a.free = slices.Delete(a.free, i, i+1)
	}
	if i > 0 && a.free[i-1].end() == p.first {
		a.free[i-1].count += p.count
		return
	}
	a.free = slices.Insert(a.free, i, p)
}

func (a *addressSpace) grow(count, align uint64) error {
	const mostPages = 1 << 45 / BlockSize
	if count > mostPages || align > mostPages {
		return fmt.Errorf("%w: a range of %d pages", cuda.ErrorOutOfMemory, count)
	}
	need := (count + align + 1) * BlockSize
	size := uint64(arenaSize)
	for size < need {
		size *= 2
	}
	for {
		start, mem, err := reserve(size)
		if err == nil {
			a.arenas = append(a.arenas, mem)
			first := (start + BlockSize - 1) / BlockSize
			a.give(pages{first, (start+size)/BlockSize - first})
			return nil
		}
		if size /= 2; size < max(need, arenaMinimum) {
			return fmt.Errorf("%w: reserve addresses: %w", cuda.ErrorOutOfMemory, err)
		}
	}
}

func (a *addressSpace) close() error {
	var errs []error
	for _, mem := range a.arenas {
		errs = append(errs, unix.Munmap(mem))
	}
	a.arenas, a.free = nil, nil
	return errors.Join(errs...)
}
