package ucxlite

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite/internal/control"
)

// ContextOptions are what a Context may be told; the zero value works.
type ContextOptions struct {
	Config   *Config           // nil: ConfigFromEnv
	Logger   *slog.Logger      // nil: slog.Default
	Identity *cudaipc.Identity // nil: cudaipc.Self; for tests that are several processes in one
}

// Context is the root: a driver, the cache of what this process has mapped, the
// memory it exports, and the control socket that peers dial.
type Context struct {
	drv     cuda.Driver
	cfg     Config
	log     *slog.Logger
	id      cudaipc.Identity
	token   [16]byte
	cache   *cudaipc.Cache
	devices devices
	reach   reachability
	stats   counters

	listener *control.Listener
	life     context.Context // ends with Close: blocking control work gives up
	endLife  context.CancelFunc
	tasks    sync.WaitGroup // goroutines of the control plane

	mu       sync.Mutex
	closed   bool
	workers  map[*Worker]struct{}
	memories memoryTable
	peers    map[peerName]*peer
	inbound  map[*inbound]struct{}
}

// NewContext starts a context over drv, which stays the caller's. It calls the
// driver only to learn the devices' UUIDs.
func NewContext(drv cuda.Driver, opts ContextOptions) (_ *Context, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("new context: %w", translate(err))
		}
	}()
	if drv == nil {
		return nil, fmt.Errorf("%w: no driver", ErrInvalidParam)
	}
	c := &Context{
		drv: drv, log: opts.Logger,
		workers: map[*Worker]struct{}{}, peers: map[peerName]*peer{}, inbound: map[*inbound]struct{}{},
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if opts.Config != nil {
		c.cfg = *opts.Config
	} else if c.cfg, err = ConfigFromEnv(); err != nil {
		return nil, err
	}
	if err := c.cfg.complete(); err != nil {
		return nil, err
	}
	if opts.Identity != nil {
		c.id = *opts.Identity
	} else if c.id, err = cudaipc.Self(); err != nil {
		return nil, err
	}
	if c.devices.known, err = listDevices(drv); err != nil {
		return nil, err
	}
	if _, err := rand.Read(c.token[:]); err != nil {
		return nil, err
	}
	c.cache, err = cudaipc.NewCache(drv, cudaipc.CacheOptions{Identity: &c.id, MaxRegions: c.cfg.MaxRegions, MaxBytes: c.cfg.MaxBytes})
	if err != nil {
		return nil, err
	}
	if c.listener, err = control.Listen(c.cfg.SocketDir, socketName()); err != nil {
		return nil, errors.Join(err, c.cache.Close())
	}
	c.life, c.endLife = context.WithCancel(context.Background())
	c.tasks.Go(c.acceptLoop)
	return c, nil
}

var socketCount atomic.Uint32

// socketName is short, for sun_path is, and no other context's.
func socketName() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails, says crypto/rand
	return fmt.Sprintf("%s-%d", hex.EncodeToString(b[:]), socketCount.Add(1))
}

// Identity is this process as its keys and addresses name it.
func (c *Context) Identity() cudaipc.Identity { return c.id }

// Driver is the driver the context was made with.
func (c *Context) Driver() cuda.Driver { return c.drv }

// Config is the configuration in force.
func (c *Context) Config() Config { return c.cfg }

// Cache is the cache of mappings of other processes' memory; for its
// statistics, limits and evictions.
func (c *Context) Cache() *cudaipc.Cache { return c.cache }

func (c *Context) String() string { return fmt.Sprintf("context of %s on %s", c.id, c.drv.Name()) }

// Close ends the context. While workers or memory are alive it changes nothing
// and returns ErrBusy naming them. Peers that are connected see a good-bye. A
// mapping that could not be closed is reported.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if workers, memories := len(c.workers), c.memories.live(); workers > 0 || memories > 0 {
		c.mu.Unlock()
		return fmt.Errorf("close %s: %w: %d workers, %d memories", c, ErrBusy, workers, memories)
	}
	c.closed = true
	var ends []interface{ goodbye(reason string) }
	for in := range c.inbound {
		ends = append(ends, in)
	}
	for _, p := range c.peers {
		ends = append(ends, p)
	}
	c.mu.Unlock()

	err := c.listener.Close()
	for _, e := range ends {
		e.goodbye("context closed")
	}
	c.endLife()
	c.tasks.Wait()
	if err = errors.Join(err, c.cache.Close(), c.devices.close(c.drv)); err != nil {
		return fmt.Errorf("close %s: %w", c, translate(err))
	}
	return nil
}

// alive is ErrDestroyed after Close. c.mu is held.
func (c *Context) alive() error {
	if c.closed {
		return fmt.Errorf("%s: %w", c, ErrDestroyed)
	}
	return nil
}
