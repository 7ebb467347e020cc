// Package wire is what two contexts say to each other on a control connection:
// frames, one a message of a SOCK_SEQPACKET socket. It only packs and parses;
// any input gives a frame or an error.
//
// A frame is {type u8, flags u8, reserved u16, length u32} and its body,
// little-endian; the length counts the whole and must be the message's. Bytes
// after the fields of a body are skipped, so a later version may append.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpurma/gpurma/cudaipc"
)

// Version is the protocol's version, said in Hello and HelloAck. Peers of
// different versions do not talk.
const Version = 1

// MaxFrame is the longest message that is sent or read.
const MaxFrame = 8 << 10

const headerLength = 8

// ErrMalformed is returned for bytes that are no frame.
var ErrMalformed = errors.New("malformed frame")

// Type numbers a frame.
type Type uint8

const (
	TypeHello       Type = 1
	TypeHelloAck    Type = 2
	TypeGoodbye     Type = 3
	TypeFetchFD     Type = 4
	TypeFD          Type = 5
	TypeRing        Type = 6
	TypeRingAck     Type = 7
	TypePut         Type = 8
	TypeGet         Type = 9
	TypeTransferred Type = 10
)

// Status is a peer's answer.
type Status uint16

const (
	StatusOK          Status = 0
	StatusVersion     Status = 1 // versions differ
	StatusRefused     Status = 2 // neither the same user nor the token
	StatusStale       Status = 3 // no such registration any more
	StatusRange       Status = 4 // outside the registration
	StatusDriver      Status = 5 // the driver call failed; Result says how
	StatusUnsupported Status = 6 // this peer does not do that
	StatusProtocol    Status = 7 // what was sent makes no sense here
)

// Frame is one of the pointer types of this package.
type Frame interface {
	Type() Type
	appendBody(b []byte) []byte
	parseBody(c *Cursor)
}

// Hello opens a connection: the dialler proves that it holds the token of the
// worker address by MAC = HMAC-SHA256(token, Challenge ‖ identity).
type Hello struct {
	Version   uint16
	Identity  cudaipc.Identity
	Challenge [16]byte
	MAC       [32]byte
}

// HelloAck answers a Hello; the connection is usable after StatusOK.
type HelloAck struct {
	Version  uint16
	Status   Status
	Identity cudaipc.Identity
	Reason   string
}

// Goodbye ends a connection in good order.
type Goodbye struct{ Reason string }

// FetchFD asks for the descriptor of a registration.
type FetchFD struct {
	ID               uint64
	Slot, Generation uint32
}

// FD answers FetchFD; the message carries the descriptor where Status is OK.
type FD struct {
	ID     uint64
	Status Status
	Reason string
}

// Ring brings the shared memory of the staged lane, as a descriptor with the
// message: first Slots slots for puts, then as many for gets.
type Ring struct {
	Slots    uint32
	SlotSize uint64
}

// RingAck answers Ring.
type RingAck struct {
	Status Status
	Reason string
}

// Transfer is the body of Put and Get: Length bytes between slot Index of the
// ring and address Address of a registration.
type Transfer struct {
	Index            uint32
	Length           uint32
	Slot, Generation uint32
	Address          uint64
}

// Put says that slot Index holds data for Address; Get grants slot Index for
// the data at Address.
type (
	Put struct{ Transfer }
	Get struct{ Transfer }
)

// Transferred answers a Put (Get false) or Get: the peer is done with slot
// Index. After a Put that is StatusOK the data is in its memory.
type Transferred struct {
	Get    bool
	Index  uint32
	Status Status
	Result int32 // the driver's, for StatusDriver
	Reason string
}

func newFrame(t Type) Frame {
	switch t {
	case TypeHello:
		return new(Hello)
	case TypeHelloAck:
		return new(HelloAck)
	case TypeGoodbye:
		return new(Goodbye)
	case TypeFetchFD:
		return new(FetchFD)
	case TypeFD:
		return new(FD)
	case TypeRing:
		return new(Ring)
	case TypeRingAck:
		return new(RingAck)
	case TypePut:
		return new(Put)
	case TypeGet:
		return new(Get)
	case TypeTransferred:
		return new(Transferred)
	}
	return nil
}

// Append packs f behind b.
func Append(b []byte, f Frame) []byte {
	start := len(b)
	b = append(b, byte(f.Type()), 0, 0, 0, 0, 0, 0, 0)
	b = f.appendBody(b)
	binary.LittleEndian.PutUint32(b[start+4:], uint32(len(b)-start))
	return b
}

// Parse reads the frame that b is.
func Parse(b []byte) (Frame, error) {
	if len(b) < headerLength || len(b) > MaxFrame {
		return nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	if n := binary.LittleEndian.Uint32(b[4:]); uint64(n) != uint64(len(b)) {
		return nil, fmt.Errorf("%w: %d bytes, its header says %d", ErrMalformed, len(b), n)
	}
	f := newFrame(Type(b[0]))
	if f == nil {
		return nil, fmt.Errorf("%w: type %d", ErrMalformed, b[0])
	}
	c := Cursor{B: b[headerLength:]}
	f.parseBody(&c)
	if c.Short {
		return nil, fmt.Errorf("%w: %T of %d bytes is cut off", ErrMalformed, f, len(b))
	}
	return f, nil
}
