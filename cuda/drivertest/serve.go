package drivertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/gpurma/gpurma/cuda"
)

// server is the peer: a driver, its first device's primary context, and what
// the requests made of them.
type server struct {
	drv  cuda.Driver
	dev  cuda.Device
	ctx  cuda.Context
	load *load
}

// operations are what a peer can be asked for. One that fails at a driver call
// answers with that call's error.
var operations = map[string]func(*server, request) (answer, error){
	"hello":          (*server).hello,
	"alloc":          (*server).alloc,
	"free":           (*server).free,
	"fill":           (*server).fill,
	"verify":         (*server).verify,
	"attribute":      (*server).attribute,
	"range":          (*server).addressRange,
	"export":         (*server).export,
	"open":           (*server).open,
	"close":          (*server).closeHandle,
	"startLoad":      (*server).startLoad,
	"loadRunning":    (*server).loadRunning,
	"waitLoad":       (*server).waitLoad,
	"endLoad":        (*server).endLoad,
	"vmmCreate":      (*server).vmmCreate,
	"vmmMap":         (*server).vmmMap,
	"vmmUnmap":       (*server).vmmUnmap,
	"vmmRelease":     (*server).vmmRelease,
	"vmmExportFD":    (*server).vmmExportFD,
	"closeFD":        (*server).closeFD,
	"poolCreate":     (*server).poolCreate,
	"poolAlloc":      (*server).poolAlloc,
	"poolFree":       (*server).poolFree,
	"poolTrim":       (*server).poolTrim,
	"poolDestroy":    (*server).poolDestroy,
	"poolExportFD":   (*server).poolExportFD,
	"poolExport":     (*server).poolExport,
	"unmapLoaded":    (*server).unmapLoaded,
	"freePoolLoaded": (*server).freePoolLoaded,
	"copyNoAccess":   (*server).copyNoAccess,
	"memsetBeyond":   (*server).memsetBeyond,
}

// serve answers requests until their end, then gives everything back.
func serve(open func() (cuda.Driver, error), requests io.Reader, answers io.Writer) error {
	drv, err := open()
	if err != nil {
		return fmt.Errorf("open driver: %w", err)
	}
	s := &server{drv: drv}
	if s.ctx, err = drv.DevicePrimaryCtxRetain(s.dev); err != nil {
		return errors.Join(fmt.Errorf("retain primary context: %w", err), drv.Close())
	}
	in, out := json.NewDecoder(requests), json.NewEncoder(answers)
	for {
		var req request
		if err := in.Decode(&req); errors.Is(err, io.EOF) {
			return errors.Join(drv.DevicePrimaryCtxRelease(s.dev), drv.Close())
		} else if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		op, ok := operations[req.Op]
		if !ok {
			return fmt.Errorf("unknown operation %q", req.Op)
		}
		ans, err := op(s, req)
		ans.Err = toWire(err)
		if err := out.Encode(ans); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
	}
}

// hello uses each kind of call once and says which device it did that on.
func (s *server) hello(request) (answer, error) {
	if err := warmUp(s.drv, s.ctx, s.dev); err != nil {
		return answer{}, err
	}
	uuid, err := s.drv.DeviceGetUuid(s.dev)
	return answer{UUID: uuid}, err
}

func (s *server) alloc(r request) (answer, error) {
	ptr, err := s.drv.MemAlloc(s.ctx, r.Size)
	return answer{Ptr: ptr}, err
}

func (s *server) free(r request) (answer, error) {
	return answer{}, s.drv.MemFree(s.ctx, r.Ptr)
}

func (s *server) fill(r request) (answer, error) {
	return answer{}, fill(s.drv, s.ctx, r.Ptr, r.Size, r.Seed)
}

func (s *server) verify(r request) (answer, error) {
	return answer{}, verify(s.drv, s.ctx, r.Ptr, r.Size, r.Seed)
}

func (s *server) attribute(r request) (answer, error) {
	v, err := s.drv.PointerGetAttribute(r.Attr, r.Ptr)
	return answer{Value: v}, err
}

func (s *server) addressRange(r request) (answer, error) {
	base, size, err := s.drv.MemGetAddressRange(s.ctx, r.Ptr)
	return answer{Ptr: base, Size: size}, err
}

func (s *server) export(r request) (answer, error) {
	h, err := s.drv.IpcGetMemHandle(s.ctx, r.Ptr)
	return answer{Handle: h[:]}, err
}

func (s *server) open(r request) (answer, error) {
	ptr, err := s.drv.IpcOpenMemHandle(s.ctx, cuda.IpcMemHandle(r.Handle), cuda.IpcMemLazyEnablePeerAccess)
	return answer{Ptr: ptr}, err
}

func (s *server) closeHandle(r request) (answer, error) {
	return answer{}, s.drv.IpcCloseMemHandle(s.ctx, r.Ptr)
}

// startLoad copies Size bytes from Ptr, Count times, to a buffer of its own.
func (s *server) startLoad(r request) (answer, error) {
	dst, err := s.drv.MemAlloc(s.ctx, r.Size)
	if err != nil {
		return answer{}, err
	}
	if s.load, err = startLoad(s.drv, s.ctx, dst, r.Ptr, r.Size, r.Count); err != nil {
		return answer{}, errors.Join(err, s.drv.MemFree(s.ctx, dst))
	}
	return answer{Ptr: dst}, nil
}

func (s *server) loadRunning(request) (answer, error) {
	running, err := s.load.running()
	if running {
		return answer{Value: 1}, err
	}
	return answer{}, err
}

func (s *server) waitLoad(request) (answer, error) {
	return answer{}, s.drv.StreamSynchronize(s.ctx, s.load.stream)
}

// endLoad waits for the copies and frees the buffer Ptr that they went to.
func (s *server) endLoad(r request) (answer, error) {
	return answer{}, errors.Join(s.load.close(), s.drv.MemFree(s.ctx, r.Ptr))
}

func (s *server) vmmCreate(r request) (answer, error) {
	mem, err := s.drv.MemCreate(s.ctx, r.Size, cuda.AllocationProp{Device: s.dev, HandleTypes: r.Types})
	return answer{Mem: mem}, err
}

func (s *server) vmmMap(r request) (answer, error) {
	ptr, err := mapRange(s.drv, s.ctx, s.dev, r.Size, r.Mem)
	return answer{Ptr: ptr}, err
}

func (s *server) vmmUnmap(r request) (answer, error) {
	return answer{}, unmapRange(s.drv, s.ctx, r.Ptr, r.Size)
}

func (s *server) vmmRelease(r request) (answer, error) {
	return answer{}, s.drv.MemRelease(s.ctx, r.Mem)
}

func (s *server) vmmExportFD(r request) (answer, error) {
	fd, err := s.drv.MemExportPosixFD(s.ctx, r.Mem)
	return answer{FD: fd}, err
}

func (s *server) closeFD(r request) (answer, error) {
	return answer{}, os.NewSyscallError("close", syscall.Close(r.FD))
}
