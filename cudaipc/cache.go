package cudaipc

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpurma/gpurma/cuda"
)

// CacheOptions configures a cache; the zero value works.
type CacheOptions struct {
	// Identity is this process as its keys name it; nil is [Self]. Keys of this
	// identity are not opened: their memory is here.
	Identity *Identity
	// MaxRegions and MaxBytes limit what is mapped, over all peers. Mappings
	// that are in use are never closed for a limit, so it may be exceeded while
	// they are. 0 is no limit.
	MaxRegions int
	MaxBytes   uint64
}

// Cache holds the mappings of other processes' memory in this process. All
// methods may be called from any goroutine.
type Cache struct {
	drv      cuda.Driver
	identity Identity
	epoch    time.Time
	index    index
	shut     atomic.Bool // Close was called
	over     atomic.Bool // a limit is exceeded: releases must evict

	mu       sync.Mutex
	maxCount int
	maxBytes uint64
	peers    map[Identity]*peer
	apart    map[*entry]struct{} // open or closing, and in no peer's ranges any more
	zombies  []*entry            // the driver's close failed
	retrying int                 // zombies being closed again
	idle     []candidate         // for eviction, oldest last
	contexts map[cuda.Device]*mappingContext
	linked   int    // entries in the peers' ranges
	bytes    uint64 // their bytes
	totals   totals
	retired  uint64 // hits of entries that are gone
}

// NewCache returns an empty cache over drv. It calls no driver.
func NewCache(drv cuda.Driver, opts CacheOptions) (*Cache, error) {
	if drv == nil {
		return nil, fmt.Errorf("new cache: %w", cuda.ErrNoDriver)
	}
	if opts.MaxRegions < 0 {
		return nil, fmt.Errorf("new cache: MaxRegions %d is negative", opts.MaxRegions)
	}
	if forked() {
		return nil, fmt.Errorf("new cache: %w", ErrForked)
	}
	id, err := identityOr(opts.Identity)
	if err != nil {
		return nil, fmt.Errorf("new cache: %w", err)
	}
	c := &Cache{
		drv: drv, identity: id, epoch: time.Now(),
		maxCount: opts.MaxRegions, maxBytes: opts.MaxBytes,
		peers: map[Identity]*peer{}, apart: map[*entry]struct{}{}, contexts: map[cuda.Device]*mappingContext{},
	}
	c.index.init()
	return c, nil
}

func identityOr(id *Identity) (Identity, error) {
	if id != nil {
		return *id, nil
	}
	return Self()
}

// Identity is the identity that the cache takes for its own process.
func (c *Cache) Identity() Identity { return c.identity }

// now is the time in the form of entry.stamp.
func (c *Cache) now() int64 { return int64(time.Since(c.epoch)) }

// SetLimits changes the limits, in either direction, and closes what then is
// too much and not in use. 0 is no limit.
func (c *Cache) SetLimits(maxRegions int, maxBytes uint64) error {
	if maxRegions < 0 {
		return fmt.Errorf("set limits: MaxRegions %d is negative", maxRegions)
	}
	c.mu.Lock()
	c.maxCount, c.maxBytes = maxRegions, maxBytes
	victims := c.overLimit()
	c.mu.Unlock()
	return c.closeAll(victims, causeLimit)
}

// Close closes all mappings that are not in use and refuses new ones. Where
// some are in use it returns ErrBusy and leaves them: each closes at its last
// release, whatever the policy, and Close may be called again. It is nil once
// nothing is left.
func (c *Cache) Close() error {
	if c == nil {
		return nil
	}
	if forked() {
		return fmt.Errorf("close cache: %w", ErrForked)
	}
	c.shut.Store(true)
	c.mu.Lock()
	victims, waits, busy := c.reclaim(func(*entry) bool { return true }, false)
	zombies := c.takeZombies(func(*entry) bool { return true })
	c.mu.Unlock()

	err := errors.Join(c.closeAll(victims, causeClose), c.retryZombies(zombies))
	awaitGone(waits)
	if busy > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %d mappings in use", ErrBusy, busy))
	}
	if err == nil {
		err = c.releaseContexts()
	}
	if err != nil {
		return fmt.Errorf("close cache: %w", err)
	}
	return nil
}
