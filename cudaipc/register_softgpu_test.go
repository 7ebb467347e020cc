package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

// S03: the kind is what the allocation allows; none has a reason and no error.
func TestS03RegisterKinds(t *testing.T) {
	owner, _, _ := pair(t)
	plain := owner.alloc(4096)
	managed, err := owner.MemAllocManaged(owner.ctx, 4096, cuda.MemAttachGlobal)
	require.NoError(t, err)
	fd, freeFD := owner.vmm(4*mib, cuda.HandleTypePosixFD)
	none, freeNone := owner.vmm(4*mib, cuda.HandleTypeNone)
	for _, tc := range []struct {
		name   string
		p      cuda.DevicePtr
		kind   Kind
		reason string
	}{
		{"plain", plain, KindLegacy, ""},
		{"managed", managed, KindNone, "managed"},
		{"VMM with a descriptor", fd, KindPosixFD, ""},
		{"VMM with none", none, KindNone, "no shareable handle type"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := owner.register(tc.p, 4096)
			require.Equal(t, tc.kind, r.Kind())
			require.Contains(t, r.Reason(), tc.reason)
			require.Equal(t, tc.reason == "", r.Reason() == "")
			k := r.Key()
			_, err := k.MarshalBinary()
			require.NoError(t, err, "a key of kind none is a key")
			require.NoError(t, r.Close())
		})
	}
	owner.free(plain)
	owner.free(managed)
	freeFD()
	freeNone()
}

func TestRegisterRefuses(t *testing.T) {
	owner, importer, c := pair(t)
	p := owner.alloc(4096)
	for name, r := range map[string]struct {
		p    cuda.DevicePtr
		size uint64
	}{
		"nothing":      {0, 1},
		"no bytes":     {p, 0},
		"overflow":     {p, ^uint64(0)},
		"past the end": {p, 4097},
		"unknown":      {p.Add(1 << 40), 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Register(owner.Driver, owner.ctx, r.p, r.size, RegisterOptions{})
			require.ErrorIs(t, err, cuda.ErrorInvalidValue)
		})
	}
	t.Run("imported memory is not ours to export (F19)", func(t *testing.T) {
		r := owner.register(p, 4096)
		k := r.Key()
		m := mustMap(t, c, &k, MapOptions{})
		again := importer.register(m.Ptr(), 16)
		require.Equal(t, KindNone, again.Kind())
		require.NotEmpty(t, again.Reason())
		require.NoError(t, again.Close())
		require.NoError(t, m.Release(FreeUnused))
		require.NoError(t, r.Close())
	})
	owner.free(p)
}

func TestRegistrationEnds(t *testing.T) {
	owner, _, _ := pair(t)
	p := owner.alloc(4096)
	r := owner.register(p, 4096)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	_, err := r.AppendKey(nil)
	require.ErrorIs(t, err, ErrReleased)
	var nothing *Registration
	require.NoError(t, nothing.Close())
	owner.free(p)
}

// One export per allocation however often it is registered, a new one for
// another allocation at the same address.
func TestOneExportPerAllocation(t *testing.T) {
	owner, _, _ := pair(t)
	calls := func() int { return int(owner.Counters().Calls["cuIpcGetMemHandle"]) }
	p := owner.alloc(mib)
	before := calls()
	var rs []*Registration
	for i := range uint64(10) {
		rs = append(rs, owner.register(p.Add(i*4096), 4096))
	}
	require.Equal(t, 1, calls()-before)
	require.Equal(t, rs[0].Key().Handles, rs[9].Key().Handles)
	require.EqualValues(t, 9*4096, rs[9].Key().Offset)

	owner.free(p) // under the registrations, which notice
	again := owner.alloc(mib)
	require.Equal(t, p, again, "softgpu gives a freed address out first")
	r := owner.register(again, 4096)
	require.NotEqual(t, rs[0].Key().Handles, r.Key().Handles)
	require.NotEqual(t, rs[0].Key().BufferID, r.Key().BufferID)
	for _, r := range append(rs, r) {
		require.NoError(t, r.Close())
	}
	owner.free(again)
	require.Empty(t, exports.byID)
}

func TestRegisterSetsSyncMemops(t *testing.T) {
	owner, _, _ := pair(t)
	for _, keep := range []bool{false, true} {
		p := owner.alloc(4096)
		r, err := Register(owner.Driver, owner.ctx, p, 4096, RegisterOptions{Identity: &owner.id, KeepMemopsAsync: keep})
		require.NoError(t, err)
		got, err := owner.PointerGetAttribute(cuda.PointerAttributeSyncMemops, p)
		require.NoError(t, err)
		require.Equal(t, keep, got == 0)
		require.NoError(t, r.Close())
		owner.free(p)
	}
}
