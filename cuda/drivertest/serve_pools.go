package drivertest

import (
	"errors"

	"github.com/gpurma/gpurma/cuda"
)

func (s *server) poolCreate(r request) (answer, error) {
	pool, err := s.drv.MemPoolCreate(s.ctx, cuda.MemPoolProp{Device: s.dev, HandleTypes: r.Types})
	return answer{Pool: pool}, err
}

func (s *server) poolAlloc(r request) (answer, error) {
	ptr, err := poolAlloc(s.drv, s.ctx, r.Pool, r.Size)
	return answer{Ptr: ptr}, err
}

func (s *server) poolFree(r request) (answer, error) {
	return answer{}, poolFree(s.drv, s.ctx, r.Ptr)
}

func (s *server) poolTrim(r request) (answer, error) {
	return answer{}, s.drv.MemPoolTrimTo(s.ctx, r.Pool, r.Size)
}

func (s *server) poolDestroy(r request) (answer, error) {
	return answer{}, s.drv.MemPoolDestroy(s.ctx, r.Pool)
}

func (s *server) poolExportFD(r request) (answer, error) {
	fd, err := s.drv.MemPoolExportPosixFD(s.ctx, r.Pool)
	return answer{FD: fd}, err
}

func (s *server) poolExport(r request) (answer, error) {
	data, err := s.drv.MemPoolExportPointer(s.ctx, r.Ptr)
	return answer{Handle: data[:]}, err
}

// poolAlloc allocates on the NULL stream and waits.
func poolAlloc(drv cuda.Driver, ctx cuda.Context, pool cuda.MemPool, size uint64) (cuda.DevicePtr, error) {
	ptr, err := drv.MemAllocFromPoolAsync(ctx, size, pool, 0)
	if err != nil {
		return 0, err
	}
	return ptr, drv.CtxSynchronize(ctx)
}

// poolFree frees on the NULL stream and waits.
func poolFree(drv cuda.Driver, ctx cuda.Context, ptr cuda.DevicePtr) error {
	return errors.Join(drv.MemFreeAsync(ctx, ptr, 0), drv.CtxSynchronize(ctx))
}
