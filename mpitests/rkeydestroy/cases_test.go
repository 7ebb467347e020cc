package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpurma/gpurma/mpitests/internal/caselist"
)

func list(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	require.Zero(t, run(append([]string{"--list"}, args...), &out, &errs), errs.String())
	return out.String()
}

func TestCasesAreListed(t *testing.T) { caselist.Check(t, "rkeydestroy", list(t)) }

// The policy that must make the checks fail has the same cases, under its name.
func TestLeakHasTheSameCases(t *testing.T) {
	require.Equal(t, strings.ReplaceAll(list(t), "/free\n", "/leak\n"), list(t, "--policy", "leak"))
}
