package ucxlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
)

// EndpointOptions are what an endpoint may be told; the zero value works.
type EndpointOptions struct {
	// Policy is the policy of the endpoint's keys; nil takes Config.Policy.
	Policy *Policy
	// Timeout bounds the wire-up; 0 takes Config.WireupTimeout. An endpoint
	// that is not connected by then ends with ErrEndpointTimeout.
	Timeout time.Duration
	// RequireIPC refuses the staged lane on this endpoint, as Config does on
	// all.
	RequireIPC bool
}

// EndpointState says how far an endpoint is.
type EndpointState uint8

const (
	EndpointConnecting EndpointState = iota // operations are queued
	EndpointConnected
	EndpointFailed // Err says why
	EndpointClosed
)

func (s EndpointState) String() string {
	switch s {
	case EndpointConnecting:
		return "connecting"
	case EndpointConnected:
		return "connected"
	case EndpointFailed:
		return "failed"
	}
	return "closed"
}

// Endpoint is a worker's way to one peer. It is usable at once: while the
// wire-up runs, operations are queued and keys can be unpacked.
type Endpoint struct {
	w       *Worker
	policy  Policy
	ipcOnly bool
	peer    *peer
	fetchFD func(context.Context, *cudaipc.Key) (int, error) // peer.fetchFD, made once
	timer   *time.Timer
	failed  chan struct{} // closed when err is set by the endpoint itself, or at Close
	stats   counters
	slow    sync.Once // warns of the staged lane

	mu          sync.Mutex
	closed      bool
	err         error // the endpoint's own failure; the peer's stands in peer
	keys        map[*Rkey]struct{}
	outstanding map[*Request]struct{}
	fence       []*Request // what later operations come after
}

// NewEndpoint starts the wire-up to the worker that address names and returns
// without waiting for it. Bytes that are no address are ErrInvalidParam; all
// that can be wrong with the peer is an error of the endpoint, later.
func (w *Worker) NewEndpoint(address WorkerAddress, opts EndpointOptions) (*Endpoint, error) {
	info, err := ParseWorkerAddress(address)
	if err != nil {
		return nil, fmt.Errorf("new endpoint: %w", err)
	}
	if opts.Timeout < 0 {
		return nil, fmt.Errorf("new endpoint: %w: timeout %s", ErrInvalidParam, opts.Timeout)
	}
	e := &Endpoint{
		w: w, policy: w.c.cfg.Policy, ipcOnly: opts.RequireIPC || w.c.cfg.RequireIPC,
		failed: make(chan struct{}), keys: map[*Rkey]struct{}{}, outstanding: map[*Request]struct{}{},
	}
	if opts.Policy != nil {
		e.policy = *opts.Policy
	}
	if e.peer, err = w.c.joinPeer(info); err != nil {
		return nil, fmt.Errorf("new endpoint: %w", err)
	}
	e.fetchFD = e.peer.fetchFD
	timeout := opts.Timeout
	if timeout == 0 {
		timeout = w.c.cfg.WireupTimeout
	}
	e.mu.Lock()
	e.timer = time.AfterFunc(timeout, func() { e.timedOut(timeout) })
	e.mu.Unlock()
	w.mu.Lock()
	closed := w.closed
	if !closed {
		w.endpoints[e] = struct{}{}
	}
	w.mu.Unlock()
	if closed {
		return nil, errors.Join(fmt.Errorf("new endpoint: worker: %w", ErrDestroyed), e.Close())
	}
	return e, nil
}

func (w *Worker) forget(e *Endpoint) {
	w.mu.Lock()
	delete(w.endpoints, e)
	w.mu.Unlock()
}

