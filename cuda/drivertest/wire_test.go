package drivertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/cuda"
)

func TestWireErrorKeepsTheResult(t *testing.T) {
	call := cuda.Err("cuMemFree", cuda.ErrorInvalidValue)
	for _, tt := range []struct {
		name string
		err  error
		want cuda.Result
	}{
		{"none", nil, cuda.Success},
		{"driver's", call, cuda.ErrorInvalidValue},
		{"wrapped", fmt.Errorf("free: %w", call), cuda.ErrorInvalidValue},
		{"first of joined", errors.Join(call, cuda.Err("cuMemUnmap", cuda.ErrorNotMapped)), cuda.ErrorInvalidValue},
		{"other", errors.New("byte 3 is wrong"), cuda.Success},
	} {
		t.Run(tt.name, func(t *testing.T) {
			line, err := json.Marshal(answer{Err: toWire(tt.err)})
			require.NoError(t, err)
			var a answer
			require.NoError(t, json.Unmarshal(line, &a))
			got := a.Err.err()
			require.Equal(t, tt.err == nil, got == nil)
			if tt.want != cuda.Success {
				require.ErrorIs(t, got, tt.want)
			}
			if tt.err != nil {
				require.ErrorContains(t, got, tt.err.Error())
			}
		})
	}
}

func TestRequestSurvivesTheWire(t *testing.T) {
	want := request{
		Op: "open", Ptr: 1<<63 + 1, Size: 1<<64 - 1, Seed: 7, Count: 3, Handle: []byte{0, 255},
		Mem: 1<<63 + 5, Types: cuda.HandleTypeFabric, Attr: cuda.PointerAttributeMapped, FD: 9,
	}
	line, err := json.Marshal(want)
	require.NoError(t, err)
	var got request
	require.NoError(t, json.Unmarshal(line, &got))
	require.Empty(t, cmp.Diff(want, got))
}

func TestPatternTellsSeedAndOffset(t *testing.T) {
	whole, tail, other := make([]byte, 64), make([]byte, 32), make([]byte, 64)
	pattern(whole, 1, 0)
	pattern(tail, 1, 32)
	pattern(other, 2, 0)
	require.Empty(t, cmp.Diff(whole[32:], tail))
	require.NotEqual(t, whole, other)
	require.NotEqual(t, whole[:32], tail)
}

func TestEdges(t *testing.T) {
	for size, want := range map[uint64][][2]uint64{
		1:             {{0, 1}},
		2 * block:     {{0, 2 * block}},
		3 * block:     {{0, block}, {2 * block, block}},
		block * 1000:  {{0, block}, {999 * block, block}},
		2*block + 100: {{0, block}, {block + 100, block}},
	} {
		require.Empty(t, cmp.Diff(want, edges(size)), "size %d", size)
	}
}
