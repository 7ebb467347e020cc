package cuda_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/stretchr/testify/require"
)

// TestErrorsMatch: an error of a call, wrapped or not, matches the raw result
// and the sentinel, and never needs to be equal to either.
func TestErrorsMatch(t *testing.T) {
	for _, c := range []struct {
		result   cuda.Result
		sentinel error // nil: none
	}{
		{cuda.ErrorInvalidValue, nil},
		{cuda.ErrorOutOfMemory, nil},
		{cuda.ErrorNotReady, nil},
		{cuda.ErrorNotSupported, cuda.ErrNotSupported},
		{cuda.Result(4711), nil},
	} {
		err := cuda.Err("cuMemAlloc", c.result)
		for _, err := range []error{err, fmt.Errorf("allocate: %w", err)} {
			require.False(t, err == error(c.result), "an error says more than its code")
			require.ErrorIs(t, err, c.result)
			require.NotErrorIs(t, err, cuda.ErrorUnknown)
			require.Equal(t, c.sentinel != nil, errors.Is(err, cuda.ErrNotSupported))
			require.NotErrorIs(t, err, cuda.ErrNoDriver)
			var call *cuda.CallError
			require.ErrorAs(t, err, &call)
			require.Equal(t, "cuMemAlloc", call.Call)
			var result cuda.Result
			require.ErrorAs(t, err, &result)
			require.Equal(t, c.result, result)
		}
	}
	require.NoError(t, cuda.Err("cuMemAlloc", cuda.Success))
}

func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{cuda.ErrorInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
		{cuda.Result(4711), "CUresult 4711"},
		{cuda.Err("cuMemFree", cuda.ErrorNotPermitted), "cuMemFree: CUDA_ERROR_NOT_PERMITTED (800)"},
		{cuda.Err("cuMemFree", 4711), "cuMemFree: CUresult 4711 (4711)"},
		{&cuda.CallError{Call: "cuMemMap", Result: cuda.ErrorNotSupported, Detail: "no symbol cuMemMap"},
			"cuMemMap: CUDA_ERROR_NOT_SUPPORTED (801): no symbol cuMemMap"},
	} {
		require.EqualError(t, c.err, c.want)
	}
}
