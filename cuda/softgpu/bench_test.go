package softgpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
)

func noDelay(cfg *softgpu.Config) { cfg.CopyDelay = softgpu.Delay{} }

// BenchmarkCalls times the calls that the layers above make often.
func BenchmarkCalls(b *testing.B) {
	owner := softgputest.New(b, noDelay)
	importer := softgputest.Attach(b, owner.NodePath(), noDelay)
	octx, ictx := mustPrimary(b, owner), mustPrimary(b, importer)
	ptr := mustAlloc(b, owner, octx, 1<<30)
	h, err := owner.IpcGetMemHandle(octx, ptr)
	require.NoError(b, err)

	b.Run("MemGetInfo", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := owner.MemGetInfo(octx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("IpcOpenClose1GiB", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p, err := importer.IpcOpenMemHandle(ictx, h, cuda.IpcMemLazyEnablePeerAccess)
			if err == nil {
				err = importer.IpcCloseMemHandle(ictx, p)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("MemAllocFree2MiB", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p, err := owner.MemAlloc(octx, 2<<20)
			if err == nil {
				err = owner.MemFree(octx, p)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("PointerGetAttribute", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := owner.PointerGetAttribute(cuda.PointerAttributeBufferID, ptr); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("CopySynchronize4KiB", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			err := owner.MemcpyDtoD(octx, ptr, ptr.Add(4096), 4096)
			if err == nil {
				err = owner.CtxSynchronize(octx)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("CopySparse1GiB", func(b *testing.B) {
		dst := mustAlloc(b, owner, octx, 1<<30)
		for b.Loop() {
			err := owner.MemcpyDtoD(octx, dst, ptr, 1<<30)
			if err == nil {
				err = owner.CtxSynchronize(octx)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		require.NoError(b, owner.MemFree(octx, dst))
	})
}
