package drivertest

import (
	"errors"

	"github.com/gpurma/gpurma/cuda"
)

// request is one line from the test to its peer: an operation's name and those
// arguments that it takes.
type request struct {
	Op     string
	Ptr    cuda.DevicePtr        `json:",omitzero"`
	Size   uint64                `json:",omitzero"`
	Seed   uint64                `json:",omitzero"`
	Count  int                   `json:",omitzero"`
	Handle []byte                `json:",omitzero"`
	Mem    cuda.MemHandle        `json:",omitzero"`
	Pool   cuda.MemPool          `json:",omitzero"`
	Types  cuda.HandleType       `json:",omitzero"`
	Attr   cuda.PointerAttribute `json:",omitzero"`
	FD     int                   `json:",omitzero"`
}

// answer is the peer's line for a request: what the operation returned, or the
// error of the driver call that failed in it.
type answer struct {
	Ptr    cuda.DevicePtr `json:",omitzero"`
	Size   uint64         `json:",omitzero"`
	Value  uint64         `json:",omitzero"`
	Handle []byte         `json:",omitzero"`
	Mem    cuda.MemHandle `json:",omitzero"`
	Pool   cuda.MemPool   `json:",omitzero"`
	UUID   cuda.UUID      `json:",omitzero"`
	FD     int            `json:",omitzero"`
	Notes  []string       `json:",omitzero"`
	Err    *wireError     `json:",omitzero"`
}

// wireError carries an error across, so that errors.Is asks it for the result
// on the other side too.
type wireError struct {
	Call   string
	Result cuda.Result
	Text   string
}

func toWire(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Text: err.Error()}
	var call *cuda.CallError
	if errors.As(err, &call) {
		w.Call, w.Result = call.Call, call.Result
	}
	return w
}

func (w *wireError) err() error {
	switch {
	case w == nil:
		return nil
	case w.Result != cuda.Success:
		return &cuda.CallError{Call: w.Call, Result: w.Result, Detail: "in the peer: " + w.Text}
	default:
		return errors.New("in the peer: " + w.Text)
	}
}
