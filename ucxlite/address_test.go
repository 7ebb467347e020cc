package ucxlite

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpurma/gpurma/cudaipc"
	"github.com/stretchr/testify/require"
)

func testAddress() AddressInfo {
	return AddressInfo{
		Identity: cudaipc.Identity{System: [16]byte{1}, Nonce: [16]byte{2}, Start: 3, PID: 4, PIDNS: 5},
		Socket:   "/run/user/1/gpurma-1/x.sock",
		Token:    [16]byte{6},
	}
}

// sealed gives b the length and checksum that its bytes have.
func sealed(b []byte) []byte {
	binary.LittleEndian.PutUint16(b[6:], uint16(len(b)))
	binary.LittleEndian.PutUint32(b[8:], addressSum(b))
	return b
}

func TestWorkerAddressComesBack(t *testing.T) {
	want := testAddress()
	got, err := ParseWorkerAddress(want.pack())
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(want, got))

	// A section of a kind that this version does not know is skipped.
	more := sealed(appendSection(bytes.Clone(want.pack()), 200, []byte("tcp://host:1")))
	got, err = ParseWorkerAddress(more)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(want, got))
}

func TestWorkerAddressRefused(t *testing.T) {
	info := testAddress()
	good := info.pack()
	for n := range len(good) {
		_, err := ParseWorkerAddress(good[:n])
		require.ErrorIs(t, err, ErrInvalidParam, "cut to %d", n)
	}
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 0x40
		_, err := ParseWorkerAddress(b)
		require.Error(t, err, "byte %d flipped", i)
	}
	b := bytes.Clone(good)
	b[4] = addressVersion + 1
	_, err := ParseWorkerAddress(sealed(b))
	require.ErrorIs(t, err, ErrUnsupported)

	long := testAddress()
	long.Socket = strings.Repeat("x", maxSocketPath+1)
	_, err = ParseWorkerAddress(long.pack())
	require.ErrorIs(t, err, ErrInvalidParam)

	header := good[:addressHeader+52]
	_, err = ParseWorkerAddress(sealed(bytes.Clone(header)))
	require.ErrorIs(t, err, ErrInvalidParam, "no sections")
	_, err = ParseWorkerAddress(sealed(append(bytes.Clone(header), sectionSocket, 0xff, 0xff)))
	require.ErrorIs(t, err, ErrInvalidParam, "a section longer than the rest")
}

func FuzzParseWorkerAddress(f *testing.F) {
	info := testAddress()
	f.Add([]byte(info.pack()), true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) >= addressHeader && len(b) < 1<<16 {
			b = sealed(bytes.Clone(b))
		}
		info, err := ParseWorkerAddress(b)
		if err != nil {
			return
		}
		again, err := ParseWorkerAddress(info.pack())
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(info, again))
	})
}
