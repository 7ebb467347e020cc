// Command third shows that legacy CUDA IPC works between the ranks of a pair.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
)

func main() {
	os.Exit(harness.Run(harness.Program{
		Name: "third", About: "Shows that legacy CUDA IPC works between the ranks of a pair.",
		Cases: func(*harness.Settings) ([]harness.Case, error) {
			return []harness.Case{{Name: "greeting", Run: greeting}}, nil
		},
	}, os.Args[1:], os.Stdout, os.Stderr))
}

// greeting runs on both ranks: 0 owns the memory, 1 opens and reads it.
func greeting(_ context.Context, r *harness.Rank) (err error) {
	const text = "hello from rank 0"
	if r.Index() == 0 {
		ptr, err := r.Driver.MemAlloc(r.Primary, 2<<20)
		if err != nil {
			return err
		}
		defer r.Driver.MemFree(r.Primary, ptr)
		handle, err := r.Driver.IpcGetMemHandle(r.Primary, ptr)
		return errors.Join(err, r.Driver.MemcpyHtoD(r.Primary, ptr, []byte(text)), r.Driver.CtxSynchronize(r.Primary),
			r.Send(handle[:]), r.Barrier()) // the barrier: rank 1 is done
	}
	message, err := r.Recv()
	if err != nil {
		return err
	}
	ptr, err := r.Driver.IpcOpenMemHandle(r.Primary, cuda.IpcMemHandle(message), cuda.IpcMemLazyEnablePeerAccess)
	if err != nil {
		return err
	}
	got := make([]byte, len(text))
	if err = r.Driver.MemcpyDtoH(r.Primary, got, ptr); err == nil && string(got) != text {
		err = fmt.Errorf("found %q, want %q", got, text)
	}
	return errors.Join(err, r.Driver.IpcCloseMemHandle(r.Primary, ptr), r.Barrier())
}
