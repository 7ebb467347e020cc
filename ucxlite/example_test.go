package ucxlite_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite"
)

// process is one of two processes: two drivers of one emulated node behave as
// two, so that the whole tour fits into one function. In real life each has a
// process of its own, and address and key go from one to the other by MPI, a
// socket, or a file.
type process struct {
	drv cuda.Driver
	cu  cuda.Context
	ctx *ucxlite.Context
	w   *ucxlite.Worker
}

func start(node string, nonce byte) *process {
	drv := must(softgpu.Open(softgpu.Config{Node: node}))
	id := must(cudaipc.Self())
	id.Nonce[0] = nonce
	ctx := must(ucxlite.NewContext(drv, ucxlite.ContextOptions{Identity: &id}))
	return &process{drv, must(drv.DevicePrimaryCtxRetain(0)), ctx, must(ctx.NewWorker(ucxlite.WorkerOptions{}))}
}

func (p *process) end() {
	check(p.w.Close())
	check(p.ctx.Close())
	check(p.drv.DevicePrimaryCtxRelease(0))
	check(p.drv.Close())
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// The whole tour: a key for GPU memory, put and get through it, destroy, and
// the owner's memory is back.
func Example() {
	const size = 64 << 20
	background := context.Background()
	node := must(os.MkdirTemp("/dev/shm", "softgpu-example-"))
	defer os.RemoveAll(node)

	owner, importer := start(node, 1), start(node, 2)
	defer owner.end()
	defer importer.end()

	// The owner allocates, maps and packs.
	free, _, err := owner.drv.MemGetInfo(owner.cu)
	check(err)
	memory := must(owner.drv.MemAlloc(owner.cu, size))
	mapped := must(owner.ctx.MemMap(owner.cu, memory, size, ucxlite.MemMapOptions{}))
	packed := must(mapped.PackRkey())
	address := owner.w.Address()

	// The importer connects, unpacks, writes and reads.
	ep := must(importer.w.NewEndpoint(address, ucxlite.EndpointOptions{}))
	key := must(ep.UnpackRkey(packed, ucxlite.UnpackOptions{}))
	put := must(ep.Put(ucxlite.HostBuffer([]byte("hello, GPU")), key.Address(), key, ucxlite.OpOptions{}))
	check(put.Wait(background))
	got := make([]byte, 10)
	get := must(ep.Get(ucxlite.HostBuffer(got), key.Address(), key, ucxlite.OpOptions{}))
	check(get.Wait(background))
	fmt.Printf("got %q\n", got)

	// Load and store by a pointer, for kernels.
	ptr := must(key.Ptr(key.Address() + 7))
	check(importer.drv.MemcpyDtoH(importer.cu, got[:3], ptr))
	fmt.Printf("at the pointer %q\n", got[:3])

	// Done: the last user of a key closes the mapping before Destroy returns.
	check(key.Destroy())
	check(ep.Close())

	check(mapped.Unmap(background))
	check(owner.drv.MemFree(owner.cu, memory))
	after, _, err := owner.drv.MemGetInfo(owner.cu)
	check(err)
	fmt.Println("unreleased bytes:", free-after)

	// Output:
	// got "hello, GPU"
	// at the pointer "GPU"
	// unreleased bytes: 0
}
