package drivertest

import (
	"testing"

	"github.com/gpurma/gpurma/cuda"
)

// Opener opens the driver under test for one test of the suite, and registers
// its closing with tb.Cleanup. It returns the variables, as "NAME=value", that
// make a peer's open function reach the same devices.
type Opener func(tb testing.TB) (drv cuda.Driver, peerEnv []string)

// Options say how large the suite works. Sizes are bytes, multiples of 2 MiB;
// a zero field takes its default.
type Options struct {
	// Size is the payload whose coming and going is seen in MemGetInfo; only
	// its first and last 2 MiB are written. Default 1 GiB.
	Size uint64
	// CopySize and Copies describe the load that keeps a device busy while the
	// host looks: Copies copies of CopySize. A test that finds the load done
	// too early doubles it. Defaults: Size, and 80.
	CopySize uint64
	Copies   int
	// Slack is how far free memory may be off: what a driver takes for itself
	// now and then, and less than the 2 MiB that memory comes and goes in.
	// Default 0.
	Slack uint64
}

func (o Options) withDefaults() Options {
	if o.Size == 0 {
		o.Size = 1 << 30
	}
	if o.CopySize == 0 {
		o.CopySize = o.Size
	}
	if o.Copies == 0 {
		o.Copies = 80
	}
	return o
}

// Run runs the whole suite, each test as a subtest on a driver of its own.
func Run(t *testing.T, open Opener, opts Options) {
	opts = opts.withDefaults()
	for _, tt := range suite() {
		t.Run(tt.name, func(t *testing.T) { tt.run(newFixture(t, open, opts)) })
	}
}

type conformanceTest struct {
	name string
	run  func(*fixture)
}

func suite() []conformanceTest {
	return []conformanceTest{
		{"PlainPlatform", testPlatform},
		{"PlainDevices", testDevices},
		{"PlainPrimaryContext", testPrimaryContext},
		{"PlainUserContext", testUserContext},
		{"PlainContextArgument", testContextArgument},
		{"PlainCurrentContextStack", testCurrentContextStack},
		{"PlainCurrentContextUntouched", testCurrentContextUntouched},
		{"PlainMemory", testMemory},
		{"PlainMemoryRefused", testMemoryRefused},
		{"PlainOutOfMemory", testOutOfMemory},
		{"PlainFreeWaits", testFreeWaits},
		{"PlainCopies", testCopies},
		{"PlainCopiesRefused", testCopiesRefused},
		{"PlainSyncMemops", testSyncMemops},
		{"PlainPointerAttributes", testPointerAttributes},
		{"PlainIPCRefused", testIPCRefused},
		{"PlainIPCOtherDevice", testIPCOtherDevice},
		{"PlainStreams", testStreams},
		{"PlainEvents", testEvents},
		{"PlainStreamOrder", testStreamOrder},
		{"PlainManaged", testManaged},
		{"PlainVMM", testVMM},
		{"PlainVMMRefused", testVMMRefused},
		{"PlainPools", testPools},
		{"PlainPoolsRefused", testPoolsRefused},
		{"PlainPoolsShared", testPoolsShared},
		{"PlainConcurrentCalls", testConcurrentCalls},

		{"F1FreeWhileImported", testF1},
		{"F2AddressReused", testF2},
		{"F3NewHandleBesideStale", testF3},
		{"F4CloseReturnsBytes", testF4},
		{"F5OpenCounts", testF5},
		{"F6TwoInOneBlock", testF6},
		{"F7InteriorHandle", testF7},
		{"F8OwnHandle", testF8},
		{"F9HandleOfFreed", testF9},
		{"F10NotLegacyShareable", testF10},
		{"F11PosixFDOutlivesOwner", testF11},
		{"F12Granularity", testF12},
		{"F13ExportedPoolKeepsMemory", testF13},
		{"F14ImporterDies", testF14},
		{"F15FabricWithoutChannel", testF15},
		{"F16ContextCost", testF16},
		{"F18BufferID", testF18},
		{"F19ImportedPointer", testF19},
		{"F20SecondContext", testF20},
		{"F21CloseWaits", testF21},
		{"F22CopyThroughClosed", testF22},
		{"F23FreeDoesNotWaitForImporter", testF23},
		{"F24ImportTwice", testF24},
		{"F25OwnerKilled", testF25},

		{"ObserveMemsetUnfinished", observeMemsetUnfinished},
		{"ObserveUnmapInFlight", observeUnmapInFlight},
		{"ObservePoolFreeInFlight", observePoolFreeInFlight},
		{"ObserveNoAccess", observeNoAccess},
		{"ObserveOpenFreedButHeld", observeOpenFreedButHeld},
		{"ObserveSecondContextAfterClose", observeSecondContextAfterClose},
	}
}
