// Package cudaipc shares device memory between processes: it turns an
// allocation into a packed key, and a packed key of another process into a
// mapping here.
//
// # Objects and their lives
//
// [Register] looks an allocation up, exports it, and returns a [Registration]
// that owns what must stay open while keys of it are about. Its [Key] is plain
// data: it may be copied, packed, sent and outlive everything else; using it
// then is an error, never harm.
//
// A [Cache] holds one entry per (allocation, local device). An entry is opened
// once, whoever needs it at the same time shares that one driver call, and it
// lives through opening, open, closing and closed. Two things hold an entry:
//
//   - A pin, in a [Mapping]: an operation in flight, a pointer that was handed
//     out, an element of a memory list. An entry with a pin is never closed.
//   - A claim, in a [Claim]: a live key that has mapped. An entry with claims
//     only may be closed by a limit, an eviction, or because the exporter's
//     address now belongs to another allocation. The next use maps again.
//
// The last release, of pin or claim, decides by its [Policy]: FreeUnused closes
// the mapping before it returns, Retain leaves it idle.
//
// A hit needs the allocation's identity (exporter, buffer id, device, base,
// length, handle), not its address. When an open shows that an address of the
// exporter belongs to another allocation than an entry says, that entry is
// unlinked at once and closed when its last pin lets go.
//
// # Locks
//
// There is one, Cache.mu. It guards the bookkeeping of opens and closes and is
// never held across a driver call, nor taken by a hit: a hit finds its entry in
// a table that is read without a lock, and pins it by one compare-and-swap of
// the entry's state word. Driver calls that may block run in at most 64
// threads of the process.
package cudaipc
