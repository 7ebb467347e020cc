package softgpu

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
)

// errNoSlot is returned for a slot that does not hold what is asked for.
var errNoSlot = errors.New("no such allocation in the table")

// put writes s into free slots, continued in further ones where it has many
// extents, and returns their numbers. The state word of the first is written
// last: before that the allocation is not there.
func (t *table) put(h *header, s slot) ([]uint32, error) {
	pieces := (len(s.extents) + slotExtents - 1) / slotExtents
	var numbers []uint32
	for range pieces {
		if n := len(t.free); n > 0 {
			numbers = append(numbers, t.free[n-1])
			t.free = t.free[:n-1]
			continue
		}
		numbers = append(numbers, t.slots)
		t.slots++
	}
	for i := pieces - 1; i >= 0; i-- {
		b := make([]byte, slotSize)
		es := s.extents[i*slotExtents : min(len(s.extents), (i+1)*slotExtents)]
		binary.LittleEndian.PutUint32(b[8:], s.device)
		binary.LittleEndian.PutUint32(b[12:], s.offset)
		binary.LittleEndian.PutUint64(b[16:], s.size)
		binary.LittleEndian.PutUint64(b[24:], s.va)
		binary.LittleEndian.PutUint32(b[32:], uint32(len(es)))
		if i+1 < pieces {
			binary.LittleEndian.PutUint32(b[36:], numbers[i+1]+1)
		}
		for j, e := range es {
			binary.LittleEndian.PutUint32(b[slotHeadSize+8*j:], e.first)
			binary.LittleEndian.PutUint32(b[slotHeadSize+8*j+4:], e.count)
		}
		state := s.id
		if i > 0 {
			state |= continuesFlag
		}
		at := slotsAt(h) + int64(numbers[i])*slotSize
		_, err := t.f.WriteAt(b, at)
		if err == nil {
			err = t.writeState(at, state)
		}
		if err != nil {
			return nil, errors.Join(err, t.clearSlots(h, numbers))
		}
	}
	return numbers, nil
}

// clearSlots takes an allocation out of the table, its first slot first.
func (t *table) clearSlots(h *header, numbers []uint32) error {
	var errs []error
	for _, n := range numbers {
		errs = append(errs, t.writeState(slotsAt(h)+int64(n)*slotSize, 0))
	}
	t.free = append(t.free, numbers...)
	return errors.Join(errs...)
}

func (t *table) writeState(at int64, state uint64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], state)
	_, err := t.f.WriteAt(b[:], at)
	return err
}

// readSlot reads allocation id from a slot of another process's table, and
// trusts nothing that it reads.
func readSlot(f *os.File, h *header, number uint32, id uint64) (slot, error) {
	s := slot{id: id}
	b := make([]byte, slotSize)
	next := uint64(number)
	for piece := 0; ; piece++ {
		if _, err := f.ReadAt(b, slotsAt(h)+int64(next)*slotSize); err != nil {
			if errors.Is(err, io.EOF) {
				err = errNoSlot
			}
			return slot{}, err
		}
		want := id
		if piece > 0 {
			want |= continuesFlag
		}
		count := binary.LittleEndian.Uint32(b[32:])
		if id == 0 || binary.LittleEndian.Uint64(b) != want || count == 0 || count > slotExtents || uint32(piece) > h.blocks {
			return slot{}, errNoSlot
		}
		if piece == 0 {
			s.device = binary.LittleEndian.Uint32(b[8:])
			s.offset = binary.LittleEndian.Uint32(b[12:])
			s.size = binary.LittleEndian.Uint64(b[16:])
			s.va = binary.LittleEndian.Uint64(b[24:])
		}
		for j := range count {
			s.extents = append(s.extents, extent{
				binary.LittleEndian.Uint32(b[slotHeadSize+8*j:]),
				binary.LittleEndian.Uint32(b[slotHeadSize+8*j+4:]),
			})
		}
		following := binary.LittleEndian.Uint32(b[36:])
		if following == 0 {
			break
		}
		next = uint64(following - 1)
	}
	if !validExtents(h, s.device, s.extents) || s.offset >= BlockSize ||
		s.size == 0 || s.size > uint64(blockCount(s.extents))*BlockSize-uint64(s.offset) {
		return slot{}, errNoSlot
	}
	return s, nil
}

// startsAt tells whether an allocation in another process's table starts at va.
func startsAt(f *os.File, h *header, va uint64) (bool, error) {
	slots := io.NewSectionReader(f, slotsAt(h), 1<<62)
	for b := make([]byte, slotSize); ; {
		if _, err := io.ReadFull(slots, b); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return false, nil
			}
			return false, err
		}
		state := binary.LittleEndian.Uint64(b)
		if state != 0 && state&continuesFlag == 0 && binary.LittleEndian.Uint64(b[24:]) == va {
			return true, nil
		}
	}
}

// validExtents tells whether the extents are blocks of a device of the node.
func validExtents(h *header, device uint32, es []extent) bool {
	var total uint64
	for _, e := range es {
		if e.count == 0 || uint64(e.first)+uint64(e.count) > uint64(h.blocks) {
			return false
		}
		total += uint64(e.count)
	}
	return int64(device) < int64(h.devices) && total > 0 && total <= uint64(h.blocks)
}
