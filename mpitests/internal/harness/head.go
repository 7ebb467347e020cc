package harness

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/mpi"
)

// commit may be set by the linker, where a build has no version control to look
// at: -X github.com/gpurma/gpurma/mpitests/internal/harness.commit=HASH.
var commit string

// Commit is the revision that the program was built from.
func Commit() string {
	if commit != "" {
		return commit
	}
	revision, dirty := "unknown", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = s.Value[:min(12, len(s.Value))]
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "+changes"
			}
		}
	}
	return revision + dirty
}

// description is what a rank says of itself at the head of the output.
type description struct {
	Rank    int
	Host    string
	Boot    string // tells hosts apart that have one name
	PID     int
	MPI     string
	MPIPath string
	Commit  string
	Policy  string
	Driver  string
	Version string
	Device  int
	Devices []deviceDescription
	Error   string // why it cannot run
	NoGPU   bool   // that is for want of a GPU
}

type deviceDescription struct {
	UUID  string
	Name  string
	Inode uint64 // of the file that is the emulated device's memory; 0 for a real one
}

func (j *job) describe() *description {
	d := &description{
		Rank: j.world.Rank(), PID: os.Getpid(), MPI: mpi.LibraryVersion(), MPIPath: mpi.LibraryPath(),
		Commit: Commit(), Policy: j.settings.Policy,
	}
	d.Host, _ = os.Hostname() // empty where unknown
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		d.Boot = strings.TrimSpace(string(boot))
	}
	return d
}

func (d *description) describeDriver(drv cuda.Driver, dev cuda.Device) {
	d.Driver, d.Version, d.Device = drv.Name(), drv.Version(), int(dev)
	n, err := drv.DeviceGetCount()
	for i := range cuda.Device(n) {
		var one deviceDescription
		uuid, err2 := drv.DeviceGetUuid(i)
		name, err3 := drv.DeviceGetName(i)
		if err == nil {
			err = err2
		}
		if err == nil {
			err = err3
		}
		one.UUID, one.Name = uuid.String(), name
		if files, ok := drv.(interface {
			DeviceFileInode(cuda.Device) (uint64, error)
		}); ok {
			inode, err2 := files.DeviceFileInode(i)
			if err == nil {
				err = err2
			}
			one.Inode = inode
		}
		d.Devices = append(d.Devices, one)
	}
	if err != nil {
		d.Error = err.Error()
	}
}

func (d *description) lines() []string {
	lines := []string{fmt.Sprintf("rank %d: host %s, pid %d, %s, %s, commit %s", d.Rank, d.Host, d.PID, d.MPI, d.MPIPath, d.Commit)}
	if d.Error != "" {
		return append(lines, fmt.Sprintf("rank %d: cannot run: %s", d.Rank, d.Error))
	}
	lines = append(lines, fmt.Sprintf("rank %d: driver %s, %s, policy %s, on device %d", d.Rank, d.Driver, d.Version, d.Policy, d.Device))
	for i, dev := range d.Devices {
		line := fmt.Sprintf("rank %d: sees device %d, %s, %s", d.Rank, i, dev.UUID, dev.Name)
		if dev.Inode != 0 {
			line += fmt.Sprintf(", node file inode %d", dev.Inode)
		}
		lines = append(lines, line)
	}
	return lines
}

// complaints are the reasons why the job cannot run as it was started.
func complaints(all []description) []string {
	var reasons []string
	for i, d := range all {
		if d.Error != "" {
			if i == 0 || d.Error != all[i-1].Error {
				reasons = append(reasons, fmt.Sprintf("rank %d: %s", d.Rank, d.Error))
			}
			continue
		}
		first := all[i&^1]
		switch {
		case first.Error != "":
		case d.Boot != first.Boot:
			reasons = append(reasons, fmt.Sprintf("ranks %d and %d are a pair on two hosts, %s and %s: GPU memory is shared within one",
				first.Rank, d.Rank, first.Host, d.Host))
		case d.Driver != first.Driver:
			reasons = append(reasons, fmt.Sprintf("rank %d runs on driver %s, rank %d on %s", first.Rank, first.Driver, d.Rank, d.Driver))
		}
	}
	return reasons
}
