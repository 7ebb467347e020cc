package cudaipc

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpurma/gpurma/cuda"
)

// Kind says how a handle shares memory. The values are wire format.
type Kind uint8

const (
	KindNone    Kind = 0 // no handle can share the memory
	KindLegacy  Kind = 1 // cuIpcGetMemHandle: 64 bytes
	KindPosixFD Kind = 2 // the number of a descriptor in the exporter: u32
	KindPool    Kind = 3 // pool memory
	KindFabric  Kind = 4 // fabric handle
)

var kindNames = map[Kind]string{
	KindNone: "none", KindLegacy: "legacy", KindPosixFD: "posix-fd", KindPool: "pool", KindFabric: "fabric",
}

func (k Kind) String() string {
	if s, ok := kindNames[k]; ok {
		return s
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// known tells whether this version carries handles of the kind in a key.
func (k Kind) known() bool { return k > KindNone && k <= KindFabric }

// size is the length of the kind's handle; 0 where it varies.
func (k Kind) size() int {
	switch k {
	case KindLegacy:
		return len(cuda.IpcMemHandle{})
	case KindPosixFD:
		return 4
	}
	return 0
}

// Handle is one way to share the memory.
type Handle struct {
	Kind Kind
	Data []byte
}

// Key describes a range of an allocation of some process, for others to map.
// It is plain data and owns nothing.
type Key struct {
	Identity   Identity // the exporter
	Slot       uint32   // the exporter's registration
	Generation uint32   // of that slot
	Device     cuda.UUID
	Base       cuda.DevicePtr // the allocation, at the exporter
	Length     uint64         // of the allocation
	Offset     uint64         // the user's range: from Base
	UserLength uint64         // and its length
	BufferID   uint64         // the exporter's driver's id of the allocation
	Handles    []Handle       // in the order an importer should try; empty for KindNone
}

// Kind is the kind of the first handle.
func (k *Key) Kind() Kind {
	if len(k.Handles) == 0 {
		return KindNone
	}
	return k.Handles[0].Kind
}

// Address is the exporter's address of the user's range.
func (k *Key) Address() cuda.DevicePtr { return k.Base.Add(k.Offset) }

// String is one line for logs.
func (k *Key) String() string {
	return fmt.Sprintf("%s key [%s, +%d) in %s+%d, buffer %d, %s, slot %d.%d, of %s", k.Kind(),
		k.Address(), k.UserLength, k.Base, k.Length, k.BufferID, k.Device, k.Slot, k.Generation, k.Identity)
}

// validate checks what a key says of itself; it cannot tell a lie about memory.
func (k *Key) validate() error {
	switch {
	case k.Length == 0:
		return fmt.Errorf("%w: length 0", ErrInvalidKey)
	case k.Length > math.MaxUint64-uint64(k.Base):
		return fmt.Errorf("%w: base %s and length %d overflow", ErrInvalidKey, k.Base, k.Length)
	case k.Offset > k.Length || k.UserLength > k.Length-k.Offset:
		return fmt.Errorf("%w: range at %d of %d bytes is outside the allocation of %d", ErrInvalidKey, k.Offset, k.UserLength, k.Length)
	}
	for _, h := range k.Handles {
		if want := h.Kind.size(); want != 0 && len(h.Data) != want {
			return fmt.Errorf("%w: %s handle of %d bytes, want %d", ErrInvalidKey, h.Kind, len(h.Data), want)
		}
	}
	return nil
}

// sameAllocation tells whether both keys name the same allocation of the same
// process by the same handles. The users' ranges may differ.
func (k *Key) sameAllocation(o *Key) bool {
	return k.BufferID == o.BufferID && k.Base == o.Base && k.Length == o.Length &&
		k.Identity == o.Identity && k.Device == o.Device &&
		slices.EqualFunc(k.Handles, o.Handles, func(a, b Handle) bool {
			return a.Kind == b.Kind && bytes.Equal(a.Data, b.Data)
		})
}

// clone copies the key with its handles.
func (k *Key) clone() Key {
	c := *k
	c.Handles = slices.Clone(k.Handles)
	for i := range c.Handles {
		c.Handles[i].Data = bytes.Clone(c.Handles[i].Data)
	}
	return c
}

type keyJSON struct {
	Kinds      []string `json:"kinds"`
	PID        uint32   `json:"pid"`
	PIDNS      uint64   `json:"pid_ns"`
	Start      uint64   `json:"start"`
	System     string   `json:"system"`
	Nonce      string   `json:"nonce"`
	Slot       uint32   `json:"slot"`
	Generation uint32   `json:"generation"`
	Device     string   `json:"device"`
	Base       string   `json:"base"`
	Length     uint64   `json:"length"`
	Offset     uint64   `json:"offset"`
	UserLength uint64   `json:"user_length"`
	BufferID   uint64   `json:"buffer_id"`
	Handles    []string `json:"handles"`
}

// MarshalJSON is for people and tools that look at keys; only the binary form
// can be read back.
func (k *Key) MarshalJSON() ([]byte, error) {
	j := keyJSON{
		PID: k.Identity.PID, PIDNS: k.Identity.PIDNS, Start: k.Identity.Start,
		System: hex.EncodeToString(k.Identity.System[:]), Nonce: hex.EncodeToString(k.Identity.Nonce[:]),
		Slot: k.Slot, Generation: k.Generation, Device: k.Device.String(), Base: k.Base.String(),
		Length: k.Length, Offset: k.Offset, UserLength: k.UserLength, BufferID: k.BufferID,
		Kinds: []string{}, Handles: []string{},
	}
	for _, h := range k.Handles {
		j.Kinds = append(j.Kinds, h.Kind.String())
		j.Handles = append(j.Handles, strings.ToLower(hex.EncodeToString(h.Data)))
	}
	return json.Marshal(j)
}
