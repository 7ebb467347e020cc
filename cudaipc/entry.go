package cudaipc

import (
	"sync/atomic"

	"github.com/gpurma/gpurma/cuda"
)

// phase is where an entry is in its life; it only grows.
type phase uint64

const (
	opening phase = iota
	open
	closing
	closed
)

func (p phase) String() string { return [...]string{"opening", "open", "closing", "closed"}[p&3] }

// word is an entry's whole state in 64 bits, so that one compare-and-swap both
// tests and changes it: pins in bits 0 to 29, claims in 30 to 59, then the
// phase and the detached bit. 2^30 holders would need 16 GiB of Mappings.
type word uint64

const (
	onePin     word = 1
	oneClaim   word = 1 << 30
	countMask  word = 1<<30 - 1
	phaseShift      = 60
	phaseMask  word = 3 << phaseShift

	// detached: no longer found by any Map, closes with its last pin.
	detached word = 1 << 62
)

func (w word) pins() uint64             { return uint64(w & countMask) }
func (w word) claims() uint64           { return uint64(w / oneClaim & countMask) }
func (w word) phase() phase             { return phase(w & phaseMask >> phaseShift) }
func (w word) detached() bool           { return w&detached != 0 }
func (w word) withPhase(p phase) word   { return w&^phaseMask | word(p)<<phaseShift }
func (w word) usable() bool             { return w&(phaseMask|detached) == word(open)<<phaseShift }
func (w word) lastUse(p Policy) bool    { return w.pins() == 0 && w.claims() == 0 && p == FreeUnused }
func (w word) closesNow(p Policy) bool  { return w.pins() == 0 && (w.detached() || w.lastUse(p)) }
func newWord(p phase, pins uint64) word { return word(p)<<phaseShift | word(pins)*onePin }

// entry is one allocation mapped on one local device, or about to be, or no
// longer. Fields without a remark are fixed when the entry becomes visible.
type entry struct {
	state atomic.Uint64 // a word
	stamp atomic.Int64  // last use, nanoseconds since the cache's epoch; written while the last pin is held
	hits  atomic.Uint64

	cache  *Cache
	local  bool // memory of this very process: nothing to close
	hash   uint64
	key    Key // the allocation; the range is that of whoever came first
	device cuda.Device

	// Written by the opener before the phase leaves opening.
	ctx     cuda.Context
	ptr     cuda.DevicePtr
	mapping imported
	err     error // why the open failed; read after done

	done chan struct{} // closed when opening is over
	gone chan struct{} // closed when the entry is closed
}

func (e *entry) word() word               { return word(e.state.Load()) }
func (e *entry) swap(old, next word) bool { return e.state.CompareAndSwap(uint64(old), uint64(next)) }

// pin takes a pin where the entry can be used as it is. The hit path.
func (e *entry) pin() bool {
	for {
		w := e.word()
		if !w.usable() {
			return false
		}
		if e.swap(w, w+onePin) {
			return true
		}
	}
}

// join takes a pin of an entry that is open or will be. Otherwise it reports
// the phase, or closing for a detached entry.
func (e *entry) join() (p phase, joined bool) {
	for {
		w := e.word()
		if w.detached() {
			return closing, false
		}
		if p := w.phase(); p > open {
			return p, false
		}
		if e.swap(w, w+onePin) {
			return w.phase(), true
		}
	}
}

// beginClose moves an open entry without pins to closing. The caller that gets
// true must close it. With spareClaims an entry with claims is left alone too.
func (e *entry) beginClose(spareClaims bool) bool {
	for {
		w := e.word()
		if w.phase() != open || w.pins() > 0 || spareClaims && w.claims() > 0 {
			return false
		}
		if e.swap(w, w.withPhase(closing)) {
			return true
		}
	}
}

// enter moves the entry to a later phase whatever its counts do meanwhile.
func (e *entry) enter(p phase) {
	for {
		w := e.word()
		if e.swap(w, w.withPhase(p)) {
			return
		}
	}
}

// matches tells whether the entry is what a Map of key on dev looks for.
func (e *entry) matches(key *Key, dev cuda.Device) bool {
	return e.device == dev && e.key.sameAllocation(key)
}

// end is the exporter's address after the allocation.
func (e *entry) end() cuda.DevicePtr { return e.key.Base.Add(e.key.Length) }
