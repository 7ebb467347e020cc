package ucxlite

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
	"github.com/stretchr/testify/require"
)

// childNode tells a child which emulated node to join.
const childNode = "UCXLITE_TEST_NODE"

// childProcess is what a child that shares memory starts with.
type childProcess struct {
	drv *softgpu.Driver
	cu  cuda.Context
	w   *Worker
	in  *bufio.Reader
}

func newChildProcess() (*childProcess, error) {
	drv, err := softgpu.Open(softgpu.Config{Node: os.Getenv(childNode)})
	if err != nil {
		return nil, err
	}
	os.Unsetenv(childNode)
	cu, err := drv.DevicePrimaryCtxRetain(0)
	if err != nil {
		return nil, err
	}
	c, err := NewContext(drv, ContextOptions{})
	if err != nil {
		return nil, err
	}
	w, err := c.NewWorker(WorkerOptions{})
	return &childProcess{drv, cu, w, bufio.NewReader(os.Stdin)}, err
}

func (p *childProcess) hear() ([]byte, error) {
	line, err := p.in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	return hex.DecodeString(strings.TrimSpace(line))
}

// own registers memory, says address and key, and fills the first bytes.
func (p *childProcess) own(ptr cuda.DevicePtr, n uint64) error {
	m, err := p.w.c.MemMap(p.cu, ptr, n, MemMapOptions{})
	if err != nil {
		return err
	}
	packed, err := m.PackRkey()
	if err != nil {
		return err
	}
	if err := p.drv.MemcpyHtoD(p.cu, ptr, []byte("of the child")); err != nil {
		return err
	}
	if err := p.drv.CtxSynchronize(p.cu); err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(p.w.Address()))
	fmt.Println(hex.EncodeToString(packed))
	return nil
}

func init() {
	// Each of these is killed sooner or later.
	roles["plain owner"] = func() error {
		p, err := newChildProcess()
		if err != nil {
			return err
		}
		ptr, err := p.drv.MemAlloc(p.cu, payload)
		if err == nil {
			err = p.own(ptr, payload)
		}
		if err == nil {
			_, err = p.hear()
		}
		return err
	}
	roles["managed owner that hangs in a copy"] = func() error {
		p, err := newChildProcess()
		if err != nil {
			return err
		}
		ptr, err := p.drv.MemAllocManaged(p.cu, payload, cuda.MemAttachGlobal)
		if err == nil {
			err = p.own(ptr, payload)
		}
		if err != nil {
			return err
		}
		if _, err := p.hear(); err != nil {
			return err
		}
		p.drv.SetHook(func(call string) cuda.Result {
			if call == "cuMemcpyDtoHAsync" {
				fmt.Println("copying")
				select {}
			}
			return cuda.Success
		})
		fmt.Println("ready")
		_, err = p.hear()
		return err
	}
	roles["importer"] = func() error {
		p, err := newChildProcess()
		if err != nil {
			return err
		}
		address, err1 := p.hear()
		packed, err2 := p.hear()
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		e, err := p.w.NewEndpoint(address, EndpointOptions{})
		if err != nil {
			return err
		}
		k, err := e.UnpackRkey(packed, UnpackOptions{})
		if err != nil {
			return err
		}
		ptr, err := k.Ptr(k.Address())
		if err != nil {
			return err
		}
		if err := p.drv.MemcpyHtoD(p.cu, ptr, []byte("from the child")); err != nil {
			return err
		}
		if err := p.drv.CtxSynchronize(p.cu); err != nil {
			return err
		}
		fmt.Println("mapped")
		_, err = p.hear()
		return err
	}
}

func mustNodeSide(tb testing.TB) *side {
	return mustSide(tb, softgputest.New(tb, func(c *softgpu.Config) { c.Devices = 2 }))
}

func (s *side) startChild(role string) *child {
	return startChild(s.tb, role, childNode+"="+s.drv.NodePath())
}

// Two real processes; then the importer is killed while it holds the mapping:
// the owner's memory returns.
func TestImporterKilled(t *testing.T) {
	s := mustNodeSide(t)
	base := s.free()
	remote, err := s.drv.MemAlloc(s.cu, payload)
	require.NoError(t, err)
	m, packed := s.register(remote, payload)
	importer := s.startChild("importer")
	importer.say(hex.EncodeToString(s.w.Address()))
	importer.say(hex.EncodeToString(packed))
	require.Equal(t, "mapped", importer.hear())
	require.Equal(t, "from the child", string(s.read(remote, len("from the child"))))

	require.NoError(t, m.Unmap(testContext(t)))
	s.freeMemory(remote)
	require.Less(t, s.free(), base, "the importer holds it")
	importer.kill()
	require.Eventually(t, func() bool { return s.free() == base }, testTimeout, pollInterval)
}

