package mpi

import "context"

// Tags from here on are the collectives' own.
const (
	tagGather = 30000 + iota
	tagBroadcast
	tagBarrier
)

// Root is the rank that collectives gather at and broadcast from.
const Root = 0

// Gather returns every rank's b, in order of ranks, at the root, and nil
// elsewhere.
func (w *World) Gather(ctx context.Context, b []byte) ([][]byte, error) {
	return w.gather(ctx, tagGather, b)
}

func (w *World) gather(ctx context.Context, tag int, b []byte) ([][]byte, error) {
	if w.rank != Root {
		w.Send(Root, tag, b)
		return nil, nil
	}
	all := make([][]byte, w.size)
	all[Root] = b
	for from := range w.size {
		if from == Root {
			continue
		}
		var err error
		if all[from], err = w.Recv(ctx, from, tag); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Broadcast returns the root's b on every rank.
func (w *World) Broadcast(ctx context.Context, b []byte) ([]byte, error) {
	return w.broadcast(ctx, tagBroadcast, b)
}

func (w *World) broadcast(ctx context.Context, tag int, b []byte) ([]byte, error) {
	if w.rank != Root {
		return w.Recv(ctx, Root, tag)
	}
	for to := range w.size {
		if to != Root {
			w.Send(to, tag, b)
		}
	}
	return b, nil
}

// Barrier returns when every rank has called it.
func (w *World) Barrier(ctx context.Context) error {
	if _, err := w.gather(ctx, tagBarrier, nil); err != nil {
		return err
	}
	_, err := w.broadcast(ctx, tagBarrier, nil)
	return err
}
