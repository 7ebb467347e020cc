package ucxlite

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/gpurma/gpurma/cudaipc"
	"github.com/gpurma/gpurma/ucxlite/internal/wire"
)

// WorkerAddress is what a peer needs to create an endpoint to a worker: plain
// bytes, to be sent by any channel. It contains the token that lets its reader
// connect, so it is as secret as the worker should be private.
type WorkerAddress []byte

// Layout, little-endian: magic u32, version u8, flags u8, total length u16,
// CRC-32C u32 (over the whole with this field zero), identity {system 16,
// nonce 16, start u64, pid u32, pid namespace u64}, then sections {kind u8,
// length u16, bytes}. Sections of unknown kind are skipped: that is where
// another transport will stand.
const (
	addressMagic   = 0x61777067 // "gpwa"
	addressVersion = 1
	addressHeader  = 12

	sectionSocket = 1 // path of the control socket
	sectionToken  = 2 // 16 bytes
)

// AddressInfo is a worker address, parsed.
type AddressInfo struct {
	Identity cudaipc.Identity
	Socket   string // path of the control socket
	Token    [16]byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// addressSum is the checksum of b with the checksum's own field taken as zero.
func addressSum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:8])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	return crc32.Update(sum, castagnoli, b[addressHeader:])
}

func (a *AddressInfo) pack() WorkerAddress {
	b := binary.LittleEndian.AppendUint32(nil, addressMagic)
	b = append(b, addressVersion, 0)
	b = append(b, make([]byte, 6)...) // length and checksum, filled in below
	b = wire.AppendIdentity(b, &a.Identity)
	b = appendSection(b, sectionSocket, []byte(a.Socket))
	b = appendSection(b, sectionToken, a.Token[:])
	binary.LittleEndian.PutUint16(b[6:], uint16(len(b)))
	binary.LittleEndian.PutUint32(b[8:], addressSum(b))
	return b
}

func appendSection(b []byte, kind byte, data []byte) []byte {
	b = append(b, kind)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// ParseWorkerAddress reads a worker address. Bytes that are none, in whatever
// way, are ErrInvalidParam; a newer version is ErrUnsupported.
func ParseWorkerAddress(b []byte) (AddressInfo, error) {
	var a AddressInfo
	bad := func(format string, args ...any) (AddressInfo, error) {
		return AddressInfo{}, fmt.Errorf("parse worker address: %w: %s", ErrInvalidParam, fmt.Sprintf(format, args...))
	}
	if len(b) < addressHeader {
		return bad("%d bytes are too few", len(b))
	}
	if m := binary.LittleEndian.Uint32(b); m != addressMagic {
		return bad("magic %#x", m)
	}
	if v := b[4]; v != addressVersion {
		return AddressInfo{}, fmt.Errorf("parse worker address: %w: version %d, this is version %d", ErrUnsupported, v, addressVersion)
	}
	if n := int(binary.LittleEndian.Uint16(b[6:])); n != len(b) {
		return bad("%d bytes, its header says %d", len(b), n)
	}
	if len(b) < addressHeader+wire.IdentityLength {
		return bad("%d bytes are too few", len(b))
	}
	if want, got := binary.LittleEndian.Uint32(b[8:]), addressSum(b); want != got {
		return bad("checksum %#x, want %#x", got, want)
	}
	c := wire.Cursor{B: b[addressHeader:]}
	a.Identity = c.Identity()
	p := c.B
	var token bool
	for len(p) > 0 {
		if len(p) < 3 {
			return bad("%d bytes after the last section", len(p))
		}
		kind, n := p[0], int(binary.LittleEndian.Uint16(p[1:]))
		if p = p[3:]; n > len(p) {
			return bad("section %d of %d bytes, %d left", kind, n, len(p))
		}
		switch kind {
		case sectionSocket:
			a.Socket = string(p[:n])
		case sectionToken:
			if n != len(a.Token) {
				return bad("token of %d bytes", n)
			}
			token = true
			copy(a.Token[:], p)
		}
		p = p[n:]
	}
	if a.Socket == "" || len(a.Socket) > maxSocketPath || !token {
		return bad("no usable control socket in it")
	}
	return a, nil
}

// maxSocketPath is what fits into a Unix socket address.
const maxSocketPath = 107
