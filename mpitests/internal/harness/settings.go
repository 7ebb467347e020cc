package harness

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"
)

// Settings are the flags that all programs have.
type Settings struct {
	Run     string        `placeholder:"REGEX" help:"Run only the cases whose name matches."`
	List    bool          `help:"List the cases and do nothing; needs neither mpirun nor a GPU."`
	Driver  string        `enum:"auto,softgpu,libcuda" default:"auto" help:"Driver: ${enum}. auto takes the GPU where there is one."`
	Policy  string        `enum:"free,leak" default:"free" help:"What becomes of mappings that nobody uses: ${enum}. leak keeps them and tells no one, so that the checks must fail."`
	Device  int           `default:"-1" placeholder:"N" help:"Device of all ranks; without it, rank modulo number of devices."`
	Timeout time.Duration `default:"60s" help:"Time for each case."`
	JSON    string        `name:"json" placeholder:"FILE" help:"Write one JSON object a case."`
	Seed    uint64        `placeholder:"N" help:"Seed of all random choices; without it, a new one, which is printed."`
	Verbose bool          `short:"v" help:"Print what each rank notes also for cases that passed, as it happens."`

	After    string `hidden:"" placeholder:"CASE" help:"Run only the cases behind this one; for a runner that goes on after a crash."`
	Progress string `hidden:"" placeholder:"FILE" help:"Append a line as each case starts and ends; for the same."`
}

// Leak tells whether the policy is the one that must make the checks fail.
func (s *Settings) Leak() bool { return s.Policy == "leak" }

// Size is a number of bytes on the command line: 1GiB, 64MB, 4096.
type Size uint64

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(text []byte) error {
	n, err := humanize.ParseBytes(string(text))
	*s = Size(n)
	return err
}

func (s Size) String() string { return humanize.IBytes(uint64(s)) }

// parse reads the command line. help is the text that was asked for.
func parse(p Program, args []string) (settings *Settings, help string, err error) {
	var grammar struct {
		Settings `embed:""`
		kong.Plugins
	}
	if p.Flags != nil {
		grammar.Plugins = kong.Plugins{p.Flags}
	}
	var out bytes.Buffer
	helped := errors.New("help was printed")
	parser, err := kong.New(&grammar, kong.Name(p.Name), kong.Description(p.About),
		kong.Writers(&out, &out), kong.Exit(func(int) { panic(helped) }))
	if err != nil {
		return nil, "", err
	}
	defer func() {
		switch r := recover(); r {
		case nil:
		case helped:
			settings, help, err = nil, out.String(), nil
		default:
			panic(r)
		}
	}()
	if _, err := parser.Parse(args); err != nil {
		return nil, "", err
	}
	s := &grammar.Settings
	if s.Device < -1 {
		return nil, "", fmt.Errorf("--device %d: want a device's number, from 0", s.Device)
	}
	if s.Timeout <= 0 {
		return nil, "", fmt.Errorf("--timeout %s: must be positive", s.Timeout)
	}
	if s.Seed == 0 {
		s.Seed = rand.Uint64N(1<<53) + 1 // short enough to be typed, and exact in JSON
	}
	return s, "", nil
}
