package ucxlite

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config holds the settings that come from the environment. Where 0 makes no
// sense it means the default.
type Config struct {
	// Policy is the policy of endpoints that choose none.
	Policy Policy
	// SocketDir is the directory of the control socket; "" chooses
	// gpurma-UID under $XDG_RUNTIME_DIR, $TMPDIR or /tmp.
	SocketDir string
	// WireupTimeout is how long an endpoint waits for its peer's answer.
	WireupTimeout time.Duration
	// WireupDelay delays this process's answer to a hello; for tests that must
	// see ErrNotConnected.
	WireupDelay time.Duration
	// RequireIPC refuses the staged lane: memory that cannot be mapped is then
	// an error.
	RequireIPC bool
	// StagedSlots and StagedSlotSize shape the shared memory of the staged
	// lane, per connection and direction.
	StagedSlots    int
	StagedSlotSize int
	// MaxRegions and MaxBytes limit the mapping cache; 0 is no limit.
	MaxRegions int
	MaxBytes   uint64
}

// DefaultConfig is what an empty environment gives.
func DefaultConfig() Config {
	return Config{
		WireupTimeout:  30 * time.Second,
		StagedSlots:    8,
		StagedSlotSize: 512 << 10,
	}
}

// variable is one UCXLITE_* setting: how it is read, printed and explained.
type variable struct {
	name string
	doc  string
	get  func(*Config) string
	set  func(*Config, string) error
}

var variables = []variable{
	{"UCXLITE_POLICY", "free | retain: what becomes of a mapping nobody uses",
		func(c *Config) string { return policyName(c.Policy) },
		func(c *Config, s string) (err error) { c.Policy, err = parsePolicy(s); return }},
	{"UCXLITE_SOCKET_DIR", "directory of the control socket",
		func(c *Config) string { return c.SocketDir },
		func(c *Config, s string) error { c.SocketDir = s; return nil }},
	durationVariable("UCXLITE_WIREUP_TIMEOUT", "how long an endpoint waits for its peer", func(c *Config) *time.Duration { return &c.WireupTimeout }),
	durationVariable("UCXLITE_WIREUP_DELAY", "delay of this process's wire-up answers (tests)", func(c *Config) *time.Duration { return &c.WireupDelay }),
	{"UCXLITE_REQUIRE_IPC", "y | n: refuse the staged lane",
		func(c *Config) string { return yesNo(c.RequireIPC) },
		func(c *Config, s string) (err error) { c.RequireIPC, err = parseYesNo(s); return }},
	intVariable("UCXLITE_STAGED_SLOTS", "slots of the staged lane, 1 to 64", 1, 64, func(c *Config) *int { return &c.StagedSlots }),
	intVariable("UCXLITE_STAGED_SLOT_SIZE", "bytes of a staged slot, 4096 to 67108864", 4096, 64<<20, func(c *Config) *int { return &c.StagedSlotSize }),
	intVariable("UCXLITE_MAX_REGIONS", "mappings kept open; 0: no limit", 0, 1<<30, func(c *Config) *int { return &c.MaxRegions }),
	{"UCXLITE_MAX_BYTES", "bytes of mappings kept open; 0: no limit",
		func(c *Config) string { return strconv.FormatUint(c.MaxBytes, 10) },
		func(c *Config, s string) (err error) { c.MaxBytes, err = strconv.ParseUint(s, 10, 64); return }},
}

func durationVariable(name, doc string, field func(*Config) *time.Duration) variable {
	return variable{name, doc + ", e.g. 50ms",
		func(c *Config) string { return field(c).String() },
		func(c *Config, s string) error {
			d, err := time.ParseDuration(s)
			if err == nil && d < 0 {
				err = fmt.Errorf("negative duration %s", d)
			}
			if err == nil {
				*field(c) = d
			}
			return err
		}}
}

func intVariable(name, doc string, low, high int, field func(*Config) *int) variable {
	return variable{name, doc,
		func(c *Config) string { return strconv.Itoa(*field(c)) },
		func(c *Config, s string) error {
			n, err := strconv.Atoi(s)
			if err == nil && (n < low || n > high) {
				err = fmt.Errorf("%d is not between %d and %d", n, low, high)
			}
			if err == nil {
				*field(c) = n
			}
			return err
		}}
}

// ConfigFromEnv reads the UCXLITE_* variables of the environment. A bad value
// is ErrInvalidParam; an unknown variable is warned about, with the nearest
// name, and ignored.
func ConfigFromEnv() (Config, error) { return configFrom(os.Environ(), slog.Default()) }

func configFrom(environ []string, log *slog.Logger) (Config, error) {
	c := DefaultConfig()
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "UCXLITE_") {
			continue
		}
		i := slices.IndexFunc(variables, func(v variable) bool { return v.name == name })
		if i < 0 {
			log.Warn("unknown environment variable ignored", "name", name, "nearest", nearestVariable(name))
			continue
		}
		if err := variables[i].set(&c, value); err != nil {
			return Config{}, fmt.Errorf("%w: %s=%q (%s): %w", ErrInvalidParam, name, value, variables[i].doc, err)
		}
	}
	return c, nil
}

// String prints every variable with its value and meaning, one a line.
func (c Config) String() string {
	var b strings.Builder
	for _, v := range variables {
		fmt.Fprintf(&b, "%s=%s # %s\n", v.name, v.get(&c), v.doc)
	}
	return b.String()
}

// complete fills in defaults and checks.
func (c *Config) complete() error {
	d := DefaultConfig()
	if c.WireupTimeout == 0 {
		c.WireupTimeout = d.WireupTimeout
	}
	if c.StagedSlots == 0 {
		c.StagedSlots = d.StagedSlots
	}
	if c.StagedSlotSize == 0 {
		c.StagedSlotSize = d.StagedSlotSize
	}
	for _, v := range variables {
		if err := v.set(&Config{}, v.get(c)); err != nil {
			return fmt.Errorf("%w: config: %s: %w", ErrInvalidParam, v.name, err)
		}
	}
	return nil
}

func policyName(p Policy) string {
	if p == Retain {
		return "retain"
	}
	return "free"
}

func parsePolicy(s string) (Policy, error) {
	switch s {
	case "free":
		return FreeUnused, nil
	case "retain":
		return Retain, nil
	}
	return FreeUnused, fmt.Errorf("want free or retain")
}

func yesNo(b bool) string {
	if b {
		return "y"
	}
	return "n"
}

func parseYesNo(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "y", "yes", "1", "on", "true":
		return true, nil
	case "n", "no", "0", "off", "false":
		return false, nil
	}
	return false, fmt.Errorf("want y or n")
}

// nearestVariable is the known name with the smallest edit distance.
func nearestVariable(name string) string {
	best, bestDistance := "", len(name)+64
	for _, v := range variables {
		if d := editDistance(name, v.name); d < bestDistance {
			best, bestDistance = v.name, d
		}
	}
	return best
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
