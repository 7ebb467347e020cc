// Package softgputest opens emulated drivers for tests: each on a node of its
// own that is gone after the test.
package softgputest

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gpurma/gpurma/cuda/softgpu"
)

// tolerated are the drivers whose leftovers no test minds.
var tolerated sync.Map

// New makes a node and opens a driver on it: two devices, copies that take a
// random time, and whatever opts change. At the end of the test the driver is
// closed, and the test fails if it had live objects left (primary contexts may
// be active) or if the node is still there.
func New(tb testing.TB, opts ...func(*softgpu.Config)) *softgpu.Driver {
	tb.Helper()
	node := filepath.Join(softgpu.DefaultParent(), fmt.Sprintf("softgpu-test-%d-%016x", os.Getpid(), rand.Uint64()))
	cfg := config(node)
	cfg.Devices = 2
	for _, o := range opts {
		o(&cfg)
	}
	tb.Cleanup(func() {
		if _, err := os.Lstat(cfg.Node); !errors.Is(err, fs.ErrNotExist) {
			entries, _ := os.ReadDir(cfg.Node)
			tb.Errorf("node %s is left after the test (%v): %v", cfg.Node, err, entries)
			if err := os.RemoveAll(cfg.Node); err != nil {
				tb.Errorf("remove node: %v", err)
			}
		}
	})
	return open(tb, cfg)
}

// Attach opens a driver on an existing node, as one more process there. It is
// checked and closed like that of New.
func Attach(tb testing.TB, node string, opts ...func(*softgpu.Config)) *softgpu.Driver {
	tb.Helper()
	cfg := config(node)
	for _, o := range opts {
		o(&cfg)
	}
	return open(tb, cfg)
}

// Tolerate lets a test end with live objects of d.
func Tolerate(d *softgpu.Driver) { tolerated.Store(d, true) }

func config(node string) softgpu.Config {
	return softgpu.Config{Node: node, CopyDelay: softgpu.Delay{Max: 200 * time.Microsecond}}
}

func open(tb testing.TB, cfg softgpu.Config) *softgpu.Driver {
	tb.Helper()
	d, err := softgpu.Open(cfg)
	if err != nil {
		tb.Fatalf("open softgpu: %v", err)
	}
	tb.Cleanup(func() {
		defer tolerated.Delete(d)
		if _, ok := tolerated.Load(d); !ok && !tb.Failed() {
			check(tb, d.Counters())
		}
		if err := d.Close(); err != nil {
			tb.Errorf("close softgpu: %v", err)
		}
	})
	return d
}

// check reports what the driver still has.
func check(tb testing.TB, c softgpu.Counters) {
	tb.Helper()
	for _, left := range []struct {
		what string
		n    int
	}{
		{"open legacy mappings", c.LiveMappings},
		{"allocations", c.Allocations},
		{"VMM mappings", c.VirtualMappings},
		{"memory handles", c.MemHandles},
		{"address ranges", c.AddressRanges},
		{"user contexts", c.UserContexts},
		{"streams", c.Streams},
		{"events", c.Events},
	} {
		if left.n != 0 {
			tb.Errorf("softgpu: %d %s left at the end of the test", left.n, left.what)
		}
	}
	for _, v := range c.Violations {
		tb.Errorf("softgpu: violation: %s", v)
	}
}
