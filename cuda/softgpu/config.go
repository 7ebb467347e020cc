package softgpu

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// BlockSize is the unit of physical memory, the page of the address space and
// the granularity of the VMM calls.
const BlockSize = 2 << 20

// What a new node gets where the [Config] says nothing.
const (
	DefaultDevices     = 1
	DefaultMemory      = 32 << 30
	DefaultContextCost = 524 << 20
)

const maxDevices = 16

// OpenMode says how often a handle may be open in a process; drivers differ.
type OpenMode int

const (
	// OpenCounting: each further open of a handle returns the same pointer, and
	// the last close ends the mapping.
	OpenCounting OpenMode = iota
	// OpenSingle: a further open of what is open, and of what overlaps a
	// mapping of the same process that is still open, is ErrorAlreadyMapped.
	OpenSingle
)

// Delay is how long an operation of a stream takes beyond its copying: a random
// time between Min and Max.
type Delay struct{ Min, Max time.Duration }

// Config says which node a process joins and how its driver behaves. The zero
// Config works: the user's default node, with what it already has.
type Config struct {
	// Node is the node's directory; empty for the user's default node. The
	// first process creates it.
	Node string
	// Devices, Memory (bytes a device, rounded up to blocks) and ContextCost
	// (bytes that a process's first context takes on its device) make a new
	// node; of an existing one a value that is not zero must match. No cost at
	// all is NoContextCost.
	Devices       int
	Memory        uint64
	ContextCost   uint64
	NoContextCost bool
	// Visible lists the node's devices that this process sees, in the order of
	// its ordinals; nil for all.
	Visible []int
	// CopyDelay slows copies and memsets down.
	CopyDelay Delay
	// OpenMode is how legacy handles open.
	OpenMode OpenMode
	// NoLegacyIPC makes a driver that has no legacy IPC.
	NoLegacyIPC bool
	// Strict records what a GPU lets pass and a careful program avoids; see
	// Counters.Violations.
	Strict bool
}

func (c Config) withDefaults() (Config, error) {
	if c.Node == "" {
		c.Node = DefaultNode()
	}
	path, err := filepath.Abs(c.Node)
	if err != nil {
		return c, fmt.Errorf("softgpu: node directory: %w", err)
	}
	c.Node = path
	switch {
	case c.Devices < 0 || c.Devices > maxDevices:
		return c, fmt.Errorf("softgpu: %d devices: a node has 1 to %d", c.Devices, maxDevices)
	case c.Memory > maxMemory:
		return c, fmt.Errorf("softgpu: %d bytes of memory: a device has at most %d", c.Memory, uint64(maxMemory))
	case c.ContextCost > maxMemory:
		return c, fmt.Errorf("softgpu: a context cost of %d bytes: at most %d", c.ContextCost, uint64(maxMemory))
	case c.ContextCost != 0 && c.NoContextCost:
		return c, fmt.Errorf("softgpu: a context cost of %d bytes and none at all", c.ContextCost)
	case c.CopyDelay.Min < 0 || c.CopyDelay.Max < 0:
		return c, fmt.Errorf("softgpu: negative copy delay %v to %v", c.CopyDelay.Min, c.CopyDelay.Max)
	case c.OpenMode != OpenCounting && c.OpenMode != OpenSingle:
		return c, fmt.Errorf("softgpu: unknown open mode %d", c.OpenMode)
	}
	c.CopyDelay.Max = max(c.CopyDelay.Max, c.CopyDelay.Min)
	return c, nil
}

// DefaultNode is the directory of the user's default node.
func DefaultNode() string {
	return filepath.Join(DefaultParent(), fmt.Sprintf("softgpu-%d", os.Geteuid()))
}

// DefaultParent is where nodes are made: /dev/shm where there is one, else the
// directory for temporary files.
func DefaultParent() string {
	const shm = "/dev/shm"
	if st, err := os.Stat(shm); err == nil && st.IsDir() {
		return shm
	}
	return os.TempDir()
}
