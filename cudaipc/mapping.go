package cudaipc

import (
	"sync/atomic"

	"github.com/gpurma/gpurma/cuda"
)

// Policy says what the last release of a mapping does.
type Policy uint8

const (
	// FreeUnused closes the mapping before the release returns, also one that a
	// Retain user left idle: the exporter gets its memory back.
	FreeUnused Policy = iota
	// Retain leaves the mapping idle, for the next user to find, until a limit,
	// an eviction or a FreeUnused user closes it.
	Retain
)

func (p Policy) String() string {
	if p == Retain {
		return "retain"
	}
	return "free"
}

// Mapping is a pin of a mapped allocation. The zero value holds nothing; it is
// filled by [Cache.MapInto] or [Claim.PinInto] and may be filled again after
// its Release. It must not be copied.
type Mapping struct {
	entry atomic.Pointer[entry]
}

// Held tells whether the mapping holds a pin.
func (m *Mapping) Held() bool { return m.entry.Load() != nil }

// Ptr is the address here of the key's Base; 0 after Release.
func (m *Mapping) Ptr() cuda.DevicePtr {
	if e := m.entry.Load(); e != nil {
		return e.ptr
	}
	return 0
}

// Context is the context that the memory is mapped in, for memory of this
// process the one it was allocated in; 0 after Release.
func (m *Mapping) Context() cuda.Context {
	if e := m.entry.Load(); e != nil {
		return e.ctx
	}
	return 0
}

// Device is the local device that the memory is mapped on.
func (m *Mapping) Device() cuda.Device {
	if e := m.entry.Load(); e != nil {
		return e.device
	}
	return 0
}

// Kind says how the memory was shared; KindNone for this process's own, and
// after Release.
func (m *Mapping) Kind() Kind {
	if e := m.entry.Load(); e != nil && !e.local {
		return e.mapping.kind()
	}
	return KindNone
}

// Size is the length of the allocation in bytes; 0 after Release.
func (m *Mapping) Size() uint64 {
	if e := m.entry.Load(); e != nil {
		return e.key.Length
	}
	return 0
}

// Release drops the pin. If that was the last use, policy decides what becomes
// of the mapping; the error is the driver's, of closing it. Release is
// idempotent and safe on a mapping that holds nothing, from any goroutine.
func (m *Mapping) Release(policy Policy) error {
	if e := m.entry.Swap(nil); e != nil {
		return e.cache.unpin(e, policy)
	}
	return nil
}

// ClaimInto makes cl a claim of the mapping's entry; without effect after
// Release. What cl claimed before is dropped, and closed if that was its last
// use.
func (m *Mapping) ClaimInto(cl *Claim) {
	e := m.entry.Load()
	if e == nil || cl.entry.Load() == e {
		return
	}
	// The pin keeps the entry open meanwhile.
	e.state.Add(uint64(oneClaim))
	if old := cl.entry.Swap(e); old != nil {
		// A failed close stays in the cache's Stats as a zombie.
		_ = old.cache.unclaim(old, FreeUnused)
	}
}

// Claim is the weaker hold, of a live key that has mapped: it makes the next
// use fast and the last release known, and does not keep the mapping open when
// the cache must close it. The zero value holds nothing. It must not be copied.
type Claim struct {
	entry atomic.Pointer[entry]
}

// Held tells whether the claim is of an entry; that entry may be closed by now.
func (cl *Claim) Held() bool { return cl.entry.Load() != nil }

// PinInto pins the claimed entry into m, which must hold nothing. It is false
// where the entry was closed under the claim, or nothing is claimed: map again.
// It takes no lock and calls no driver.
func (cl *Claim) PinInto(m *Mapping) bool {
	e := cl.entry.Load()
	if e == nil || m.entry.Load() != nil || forked() || !e.pin() {
		return false
	}
	e.hits.Add(1)
	m.entry.Store(e)
	return true
}

// Release drops the claim, as [Mapping.Release] does a pin. It is idempotent.
func (cl *Claim) Release(policy Policy) error {
	if e := cl.entry.Swap(nil); e != nil {
		return e.cache.unclaim(e, policy)
	}
	return nil
}
