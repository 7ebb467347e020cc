package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/mpitests/internal/caselist"
	"github.com/gpurma/gpurma/mpitests/internal/harness"
)

// TestUCXCombinations checks that every combination that UCX's test_rma_cuda is
// known to pass on a GPU is a case here, in both directions, except those with
// an allocator that this module does not have.
func TestUCXCombinations(t *testing.T) {
	have := map[string]int{}
	for _, c := range allCases([]uint64{8, 4 << 20, 16 << 20}) {
		part := strings.Split(c.Name(), "/")
		require.Len(t, part, 6)
		have[strings.Join([]string{part[0], part[2], part[3], part[4], part[5]}, " ")]++
	}
	raw, err := os.ReadFile("../testdata/ucx-h200-combinations.txt")
	require.NoError(t, err)
	found, without := 0, 0
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#") || line == "":
		case strings.Contains(line, "mempool"):
			without++
		default:
			require.Equal(t, 2, have[line], "cases for %q", line)
			found++
		}
	}
	require.Equal(t, 480, found)
	require.Equal(t, 270, without)
}

func TestCaseNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range allCases([]uint64{8}) {
		require.False(t, seen[c.Name()], c.Name())
		seen[c.Name()] = true
	}
}

func TestSizesAreChecked(t *testing.T) {
	for _, sizes := range [][]harness.Size{{8, 0}, {8, 8}, {1 << 60}} {
		_, err := cases(&stage{}, sizes)
		require.ErrorContains(t, err, "--sizes")
	}
}

func TestCasesAreListed(t *testing.T) {
	var out, errs bytes.Buffer
	require.Zero(t, run([]string{"--list"}, &out, &errs), errs.String())
	caselist.Check(t, "rmacuda", out.String())
}
