package wire

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/stretchr/testify/require"
)

var testIdentity = cudaipc.Identity{
	System: [16]byte{1, 2, 3}, Nonce: [16]byte{4, 5, 6}, Start: 7, PID: 8, PIDNS: 9,
}

var samples = []Frame{
	&Hello{Version: Version, Identity: testIdentity, Challenge: [16]byte{1}, MAC: [32]byte{2}},
	&HelloAck{Version: Version, Status: StatusRefused, Identity: testIdentity, Reason: "no"},
	&Goodbye{Reason: "closed"},
	&FetchFD{ID: 1, Slot: 2, Generation: 3},
	&FD{ID: 1, Status: StatusStale, Reason: "gone"},
	&Ring{Slots: 8, SlotSize: 1 << 20},
	&RingAck{Status: StatusUnsupported, Reason: "no room"},
	&Put{Transfer{Index: 1, Length: 2, Slot: 3, Generation: 4, Address: 5}},
	&Get{Transfer{Index: 1, Length: 2, Slot: 3, Generation: 4, Address: 5}},
	&Transferred{Get: true, Index: 3, Status: StatusDriver, Result: -1, Reason: "CUDA"},
}

func TestFramesComeBack(t *testing.T) {
	for _, f := range samples {
		b := Append(nil, f)
		got, err := Parse(b)
		require.NoError(t, err, "%T", f)
		require.Empty(t, cmp.Diff(f, got))
	}
}

// A later version may append fields; they are skipped.
func TestFrameWithMoreFields(t *testing.T) {
	for _, f := range samples {
		b := append(Append(nil, f), 1, 2, 3)
		b[4] += 3
		got, err := Parse(b)
		require.NoError(t, err, "%T", f)
		require.Empty(t, cmp.Diff(f, got))
	}
}

func TestFramesCutOff(t *testing.T) {
	for _, f := range samples {
		b := Append(nil, f)
		for n := range len(b) {
			_, err := Parse(b[:n])
			require.ErrorIs(t, err, ErrMalformed, "%T cut to %d", f, n)
		}
		for n := headerLength; n < len(b); n++ { // with a header that agrees
			short := bytes.Clone(b[:n])
			short[4], short[5] = byte(n), byte(n>>8)
			_, err := Parse(short)
			require.ErrorIs(t, err, ErrMalformed, "%T of %d bytes", f, n)
		}
	}
}

func TestHelloOfAnotherVersion(t *testing.T) {
	b := Append(nil, &Hello{Version: Version, Identity: testIdentity})[:headerLength+2]
	b[4], b[5], b[headerLength] = headerLength+2, 0, Version+1
	f, err := Parse(b)
	require.NoError(t, err)
	require.EqualValues(t, Version+1, f.(*Hello).Version)
}

func TestLongReasonStaysWithinAFrame(t *testing.T) {
	b := Append(nil, &Goodbye{Reason: string(make([]byte, 2*MaxFrame))})
	require.LessOrEqual(t, len(b), MaxFrame)
	_, err := Parse(b)
	require.NoError(t, err)
}

func FuzzParse(f *testing.F) {
	for _, s := range samples {
		f.Add(Append(nil, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := Parse(b)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		again, err := Parse(Append(nil, frame))
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(frame, again))
	})
}
