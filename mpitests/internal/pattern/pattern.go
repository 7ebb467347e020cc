// Package pattern makes the bytes that the programs move, and finds the first
// one that arrived wrong.
package pattern

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// Fill fills b with the random bytes of seed: the same seed and length give
// the same bytes in every process.
func Fill(b []byte, seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	// Read of ChaCha8 never fails.
	_, _ = rand.NewChaCha8(key).Read(b)
}

// Derive makes a seed of its own for a named part of a run, so that two parts
// with one seed do not carry the same bytes.
func Derive(seed uint64, part string) uint64 {
	const prime = 1099511628211
	h := seed ^ 14695981039346656037
	for i := range len(part) {
		h = (h ^ uint64(part[i])) * prime
	}
	return h
}

// Mismatch is the first byte at which two buffers differ.
type Mismatch struct {
	Offset    int // bytes from the start of the buffer
	Got, Want byte
	Bad       int // how many bytes differ in all
	Length    int
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("first bad byte at offset %d: got %#02x, want %#02x (%d of %d bytes differ)",
		m.Offset, m.Got, m.Want, m.Bad, m.Length)
}

// Compare returns nil for equal buffers, else a [*Mismatch]. Both have one
// length.
func Compare(got, want []byte) error {
	if len(got) != len(want) {
		return fmt.Errorf("got %d bytes, want %d", len(got), len(want))
	}
	if string(got) == string(want) { // no copy: the fast path compares whole words
		return nil
	}
	m := &Mismatch{Offset: -1, Length: len(got)}
	for i := range got {
		if got[i] == want[i] {
			continue
		}
		if m.Offset < 0 {
			m.Offset, m.Got, m.Want = i, got[i], want[i]
		}
		m.Bad++
	}
	return m
}

// GuardByte fills the guards around a buffer.
const GuardByte = 0xC3

// CheckGuard returns an error naming the first byte of guard that was
// overwritten; where says which side of the buffer it lies on.
func CheckGuard(guard []byte, where string) error {
	for i, b := range guard {
		if b != GuardByte {
			return fmt.Errorf("guard %s the buffer overwritten at its byte %d of %d: got %#02x, want %#02x",
				where, i, len(guard), b, GuardByte)
		}
	}
	return nil
}
