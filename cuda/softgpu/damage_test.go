package softgpu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func testHeader() header {
	return header{id: [16]byte{1, 2, 3}, devices: 2, blocks: 1000, contextCost: 5 << 20, ownDir: true}
}

func TestHeaderRoundTrip(t *testing.T) {
	h := testHeader()
	got, err := decodeHeader(h.encode())
	require.NoError(t, err)
	require.Equal(t, h, got)
}

// TestSlotRoundTrip: an allocation with more extents than a slot holds.
func TestSlotRoundTrip(t *testing.T) {
	h := testHeader()
	tab := openTestTable(t, &h)
	want := slot{id: 7, device: 1, size: 25*BlockSize - 512, offset: 512, va: 0x7000}
	for i := range uint32(25) {
		want.extents = append(want.extents, extent{3 * i, 1})
	}
	numbers, err := tab.put(&h, want)
	require.NoError(t, err)
	require.Len(t, numbers, 3)
	got, err := readSlot(tab.f, &h, numbers[0], 7)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(want, got, cmp.AllowUnexported(slot{}, extent{})))
	for _, n := range numbers[1:] {
		_, err := readSlot(tab.f, &h, n, 7)
		require.ErrorIs(t, err, errNoSlot, "a continuation is no allocation")
	}
	_, err = readSlot(tab.f, &h, numbers[0], 8)
	require.ErrorIs(t, err, errNoSlot)
	require.NoError(t, tab.clearSlots(&h, numbers))
	_, err = readSlot(tab.f, &h, numbers[0], 7)
	require.ErrorIs(t, err, errNoSlot)
	again, err := tab.put(&h, want)
	require.NoError(t, err)
	require.ElementsMatch(t, numbers, again, "slots are used again")
	_, err = readSlot(tab.f, &h, 1<<31, 7)
	require.ErrorIs(t, err, errNoSlot, "beyond the end")
}

func openTestTable(t *testing.T, h *header) *table {
	t.Helper()
	tab, err := createTable(&node{header: *h, path: t.TempDir()}, 42)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tab.f.Close()) })
	return tab
}

// TestDamagedFiles: whatever stands in a file, reading it gives an error or
// something within the device, and never a panic.
func TestDamagedFiles(t *testing.T) {
	h := testHeader()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer f.Close()
	tick := ticket{id: 9, device: 1, types: 1, size: 3 * BlockSize, extents: []extent{{5, 1}, {9, 2}}}
	whole := make([]byte, slotsAt(&h)+4*slotSize)
	copy(whole, tableMagic)
	n := &node{header: h}
	rapid.Check(t, func(t *rapid.T) {
		b := append([]byte(nil), rapid.SampledFrom([][]byte{h.encode(), tick.encode(&h), whole}).Draw(t, "kind")...)
		for range rapid.IntRange(0, 30).Draw(t, "changes") {
			b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		b = b[:rapid.IntRange(0, len(b)).Draw(t, "length")]
		require.NoError(t, f.Truncate(0))
		_, err := f.WriteAt(b, 0)
		require.NoError(t, err)

		if got, err := decodeHeader(b); err == nil {
			require.LessOrEqual(t, got.devices, maxDevices)
		}
		for i := range uint32(4) {
			if s, err := readSlot(f, &h, i, rapid.Uint64Range(0, 255).Draw(t, "id")); err == nil {
				require.True(t, validExtents(&h, s.device, s.extents))
			}
		}
		for _, name := range []string{"table-1", "ticket-1"} {
			if held, _, err := n.readHolder(f, name); err == nil {
				require.Len(t, held, h.devices)
				for _, m := range held {
					for i := h.blocks; i < uint32(len(m))*64; i++ {
						require.False(t, m.has(i))
					}
				}
			}
		}
	})
}
