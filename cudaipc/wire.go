package cudaipc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/gpurma/gpurma/cuda"
)

// The binary form, little-endian:
//
//	 0 magic u32 · 4 version u8 · 5 flags u8 · 6 total length u16 · 8 CRC-32C u32
//	12 system [16] · 28 nonce [16] · 44 start u64 · 52 pid u32 · 56 pid namespace u64
//	64 slot u32 · 68 generation u32 · 72 device UUID [16]
//	88 base u64 · 96 length u64 · 104 offset u64 · 112 user length u64 · 120 buffer id u64
//	128 handles, to the end: kind u8 · length u16 · bytes
//
// The checksum covers all bytes but its own. Flags in the upper half must be
// understood by the reader, those in the lower half may be ignored; none is
// defined yet. A handle of a kind that the reader does not know is skipped.
const (
	keyMagic        = 0x4b525047 // "GPRK"
	keyVersion      = 1
	keyHeader       = 12
	keyFixed        = 128
	handleHeader    = 3
	flagsToRefuse   = 0xf0
	maxKeyLength    = math.MaxUint16
	maxHandleLength = maxKeyLength - keyFixed - handleHeader
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// keySum is the checksum of a key's bytes without the field that holds it.
func keySum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:8], castagnoli), castagnoli, b[keyHeader:])
}

// MarshalBinary returns the packed form.
func (k *Key) MarshalBinary() ([]byte, error) { return k.AppendBinary(nil) }

// AppendBinary appends the packed form to b. It is ErrInvalidKey for a key that
// ParseKey would refuse.
func (k *Key) AppendBinary(b []byte) ([]byte, error) {
	if err := k.validate(); err != nil {
		return b, fmt.Errorf("pack key: %w", err)
	}
	total := keyFixed
	for _, h := range k.Handles {
		if !h.Kind.known() || len(h.Data) > maxHandleLength {
			return b, fmt.Errorf("pack key: %w: %s handle of %d bytes", ErrInvalidKey, h.Kind, len(h.Data))
		}
		total += handleHeader + len(h.Data)
	}
	if total > maxKeyLength {
		return b, fmt.Errorf("pack key: %w: %d bytes of handles", ErrInvalidKey, total-keyFixed)
	}
	le := binary.LittleEndian
	start := len(b)
	b = le.AppendUint32(b, keyMagic)
	b = append(b, keyVersion, 0)
	b = le.AppendUint16(b, uint16(total))
	b = le.AppendUint32(b, 0)
	b = append(b, k.Identity.System[:]...)
	b = append(b, k.Identity.Nonce[:]...)
	b = le.AppendUint64(b, k.Identity.Start)
	b = le.AppendUint32(b, k.Identity.PID)
	b = le.AppendUint64(b, k.Identity.PIDNS)
	b = le.AppendUint32(b, k.Slot)
	b = le.AppendUint32(b, k.Generation)
	b = append(b, k.Device[:]...)
	for _, v := range [...]uint64{uint64(k.Base), k.Length, k.Offset, k.UserLength, k.BufferID} {
		b = le.AppendUint64(b, v)
	}
	for _, h := range k.Handles {
		b = append(b, byte(h.Kind))
		b = le.AppendUint16(b, uint16(len(h.Data)))
		b = append(b, h.Data...)
	}
	le.PutUint32(b[start+8:], keySum(b[start:]))
	return b, nil
}

// ParseKey reads a packed key, which must fill b. Any other input is
// ErrInvalidKey. The key does not refer to b.
func ParseKey(b []byte) (Key, error) {
	le := binary.LittleEndian
	switch {
	case len(b) < keyFixed:
		return Key{}, fmt.Errorf("parse key: %w: %d bytes, want at least %d", ErrInvalidKey, len(b), keyFixed)
	case le.Uint32(b) != keyMagic:
		return Key{}, fmt.Errorf("parse key: %w: magic %#x", ErrInvalidKey, le.Uint32(b))
	case b[4] != keyVersion:
		return Key{}, fmt.Errorf("parse key: %w: version %d, this program reads %d", ErrInvalidKey, b[4], keyVersion)
	case int(le.Uint16(b[6:])) != len(b):
		return Key{}, fmt.Errorf("parse key: %w: says %d bytes, has %d", ErrInvalidKey, le.Uint16(b[6:]), len(b))
	case le.Uint32(b[8:]) != keySum(b):
		return Key{}, fmt.Errorf("parse key: %w: checksum %#x, bytes give %#x", ErrInvalidKey, le.Uint32(b[8:]), keySum(b))
	case b[5]&flagsToRefuse != 0:
		return Key{}, fmt.Errorf("parse key: %w: needs features %#x", ErrInvalidKey, b[5]&flagsToRefuse)
	}
	k := Key{
		Identity: Identity{
			System: [16]byte(b[12:]), Nonce: [16]byte(b[28:]),
			Start: le.Uint64(b[44:]), PID: le.Uint32(b[52:]), PIDNS: le.Uint64(b[56:]),
		},
		Slot: le.Uint32(b[64:]), Generation: le.Uint32(b[68:]),
		Device: cuda.UUID(b[72:]),
		Base:   cuda.DevicePtr(le.Uint64(b[88:])), Length: le.Uint64(b[96:]),
		Offset: le.Uint64(b[104:]), UserLength: le.Uint64(b[112:]), BufferID: le.Uint64(b[120:]),
	}
	if err := k.parseHandles(b[keyFixed:]); err != nil {
		return Key{}, fmt.Errorf("parse key: %w", err)
	}
	if err := k.validate(); err != nil {
		return Key{}, fmt.Errorf("parse key: %w", err)
	}
	return k, nil
}

func (k *Key) parseHandles(b []byte) error {
	for len(b) > 0 {
		if len(b) < handleHeader {
			return fmt.Errorf("%w: %d stray bytes", ErrInvalidKey, len(b))
		}
		kind, n := Kind(b[0]), int(binary.LittleEndian.Uint16(b[1:]))
		b = b[handleHeader:]
		if n > len(b) {
			return fmt.Errorf("%w: %s handle of %d bytes, %d left", ErrInvalidKey, kind, n, len(b))
		}
		if kind.known() {
			k.Handles = append(k.Handles, Handle{Kind: kind, Data: bytes.Clone(b[:n:n])})
		}
		b = b[n:]
	}
	return nil
}
