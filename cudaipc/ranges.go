package cudaipc

import (
	"math/rand/v2"

	"github.com/gpurma/gpurma/cuda"
)

// peer is what the cache keeps of one exporter.
type peer struct {
	ranges ranges
}

// ranges is the exporter's address space as the cache knows it: the open
// entries, ordered by the exporter's addresses. Entries at one place are of one
// allocation, mapped on several devices; different places do not overlap.
//
// It is a treap, since an exporter may have a million allocations and each open
// asks what it overlaps.
type ranges struct {
	root *rangeNode
}

type rangeNode struct {
	base, end   cuda.DevicePtr
	entries     []*entry
	priority    uint64
	left, right *rangeNode
}

func (r *ranges) empty() bool { return r.root == nil }

// overlapping calls f for each entry that has an address in [base, end).
func (r *ranges) overlapping(base, end cuda.DevicePtr, f func(*entry)) {
	r.root.overlapping(base, end, f)
}

func (n *rangeNode) overlapping(base, end cuda.DevicePtr, f func(*entry)) {
	if n == nil {
		return
	}
	if n.base > base { // what lies left ends at n.base at the latest
		n.left.overlapping(base, end, f)
	}
	if n.base < end && base < n.end {
		for _, e := range n.entries {
			f(e)
		}
	}
	if n.end < end {
		n.right.overlapping(base, end, f)
	}
}

// insert adds e, which overlaps at most entries of its own allocation.
func (r *ranges) insert(e *entry) { r.root = r.root.insert(e) }

func (n *rangeNode) insert(e *entry) *rangeNode {
	switch {
	case n == nil:
		return &rangeNode{base: e.key.Base, end: e.end(), entries: []*entry{e}, priority: rand.Uint64()}
	case e.key.Base == n.base:
		n.entries = append(n.entries, e)
	case e.key.Base < n.base:
		n.left = n.left.insert(e)
		if n.left.priority > n.priority {
			return n.rotateRight()
		}
	default:
		n.right = n.right.insert(e)
		if n.right.priority > n.priority {
			return n.rotateLeft()
		}
	}
	return n
}

// remove takes e out and tells whether it was in.
func (r *ranges) remove(e *entry) (removed bool) {
	r.root, removed = r.root.remove(e)
	return removed
}

func (n *rangeNode) remove(e *entry) (_ *rangeNode, removed bool) {
	switch {
	case n == nil:
		return nil, false
	case e.key.Base < n.base:
		n.left, removed = n.left.remove(e)
	case e.key.Base > n.base:
		n.right, removed = n.right.remove(e)
	default:
		for i, have := range n.entries {
			if have == e {
				last := len(n.entries) - 1
				n.entries[i], n.entries[last] = n.entries[last], nil
				n.entries, removed = n.entries[:last], true
				break
			}
		}
		if len(n.entries) == 0 {
			return merge(n.left, n.right), removed
		}
	}
	return n, removed
}

// merge joins two treaps, all of a before all of b.
func merge(a, b *rangeNode) *rangeNode {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority > b.priority:
		a.right = merge(a.right, b)
		return a
	default:
		b.left = merge(a, b.left)
		return b
	}
}

func (n *rangeNode) rotateRight() *rangeNode {
	l := n.left
	n.left, l.right = l.right, n
	return l
}

func (n *rangeNode) rotateLeft() *rangeNode {
	r := n.right
	n.right, r.left = r.left, n
	return r
}

// all calls f for each place, in order.
func (r *ranges) all(f func(n *rangeNode)) { r.root.all(f) }

func (n *rangeNode) all(f func(n *rangeNode)) {
	if n != nil {
		n.left.all(f)
		f(n)
		n.right.all(f)
	}
}
