package ucxlite

import (
	"bytes"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/stretchr/testify/require"
)

func TestUnpackRefused(t *testing.T) {
	owner, importer := mustPairOf(t)
	_, _, packed := owner.export(payload)
	_, _, own := importer.export(payload)
	e := importer.mustConnected(owner, EndpointOptions{})
	other := importer.mustConnected(owner, EndpointOptions{})

	for n := range len(packed) {
		_, err := e.UnpackRkey(packed[:n], UnpackOptions{})
		require.ErrorIs(t, err, ErrInvalidKey, "cut to %d", n)
	}
	for i := range packed {
		b := bytes.Clone(packed)
		b[i] ^= 1
		_, err := e.UnpackRkey(b, UnpackOptions{})
		require.ErrorIs(t, err, ErrInvalidKey, "byte %d flipped", i)
	}
	_, err := e.UnpackRkey(own, UnpackOptions{})
	require.ErrorIs(t, err, ErrInvalidKey, "a key of this process, not of the peer")
	dev := cuda.Device(7)
	_, err = e.UnpackRkey(packed, UnpackOptions{Device: &dev})
	require.ErrorIs(t, err, ErrInvalidParam)
	require.Zero(t, importer.opens(), "no unpack has called the driver")

	k := mustUnpack(t, e, packed, UnpackOptions{})
	for name, bad := range map[string]struct {
		e   *Endpoint
		buf Buffer
		k   *Rkey
	}{
		"another endpoint's key":      {other, HostBuffer(make([]byte, 8)), k},
		"no key":                      {e, HostBuffer(make([]byte, 8)), nil},
		"buffer at 0":                 {e, DeviceBuffer(0, 8), k},
		"buffer beyond all memory":    {e, DeviceBuffer(^cuda.DevicePtr(0), 8), k},
		"buffer the driver lacks":     {e, DeviceBuffer(8, 8), k},
		"the same, in the background": {mustEndpoint(t, importer.w, owner.w.Address(), EndpointOptions{}), DeviceBuffer(8, 8), nil},
	} {
		if name == "the same, in the background" {
			bad.k = mustUnpack(t, bad.e, packed, UnpackOptions{})
		}
		r, err := bad.e.Put(bad.buf, k.Address(), bad.k, OpOptions{})
		if err == nil {
			err = r.Wait(testContext(t))
		}
		require.ErrorIs(t, err, ErrInvalidParam, name)
	}

	// With Map the unpack does what the first use would, and fails as it would.
	closes := importer.closes()
	k = mustUnpack(t, e, packed, UnpackOptions{Map: true})
	require.Equal(t, 1, importer.opens())
	require.NoError(t, k.Destroy())
	require.Equal(t, closes+1, importer.closes())
	importer.failOpen(1)
	_, err = e.UnpackRkey(packed, UnpackOptions{Map: true})
	require.ErrorIs(t, err, ErrUnreachable)
}

// A key that claims more than was registered gets nothing by it.
func TestLyingKey(t *testing.T) {
	owner, importer := mustPairOf(t)
	e := importer.mustConnected(owner, EndpointOptions{})
	const size = 4 * mib
	lie := func(packed []byte) *Rkey {
		key, err := cudaipc.ParseKey(packed)
		require.NoError(t, err)
		key.Base, key.Length, key.Offset, key.UserLength = key.Base-size, 3*size, 0, 3*size
		b, err := key.MarshalBinary()
		require.NoError(t, err)
		return mustUnpack(t, e, b, UnpackOptions{})
	}
	managed := owner.allocManaged(size)
	_, packed := owner.register(managed, size)
	k := lie(packed)
	for name, at := range map[string]uint64{
		"before":       uint64(managed) - 8,
		"across start": uint64(managed) - 4,
		"across end":   uint64(managed) + size - 4,
		"after":        uint64(managed) + size,
		"far after":    uint64(managed) + size + mib,
	} {
		for _, op := range []func(Buffer, uint64, *Rkey, OpOptions) (*Request, error){e.Put, e.Get} {
			r, err := op(HostBuffer(make([]byte, 8)), at, k, OpOptions{})
			require.NoError(t, err)
			require.ErrorIs(t, r.Wait(testContext(t)), ErrOutOfRange, name)
		}
	}
	_, plain := owner.register(owner.alloc(size), size)
	k = lie(plain)
	_, err := k.Ptr(k.Address())
	require.ErrorIs(t, err, ErrInvalidKey)
	require.Zero(t, importer.c.Cache().Stats().Live)
}