func (e *Endpoint) timedOut(after time.Duration) {
	if e.peer.state() != peerConnecting {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed && e.err == nil {
		e.err = fmt.Errorf("%s: %w: no answer in %s", e.peer, ErrEndpointTimeout, after)
		close(e.failed)
	}
}

// State says how far the endpoint is.
func (e *Endpoint) State() EndpointState {
	state, _ := e.status()
	return state
}

// Err is why the endpoint is failed or closed; nil while it works.
func (e *Endpoint) Err() error {
	_, err := e.status()
	return err
}

func (e *Endpoint) status() (EndpointState, error) {
	e.mu.Lock()
	closed, err := e.closed, e.err
	e.mu.Unlock()
	switch {
	case closed:
		return EndpointClosed, fmt.Errorf("endpoint to %s: %w", e.peer, ErrEndpointClosed)
	case err != nil:
		return EndpointFailed, err
	}
	switch state := e.peer.state(); state {
	case peerConnecting:
		return EndpointConnecting, nil
	case peerConnected:
		return EndpointConnected, nil
	}
	return EndpointFailed, e.peer.failure()
}

// WaitConnected waits for the end of the wire-up and returns nil, or why the
// endpoint failed, or ctx's error.
func (e *Endpoint) WaitConnected(ctx context.Context) error {
	select {
	case <-e.peer.ready:
	case <-e.failed:
	case <-ctx.Done():
		return fmt.Errorf("endpoint to %s: wait: %w", e.peer, ctx.Err())
	}
	return e.Err()
}

// Peer is the identity of the process at the other end.
func (e *Endpoint) Peer() cudaipc.Identity { return e.peer.name.id }

func (e *Endpoint) String() string {
	state, err := e.status()
	if err != nil {
		return fmt.Sprintf("endpoint to %s: %s: %v", e.peer, state, err)
	}
	return fmt.Sprintf("endpoint to %s: %s", e.peer, state)
}

// Flush waits for every operation that was posted on the endpoint before it and
// returns the first error among theirs, or ctx's. When it has returned nil, all
// puts are visible at the target.
func (e *Endpoint) Flush(ctx context.Context) error {
	e.mu.Lock()
	pending := make([]*Request, 0, len(e.outstanding))
	for r := range e.outstanding {
		pending = append(pending, r)
	}
	e.mu.Unlock()
	var first error
	for _, r := range pending {
		err := r.Wait(ctx)
		if err != nil && first == nil {
			first = err
		}
		if ctx.Err() != nil && first != nil {
			break
		}
	}
	if first != nil {
		return fmt.Errorf("flush: %w", first)
	}
	return nil
}

// Fence orders operations posted before it before operations posted after it.
// It does not block: a later operation that its stream does not order anyway
// waits in the background.
func (e *Endpoint) Fence() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fence = e.fence[:0]
	for r := range e.outstanding {
		e.fence = append(e.fence, r)
	}
}

// Close ends the endpoint and its keys: each reference they hold is dropped,
// once, and their methods return ErrEndpointClosed. Nobody else's keys or
// mappings are touched. While operations are in flight it changes nothing and
// returns ErrBusy: Flush first, or CloseFlush.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	if n := len(e.outstanding); n > 0 {
		e.mu.Unlock()
		return fmt.Errorf("close endpoint to %s: %w: %d operations in flight", e.peer, ErrBusy, n)
	}
	e.closed = true
	if e.err == nil {
		close(e.failed)
	}
	keys := e.keys
	e.keys = nil
	e.timer.Stop()
	e.mu.Unlock()

	var errs []error
	for k := range keys {
		errs = append(errs, k.end(ErrEndpointClosed))
	}
	e.peer.leave()
	e.w.forget(e)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close endpoint to %s: %w", e.peer, translate(err))
	}
	return nil
}

// CloseFlush is Flush, then Close. An operation's error does not keep the
// endpoint open; the end of ctx does.
func (e *Endpoint) CloseFlush(ctx context.Context) error {
	flushed := e.Flush(ctx)
	closed := e.Close()
	if errors.Is(closed, ErrBusy) && flushed != nil {
		return flushed
	}
	return errors.Join(flushed, closed)
}

// mapOptions says how the endpoint's keys are mapped on dev.
func (e *Endpoint) mapOptions(dev cuda.Device, hint cuda.Context) cudaipc.MapOptions {
	if hint == 0 {
		hint = e.w.c.devices.hint(dev)
	}
	return cudaipc.MapOptions{Device: dev, Context: hint, FetchFD: e.fetchFD}
}
