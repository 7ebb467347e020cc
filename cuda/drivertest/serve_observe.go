package drivertest

import (
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// These operations may poison the context or the process on some driver. They
// note what they saw; the test kills the peer afterwards.

type notes []string

func (n *notes) add(format string, args ...any) { *n = append(*n, fmt.Sprintf(format, args...)) }

// unmapLoaded unmaps VMM memory that copies are reading.
func (s *server) unmapLoaded(r request) (answer, error) {
	var n notes
	mem, err := s.drv.MemCreate(s.ctx, r.Size, cuda.AllocationProp{Device: s.dev})
	if err != nil {
		return answer{}, err
	}
	ptr, err := mapRange(s.drv, s.ctx, s.dev, r.Size, mem)
	if err != nil {
		return answer{}, err
	}
	dst, err := s.drv.MemAlloc(s.ctx, r.Size)
	if err != nil {
		return answer{}, err
	}
	if err := fill(s.drv, s.ctx, ptr, r.Size, r.Seed); err != nil {
		return answer{}, err
	}
	l, err := startLoad(s.drv, s.ctx, dst, ptr, r.Size, r.Count)
	if err != nil {
		return answer{}, err
	}
	before, err := l.running()
	n.add("copies running before the unmap: %v (%v)", before, err)
	n.add("unmap: %v", s.drv.MemUnmap(s.ctx, ptr, r.Size))
	after, err := l.running()
	n.add("copies running after the unmap: %v (%v), stream: %v", after, err, s.drv.StreamQuery(s.ctx, l.stream))
	n.add("wait for the copies: %v", s.drv.StreamSynchronize(s.ctx, l.stream))
	n.add("bytes copied: %v", verdict(verify(s.drv, s.ctx, dst, r.Size, r.Seed)))
	return answer{Notes: n}, nil
}

// freePoolLoaded frees pool memory, on a stream of its own, that copies are
// reading.
func (s *server) freePoolLoaded(r request) (answer, error) {
	var n notes
	pool, err := s.drv.MemPoolCreate(s.ctx, cuda.MemPoolProp{Device: s.dev})
	if err != nil {
		return answer{}, err
	}
	ptr, err := poolAlloc(s.drv, s.ctx, pool, r.Size)
	if err != nil {
		return answer{}, err
	}
	dst, err := s.drv.MemAlloc(s.ctx, r.Size)
	if err != nil {
		return answer{}, err
	}
	if err := fill(s.drv, s.ctx, ptr, r.Size, r.Seed); err != nil {
		return answer{}, err
	}
	stream, err := s.drv.StreamCreate(s.ctx, cuda.StreamNonBlocking)
	if err != nil {
		return answer{}, err
	}
	l, err := startLoad(s.drv, s.ctx, dst, ptr, r.Size, r.Count)
	if err != nil {
		return answer{}, err
	}
	n.add("free: %v", s.drv.MemFreeAsync(s.ctx, ptr, stream))
	n.add("wait for the free: %v", s.drv.StreamSynchronize(s.ctx, stream))
	after, err := l.running()
	n.add("copies running after the free: %v (%v)", after, err)
	n.add("trim: %v", s.drv.MemPoolTrimTo(s.ctx, pool, 0))
	n.add("destroy: %v", s.drv.MemPoolDestroy(s.ctx, pool))
	after, err = l.running()
	n.add("copies running after the pool's end: %v (%v)", after, err)
	n.add("wait for the copies: %v", s.drv.StreamSynchronize(s.ctx, l.stream))
	n.add("bytes copied: %v", verdict(verify(s.drv, s.ctx, dst, r.Size, r.Seed)))
	return answer{Notes: n}, nil
}

// copyNoAccess reads VMM memory that no MemSetAccess has opened.
func (s *server) copyNoAccess(r request) (answer, error) {
	var n notes
	mem, err := s.drv.MemCreate(s.ctx, r.Size, cuda.AllocationProp{Device: s.dev})
	if err != nil {
		return answer{}, err
	}
	ptr, err := s.drv.MemAddressReserve(s.ctx, r.Size, 0)
	if err != nil {
		return answer{}, err
	}
	n.add("copy from a reserved range: %v", s.drv.MemcpyDtoH(s.ctx, make([]byte, 64), ptr))
	if err := s.drv.MemMap(s.ctx, ptr, r.Size, 0, mem); err != nil {
		return answer{}, err
	}
	copied := s.drv.MemcpyDtoH(s.ctx, make([]byte, 64), ptr)
	n.add("copy from a mapped range without access: %v", copied)
	n.add("context afterwards: %v", s.drv.CtxSynchronize(s.ctx))
	return answer{Notes: n}, copied
}

// memsetBeyond sets bytes past the end of an allocation.
func (s *server) memsetBeyond(r request) (answer, error) {
	var n notes
	ptr, err := s.drv.MemAlloc(s.ctx, r.Size)
	if err != nil {
		return answer{}, err
	}
	set := s.drv.MemsetD8(s.ctx, ptr, 1, r.Size+1)
	n.add("memset past the end: %v", set)
	sync := s.drv.CtxSynchronize(s.ctx)
	n.add("context afterwards: %v", sync)
	return answer{Notes: n}, errors.Join(set, sync)
}

func verdict(err error) string {
	if err != nil {
		return err.Error()
	}
	return "right"
}
