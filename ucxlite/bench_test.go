package ucxlite

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A key of memory whose mapping is there, idle: unpack, pointer, destroy.
func BenchmarkUnpackPtrDestroy(b *testing.B) {
	owner, importer := mustPairOf(b)
	_, _, packed := owner.export(mib)
	e := importer.mustConnected(owner, EndpointOptions{Policy: policy(Retain)})
	once := func() error {
		k, err := e.UnpackRkey(packed, UnpackOptions{})
		if err != nil {
			return err
		}
		if _, err := k.Ptr(k.Address()); err != nil {
			return err
		}
		return k.Destroy()
	}
	require.NoError(b, once())
	b.ReportAllocs()
	for b.Loop() {
		if err := once(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWireup(b *testing.B) {
	owner, importer := mustContext(b, noDevices{}), mustContext(b, noDevices{})
	w, address := mustWorker(b, importer), mustWorker(b, owner).Address()
	ctx := testContext(b)
	for b.Loop() {
		e, err := w.NewEndpoint(address, EndpointOptions{})
		if err == nil {
			err = e.WaitConnected(ctx)
		}
		if err == nil {
			err = e.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// Put and wait, by lane and size.
func BenchmarkPut(b *testing.B) {
	owner, importer := mustPairOf(b)
	e := importer.mustConnected(owner, EndpointOptions{})
	const most = 8 * mib
	local := importer.alloc(most)
	_, ipc := owner.register(owner.alloc(most), most)
	_, staged := owner.register(owner.allocManaged(most), most)
	ctx := testContext(b)
	for _, lane := range []struct {
		name   string
		packed []byte
	}{{"ipc", ipc}, {"staged", staged}} {
		k := mustUnpack(b, e, lane.packed, UnpackOptions{})
		for _, size := range []struct {
			name string
			n    uint64
		}{{"8B", 8}, {"1MiB", mib}, {"8MiB", 8 * mib}} {
			b.Run(lane.name+"/"+size.name, func(b *testing.B) {
				b.SetBytes(int64(size.n))
				b.ReportAllocs()
				for b.Loop() {
					r, err := e.Put(DeviceBuffer(local, size.n), k.Address(), k, OpOptions{})
					if err == nil {
						err = r.Wait(ctx)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
