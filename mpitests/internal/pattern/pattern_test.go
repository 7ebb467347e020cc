package pattern

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFillIsRepeatable(t *testing.T) {
	a, b, c := make([]byte, 4097), make([]byte, 4097), make([]byte, 4097)
	Fill(a, 7)
	Fill(b, 7)
	Fill(c, 8)
	require.Equal(t, a, b)
	require.NotEqual(t, a, c)
	require.NotEqual(t, Derive(7, "put"), Derive(7, "get"))
}

func TestCompareNamesTheFirstBadByte(t *testing.T) {
	want := make([]byte, 1000)
	Fill(want, 1)
	got := append([]byte(nil), want...)
	require.NoError(t, Compare(got, want))

	got[17] ^= 0xff
	got[900] ^= 1
	var m *Mismatch
	require.ErrorAs(t, Compare(got, want), &m)
	require.Equal(t, Mismatch{Offset: 17, Got: want[17] ^ 0xff, Want: want[17], Bad: 2, Length: 1000}, *m)
	require.Error(t, Compare(got[:10], want))
}

func TestCheckGuard(t *testing.T) {
	guard := []byte{GuardByte, GuardByte, GuardByte}
	require.NoError(t, CheckGuard(guard, "after"))
	guard[1] = 0
	require.ErrorContains(t, CheckGuard(guard, "after"), "after the buffer overwritten at its byte 1 of 3")
	require.NoError(t, CheckGuard(nil, "before"))
}
