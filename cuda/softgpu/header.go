package softgpu

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// maxMemory bounds a device: block numbers are 32 bits, and a table's bitmaps
// stay small.
const maxMemory = 1 << 42

const (
	nodeMagic  = "SGPUNOD1"
	headerSize = 64
)

// header is what the node file says. It is written once, by the creator.
type header struct {
	id          [16]byte
	devices     int
	blocks      uint32 // of each device
	contextCost uint64 // bytes
	// ownDir tells that the directory came with the node and goes with it.
	ownDir bool
}

func (h *header) memory() uint64 { return uint64(h.blocks) * BlockSize }

// uuid is the same in every process of the node and different on other nodes.
func (h *header) uuid(device int) cuda.UUID {
	sum := sha256.Sum256(fmt.Appendf(nil, "softgpu %x %d", h.id, device))
	return cuda.UUID(sum[:16])
}

func (h *header) encode() []byte {
	b := make([]byte, headerSize)
	copy(b, nodeMagic)
	copy(b[8:], h.id[:])
	binary.LittleEndian.PutUint32(b[24:], uint32(h.devices))
	binary.LittleEndian.PutUint32(b[28:], h.blocks)
	binary.LittleEndian.PutUint64(b[32:], h.contextCost)
	if h.ownDir {
		b[40] = 1
	}
	return b
}

func decodeHeader(b []byte) (header, error) {
	var h header
	if len(b) < headerSize || string(b[:8]) != nodeMagic {
		return h, fmt.Errorf("not a node file of this version of softgpu")
	}
	copy(h.id[:], b[8:])
	devices := binary.LittleEndian.Uint32(b[24:])
	h.blocks = binary.LittleEndian.Uint32(b[28:])
	h.contextCost = binary.LittleEndian.Uint64(b[32:])
	h.ownDir = b[40] == 1
	if devices == 0 || devices > maxDevices || h.blocks == 0 || h.memory() > maxMemory || h.contextCost > maxMemory {
		return h, fmt.Errorf("damaged node file: %d devices, %d blocks, context cost %d", devices, h.blocks, h.contextCost)
	}
	h.devices = int(devices)
	return h, nil
}

// newHeader makes the header of a new node as cfg wants it.
func newHeader(cfg Config, id [16]byte) header {
	h := header{id: id, devices: cfg.Devices, contextCost: cfg.ContextCost}
	if h.devices == 0 {
		h.devices = DefaultDevices
	}
	memory := cfg.Memory
	if memory == 0 {
		memory = DefaultMemory
	}
	h.blocks = uint32((memory + BlockSize - 1) / BlockSize)
	if h.contextCost == 0 && !cfg.NoContextCost {
		h.contextCost = DefaultContextCost
	}
	return h
}

// matches refuses a configuration that asks for another node than this one.
func (h *header) matches(cfg Config) error {
	want := newHeader(cfg, h.id)
	switch {
	case cfg.Devices != 0 && want.devices != h.devices:
		return fmt.Errorf("the node has %d devices, %d are asked for", h.devices, cfg.Devices)
	case cfg.Memory != 0 && want.blocks != h.blocks:
		return fmt.Errorf("the node's devices have %d bytes, %d are asked for", h.memory(), cfg.Memory)
	case (cfg.ContextCost != 0 || cfg.NoContextCost) && want.contextCost != h.contextCost:
		return fmt.Errorf("a context costs %d bytes on the node, %d are asked for", h.contextCost, cfg.ContextCost)
	}
	for _, v := range cfg.Visible {
		if v < 0 || v >= h.devices {
			return fmt.Errorf("device %d is asked for, the node has %d", v, h.devices)
		}
	}
	return nil
}
