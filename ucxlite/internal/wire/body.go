package wire

import "encoding/binary"

var le = binary.LittleEndian

func (*Hello) Type() Type       { return TypeHello }
func (*HelloAck) Type() Type    { return TypeHelloAck }
func (*Goodbye) Type() Type     { return TypeGoodbye }
func (*FetchFD) Type() Type     { return TypeFetchFD }
func (*FD) Type() Type          { return TypeFD }
func (*Ring) Type() Type        { return TypeRing }
func (*RingAck) Type() Type     { return TypeRingAck }
func (*Put) Type() Type         { return TypePut }
func (*Get) Type() Type         { return TypeGet }
func (*Transferred) Type() Type { return TypeTransferred }

func (f *Hello) appendBody(b []byte) []byte {
	b = le.AppendUint16(b, f.Version)
	b = AppendIdentity(b, &f.Identity)
	b = append(b, f.Challenge[:]...)
	return append(b, f.MAC[:]...)
}

// parseBody reads no more than the version of another version's hello, whose
// other fields may have moved.
func (f *Hello) parseBody(c *Cursor) {
	if f.Version = c.U16(); f.Version != Version {
		return
	}
	f.Identity = c.Identity()
	c.Fill(f.Challenge[:])
	c.Fill(f.MAC[:])
}

func (f *HelloAck) appendBody(b []byte) []byte {
	b = le.AppendUint16(b, f.Version)
	b = le.AppendUint16(b, uint16(f.Status))
	b = AppendIdentity(b, &f.Identity)
	return appendText(b, f.Reason)
}

func (f *HelloAck) parseBody(c *Cursor) {
	f.Version, f.Status = c.U16(), Status(c.U16())
	if f.Version != Version {
		return
	}
	f.Identity, f.Reason = c.Identity(), c.Text()
}

func (f *Goodbye) appendBody(b []byte) []byte { return appendText(b, f.Reason) }
func (f *Goodbye) parseBody(c *Cursor)        { f.Reason = c.Text() }

func (f *FetchFD) appendBody(b []byte) []byte {
	b = le.AppendUint64(b, f.ID)
	b = le.AppendUint32(b, f.Slot)
	return le.AppendUint32(b, f.Generation)
}

func (f *FetchFD) parseBody(c *Cursor) { f.ID, f.Slot, f.Generation = c.U64(), c.U32(), c.U32() }

func (f *FD) appendBody(b []byte) []byte {
	b = le.AppendUint64(b, f.ID)
	b = le.AppendUint16(b, uint16(f.Status))
	return appendText(b, f.Reason)
}

func (f *FD) parseBody(c *Cursor) { f.ID, f.Status, f.Reason = c.U64(), Status(c.U16()), c.Text() }

func (f *Ring) appendBody(b []byte) []byte {
	b = le.AppendUint32(b, f.Slots)
	return le.AppendUint64(b, f.SlotSize)
}

func (f *Ring) parseBody(c *Cursor) { f.Slots, f.SlotSize = c.U32(), c.U64() }

func (f *RingAck) appendBody(b []byte) []byte {
	b = le.AppendUint16(b, uint16(f.Status))
	return appendText(b, f.Reason)
}

func (f *RingAck) parseBody(c *Cursor) { f.Status, f.Reason = Status(c.U16()), c.Text() }

func (f *Transfer) appendBody(b []byte) []byte {
	b = le.AppendUint32(b, f.Index)
	b = le.AppendUint32(b, f.Length)
	b = le.AppendUint32(b, f.Slot)
	b = le.AppendUint32(b, f.Generation)
	return le.AppendUint64(b, f.Address)
}

func (f *Transfer) parseBody(c *Cursor) {
	f.Index, f.Length, f.Slot, f.Generation, f.Address = c.U32(), c.U32(), c.U32(), c.U32(), c.U64()
}

func (f *Transferred) appendBody(b []byte) []byte {
	get := uint16(0)
	if f.Get {
		get = 1
	}
	b = le.AppendUint16(b, get)
	b = le.AppendUint32(b, f.Index)
	b = le.AppendUint16(b, uint16(f.Status))
	b = le.AppendUint32(b, uint32(f.Result))
	return appendText(b, f.Reason)
}

func (f *Transferred) parseBody(c *Cursor) {
	f.Get, f.Index, f.Status = c.U16() != 0, c.U32(), Status(c.U16())
	f.Result, f.Reason = int32(c.U32()), c.Text()
}
