package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
)

// reading is what both ranks of a pair saw at one moment. Its parts come from
// different sources, which must agree.
type reading struct {
	Free   uint64 // bytes: cuMemGetInfo at the owner
	Bytes  uint64 // that the files of the emulated devices take; 0 on a GPU
	Live   int    // mappings open in the importer's cache
	Opens  uint64 // by the importer's cache so far
	Closes uint64
	Mapped int // mappings open in the importer's emulated driver; -1 on a GPU
}

// sample takes a reading. Both ranks call it; nothing else goes on meanwhile.
func (s *session) sample(r *harness.Rank, owner int) (reading, error) {
	var mine, all reading
	if err := r.Barrier(); err != nil {
		return all, err
	}
	var err error
	if r.Index() == owner {
		err = s.sampleOwner(r, &mine)
	} else {
		s.sampleImporter(r, &mine)
	}
	if err != nil {
		return all, fmt.Errorf("take a reading: %w", err)
	}
	message, err := json.Marshal(mine)
	if err != nil {
		return all, err
	}
	answer, err := r.Exchange(message)
	if err != nil {
		return all, err
	}
	var theirs reading
	if err := json.Unmarshal(answer, &theirs); err != nil {
		return all, err
	}
	if r.Index() != owner {
		mine, theirs = theirs, mine
	}
	all = theirs
	all.Free, all.Bytes = mine.Free, mine.Bytes
	return all, nil
}

func (s *session) sampleOwner(r *harness.Rank, to *reading) (err error) {
	if err := r.Driver.CtxSynchronize(r.Primary); err != nil {
		return err
	}
	if to.Free, _, err = r.Driver.MemGetInfo(r.Primary); err != nil {
		return err
	}
	to.Bytes, err = nodeBytes(r.Driver)
	return err
}

func (s *session) sampleImporter(r *harness.Rank, to *reading) {
	stats := s.lib.Cache().Stats()
	to.Live, to.Opens, to.Closes, to.Mapped = stats.Live, stats.Opens, stats.Closes, -1
	if soft, ok := r.Driver.(*softgpu.Driver); ok {
		to.Mapped = soft.Counters().LiveMappings
	}
}

// nodeBytes is how much memory the device files of an emulated node take from
// the machine.
func nodeBytes(drv cuda.Driver) (uint64, error) {
	soft, ok := drv.(*softgpu.Driver)
	if !ok {
		return 0, nil
	}
	n, err := soft.DeviceGetCount()
	if err != nil {
		return 0, err
	}
	devices := map[uint64]bool{}
	for dev := range cuda.Device(n) {
		inode, err := soft.DeviceFileInode(dev)
		if err != nil {
			return 0, err
		}
		devices[inode] = true
	}
	entries, err := os.ReadDir(soft.NodePath())
	if err != nil {
		return 0, err
	}
	var bytes uint64
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(soft.NodePath(), e.Name()))
		if err != nil {
			continue // another process's table, gone meanwhile
		}
		const statBlock = 512
		if st, ok := info.Sys().(*syscall.Stat_t); ok && devices[st.Ino] {
			bytes += uint64(st.Blocks) * statBlock
		}
	}
	return bytes, nil
}

// missing is how many bytes are free at a and not at b.
func missing(a, b reading) int64 { return int64(a.Free) - int64(b.Free) }

// released tells whether after a round everything is as before it, by all
// witnesses.
func released(r *harness.Rank, before, after reading) error {
	unreleased, live := missing(before, after), after.Live-before.Live
	soft := r.Driver.Name() == "softgpu"
	within := unreleased == 0 || !soft && live == 0 && unreleased >= -tolerance && unreleased <= tolerance
	switch {
	case within && live == 0:
	case unreleased < 0:
		return harness.Inconclusivef("%d bytes more are free than before: somebody else uses the device", -unreleased)
	case within:
		return fmt.Errorf("the witnesses disagree: %d bytes unreleased, but %d mappings are still open", unreleased, live)
	case live == 0:
		return fmt.Errorf("%d bytes unreleased, though no mapping is open: the witnesses disagree", unreleased)
	default:
		return fmt.Errorf("%d bytes unreleased, %d mappings still open", unreleased, live)
	}
	if after.Mapped != before.Mapped {
		return fmt.Errorf("the driver has %d mappings open, before the round %d", after.Mapped, before.Mapped)
	}
	if after.Bytes != before.Bytes {
		return fmt.Errorf("the node's files take %d bytes, before the round %d", after.Bytes, before.Bytes)
	}
	return nil
}

// ucxLine is the line of UCX's program.
func ucxLine(unreleased int64, err error) string {
	verdict := "PASS"
	if err != nil {
		verdict = "FAIL"
	}
	return fmt.Sprintf("Unreleased memory: %d bytes: %s", unreleased, verdict)
}