// The owner is killed while a copy of its memory is in flight: the copy ends as
// its stream says, everything after gets ErrConnectionReset, and the memory is
// back as soon as the last pin is gone.
func TestOwnerKilled(t *testing.T) {
	s := mustNodeSide(t)
	gate := s.gateEvents()
	local := s.alloc(payload)
	base := s.free()
	owner := s.startChild("plain owner")
	address, packed := mustAddress(t, owner.hear()), mustAddress(t, owner.hear())
	e := mustEndpoint(t, s.w, address, EndpointOptions{})
	require.NoError(t, e.WaitConnected(testContext(t)))
	k := mustUnpack(t, e, packed, UnpackOptions{})
	idle := mustUnpack(t, e, packed, UnpackOptions{Policy: policy(Retain)})
	mustPtr(t, idle, idle.Address())
	require.NoError(t, idle.Destroy())

	gate.close()
	r, err := e.Get(DeviceBuffer(local, payload), k.Address(), k, OpOptions{})
	require.NoError(t, err)
	owner.kill()
	<-e.peer.life.Done()
	done, _ := r.Test()
	require.False(t, done, "complete under a copy")
	_, err = e.Get(DeviceBuffer(local, payload), k.Address(), k, OpOptions{})
	require.ErrorIs(t, err, ErrConnectionReset)
	gate.open()
	mustWait(t, r, nil)
	require.Equal(t, "of the child", string(s.read(local, len("of the child"))))
	require.NoError(t, k.Destroy())
	require.Zero(t, s.c.Cache().Stats().Live)
	require.Eventually(t, func() bool { return s.free() == base }, testTimeout, pollInterval)
}

// What is kept idle of an owner goes when the owner does.
func TestS09IdleMappingsOfALostPeer(t *testing.T) {
	s := mustNodeSide(t)
	base := s.free()
	owner := s.startChild("plain owner")
	address, packed := mustAddress(t, owner.hear()), mustAddress(t, owner.hear())
	e := mustEndpoint(t, s.w, address, EndpointOptions{Policy: policy(Retain)})
	k := mustUnpack(t, e, packed, UnpackOptions{Map: true})
	require.NoError(t, k.Destroy())
	claimed := mustUnpack(t, e, packed, UnpackOptions{Map: true})
	require.Equal(t, 1, s.c.Cache().Stats().Live)
	owner.kill()
	require.Eventually(t, func() bool { return s.free() == base }, testTimeout, pollInterval)
	_, err := claimed.Ptr(claimed.Address())
	require.ErrorIs(t, err, ErrConnectionReset)
}

// The owner of a staged operation is killed while it copies, with more queued:
// all of them end with ErrConnectionReset.
func TestStagedOwnerKilled(t *testing.T) {
	s := mustNodeSide(t)
	owner := s.startChild("managed owner that hangs in a copy")
	address, packed := mustAddress(t, owner.hear()), mustAddress(t, owner.hear())
	e := mustEndpoint(t, s.w, address, EndpointOptions{})
	k := mustUnpack(t, e, packed, UnpackOptions{})
	host := make([]byte, len("of the child"))
	r, err := e.Get(HostBuffer(host), k.Address(), k, OpOptions{})
	mustWait(t, r, err)
	require.Equal(t, "of the child", string(host))

	owner.say("")
	require.Equal(t, "ready", owner.hear())
	var all []*Request
	for range 10 {
		r, err := e.Get(HostBuffer(make([]byte, payload)), k.Address(), k, OpOptions{})
		require.NoError(t, err)
		all = append(all, r)
	}
	require.Equal(t, "copying", owner.hear())
	require.ErrorIs(t, e.Close(), ErrBusy)
	owner.kill()
	for _, r := range all {
		require.ErrorIs(t, r.Wait(testContext(t)), ErrConnectionReset)
	}
	require.ErrorIs(t, e.Err(), ErrConnectionReset)
	_, err = e.Get(HostBuffer(host), k.Address(), k, OpOptions{})
	require.ErrorIs(t, err, ErrConnectionReset)
}
