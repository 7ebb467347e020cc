package wire

import (
	"encoding/binary"

	"github.com/gpurma/gpurma/cudaipc"
)

// IdentityLength is the packed size of an identity.
const IdentityLength = 16 + 16 + 8 + 4 + 8

// AppendIdentity packs id: system, nonce, start, pid, pid namespace.
func AppendIdentity(b []byte, id *cudaipc.Identity) []byte {
	b = append(b, id.System[:]...)
	b = append(b, id.Nonce[:]...)
	b = binary.LittleEndian.AppendUint64(b, id.Start)
	b = binary.LittleEndian.AppendUint32(b, id.PID)
	return binary.LittleEndian.AppendUint64(b, id.PIDNS)
}

// Cursor reads packed fields. Reading past the end gives zeros and sets Short,
// once for the whole frame, instead of an error a field.
type Cursor struct {
	B     []byte
	Short bool
}

func (c *Cursor) take(n int) []byte {
	if n > len(c.B) {
		c.Short, c.B = true, nil
		return make([]byte, n)
	}
	p := c.B[:n]
	c.B = c.B[n:]
	return p
}

// U16 reads 2 bytes.
func (c *Cursor) U16() uint16 { return binary.LittleEndian.Uint16(c.take(2)) }

// U32 reads 4 bytes.
func (c *Cursor) U32() uint32 { return binary.LittleEndian.Uint32(c.take(4)) }

// U64 reads 8 bytes.
func (c *Cursor) U64() uint64 { return binary.LittleEndian.Uint64(c.take(8)) }

// Fill reads len(dst) bytes into dst.
func (c *Cursor) Fill(dst []byte) { copy(dst, c.take(len(dst))) }

// Identity reads IdentityLength bytes.
func (c *Cursor) Identity() (id cudaipc.Identity) {
	c.Fill(id.System[:])
	c.Fill(id.Nonce[:])
	id.Start, id.PID, id.PIDNS = c.U64(), c.U32(), c.U64()
	return id
}

// Text reads a string with its length in front of it.
func (c *Cursor) Text() string {
	n := int(c.U16())
	if n > len(c.B) {
		c.Short, c.B = true, nil
		return ""
	}
	return string(c.take(n))
}

// maxText keeps a frame within MaxFrame whatever an error says.
const maxText = 4096

func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), maxText)]
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}
