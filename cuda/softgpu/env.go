package softgpu

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// The variables that ConfigFromEnv reads.
const (
	EnvNode      = "SOFTGPU_NODE"            // a directory
	EnvDevices   = "SOFTGPU_DEVICES"         // a number
	EnvMemory    = "SOFTGPU_MEMORY"          // bytes a device: "32GiB"
	EnvContext   = "SOFTGPU_CONTEXT"         // bytes a context costs; 0 for none
	EnvVisible   = "SOFTGPU_VISIBLE_DEVICES" // devices of the node: "1,0"
	EnvDelay     = "SOFTGPU_DELAY"           // "2ms", or a range, "0s-2ms"
	EnvOpenMode  = "SOFTGPU_OPEN_MODE"       // "counting" or "single"
	EnvLegacyIPC = "SOFTGPU_LEGACY_IPC"      // "on" or "off"
	EnvStrict    = "SOFTGPU_STRICT"          // "on" or "off"
)

var envReaders = map[string]func(*Config, string) error{
	EnvNode: func(c *Config, s string) error {
		c.Node = s
		return nil
	},
	EnvDevices: func(c *Config, s string) (err error) {
		c.Devices, err = strconv.Atoi(s)
		if err == nil && (c.Devices < 1 || c.Devices > maxDevices) {
			err = fmt.Errorf("want 1 to %d", maxDevices)
		}
		return err
	},
	EnvMemory: func(c *Config, s string) (err error) {
		c.Memory, err = parseBytes(s)
		if err == nil && c.Memory == 0 {
			err = fmt.Errorf("want more than nothing")
		}
		return err
	},
	EnvContext: func(c *Config, s string) (err error) {
		c.ContextCost, err = parseBytes(s)
		c.NoContextCost = err == nil && c.ContextCost == 0
		return err
	},
	EnvVisible: func(c *Config, s string) error {
		for part := range strings.SplitSeq(s, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(part))
			if err != nil {
				return err
			}
			if n < 0 || n >= maxDevices || slices.Contains(c.Visible, n) {
				return fmt.Errorf("device %d out of range or named twice", n)
			}
			c.Visible = append(c.Visible, n)
		}
		return nil
	},
	EnvDelay: func(c *Config, s string) (err error) {
		low, high, isRange := strings.Cut(s, "-")
		if !isRange {
			high = low
		}
		if c.CopyDelay.Min, err = time.ParseDuration(low); err != nil {
			return err
		}
		if c.CopyDelay.Max, err = time.ParseDuration(high); err != nil {
			return err
		}
		if c.CopyDelay.Min < 0 || c.CopyDelay.Max < c.CopyDelay.Min {
			return fmt.Errorf("want a time or a growing range of times")
		}
		return nil
	},
	EnvOpenMode: func(c *Config, s string) error {
		switch s {
		case "counting":
			c.OpenMode = OpenCounting
		case "single":
			c.OpenMode = OpenSingle
		default:
			return fmt.Errorf("want counting or single")
		}
		return nil
	},
	EnvLegacyIPC: func(c *Config, s string) error {
		on, err := parseSwitch(s)
		c.NoLegacyIPC = !on
		return err
	},
	EnvStrict: func(c *Config, s string) (err error) {
		c.Strict, err = parseSwitch(s)
		return err
	},
}

// ConfigFromEnv reads the SOFTGPU_ variables. An empty one counts as not set; an
// unknown name or a value that does not parse is an error.
func ConfigFromEnv() (Config, error) {
	var c Config
	for _, assignment := range os.Environ() {
		name, value, _ := strings.Cut(assignment, "=")
		if !strings.HasPrefix(name, "SOFTGPU_") || value == "" {
			continue
		}
		read, ok := envReaders[name]
		if !ok {
			return Config{}, fmt.Errorf("softgpu: unknown variable %s=%s", name, value)
		}
		if err := read(&c, value); err != nil {
			return Config{}, fmt.Errorf("softgpu: variable %s=%s: %w", name, value, err)
		}
	}
	return c, nil
}

// Env returns the variables, as "NAME=value", from which ConfigFromEnv makes c
// again: what a parent gives to a process that is to join the same node.
func (c Config) Env() []string {
	var env []string
	add := func(name, format string, args ...any) {
		env = append(env, name+"="+fmt.Sprintf(format, args...))
	}
	if c.Node != "" {
		add(EnvNode, "%s", c.Node)
	}
	if c.Devices != 0 {
		add(EnvDevices, "%d", c.Devices)
	}
	if c.Memory != 0 {
		add(EnvMemory, "%d", c.Memory)
	}
	if c.ContextCost != 0 || c.NoContextCost {
		add(EnvContext, "%d", c.ContextCost)
	}
	if len(c.Visible) > 0 {
		var parts []string
		for _, v := range c.Visible {
			parts = append(parts, strconv.Itoa(v))
		}
		add(EnvVisible, "%s", strings.Join(parts, ","))
	}
	if c.CopyDelay != (Delay{}) {
		add(EnvDelay, "%v-%v", c.CopyDelay.Min, max(c.CopyDelay.Min, c.CopyDelay.Max))
	}
	if c.OpenMode == OpenSingle {
		add(EnvOpenMode, "single")
	}
	if c.NoLegacyIPC {
		add(EnvLegacyIPC, "off")
	}
	if c.Strict {
		add(EnvStrict, "on")
	}
	return env
}

func parseBytes(s string) (uint64, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil {
		return 0, err
	}
	if n > math.MaxInt64 {
		return 0, fmt.Errorf("too large")
	}
	return n, nil
}

func parseSwitch(s string) (bool, error) {
	switch s {
	case "on":
		return true, nil
	case "off":
		return false, nil
	}
	return false, fmt.Errorf("want on or off")
}
