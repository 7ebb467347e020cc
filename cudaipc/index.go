package cudaipc

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/gpurma/gpurma/cuda"
)

// index finds entries by allocation and device. Readers take no lock; whoever
// changes it holds Cache.mu.
//
// It is an open-addressed table. A removed entry leaves a tombstone, which is
// never used again, so a reader that runs beside a writer sees each chain at
// worst without the newest entry, and asks again under the lock.
type index struct {
	seed  maphash.Seed
	table atomic.Pointer[indexTable]
	live  int
	used  int // live and tombstones
}

type indexTable struct {
	mask  uint64
	slots []indexSlot
}

type indexSlot struct {
	hash  atomic.Uint64 // written before the entry
	entry atomic.Pointer[entry]
}

// tombstone stands for an entry that was removed.
var tombstone = new(entry)

const indexMinimum = 16

func (x *index) init() {
	x.seed = maphash.MakeSeed()
	x.table.Store(newIndexTable(indexMinimum))
}

func newIndexTable(n int) *indexTable {
	return &indexTable{mask: uint64(n - 1), slots: make([]indexSlot, n)}
}

// hash covers what tells allocations apart and has no padding, so that it is
// one run over 48 bytes. The seed keeps a peer from making keys collide.
func (x *index) hash(k *Key, dev cuda.Device) uint64 {
	return maphash.Comparable(x.seed, struct {
		nonce              [16]byte
		buffer, base, size uint64
		dev                uint64
	}{k.Identity.Nonce, k.BufferID, uint64(k.Base), k.Length, uint64(dev)})
}

// find returns the entry for key on dev, in whatever phase, or nil.
func (x *index) find(hash uint64, key *Key, dev cuda.Device) *entry {
	t := x.table.Load()
	for i := hash & t.mask; ; i = (i + 1) & t.mask {
		s := &t.slots[i]
		e := s.entry.Load()
		if e == nil {
			return nil
		}
		if s.hash.Load() == hash && e != tombstone && e.matches(key, dev) {
			return e
		}
	}
}

// insert adds e, which must not be there.
func (x *index) insert(e *entry) {
	if t := x.table.Load(); 4*(x.used+1) > 3*len(t.slots) {
		x.rebuild()
	}
	x.table.Load().put(e)
	x.live++
	x.used++
}

func (t *indexTable) put(e *entry) {
	i := e.hash & t.mask
	for t.slots[i].entry.Load() != nil {
		i = (i + 1) & t.mask
	}
	t.slots[i].hash.Store(e.hash)
	t.slots[i].entry.Store(e)
}

// rebuild drops the tombstones into a table that is at most half full.
func (x *index) rebuild() {
	n := indexMinimum
	for n < 2*(x.live+1) {
		n *= 2
	}
	t := newIndexTable(n)
	x.all(func(e *entry) { t.put(e) })
	x.table.Store(t)
	x.used = x.live
}

// remove takes e out where it is in.
func (x *index) remove(e *entry) {
	t := x.table.Load()
	for i := e.hash & t.mask; ; i = (i + 1) & t.mask {
		switch t.slots[i].entry.Load() {
		case nil:
			return
		case e:
			t.slots[i].entry.Store(tombstone)
			x.live--
			return
		}
	}
}

// all calls f for each entry.
func (x *index) all(f func(e *entry)) {
	for i := range x.table.Load().slots {
		if e := x.table.Load().slots[i].entry.Load(); e != nil && e != tombstone {
			f(e)
		}
	}
}
