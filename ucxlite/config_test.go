package ucxlite

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfigFromEnv(t *testing.T) {
	var log bytes.Buffer
	c, err := configFrom([]string{
		"HOME=/", "UCXLITE_POLICY=retain", "UCXLITE_WIREUP_DELAY=250ms", "UCXLITE_REQUIRE_IPC=y",
		"UCXLITE_STAGED_SLOTS=4", "UCXLITE_POLYCI=free",
	}, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	require.Equal(t, Retain, c.Policy)
	require.Equal(t, 250*time.Millisecond, c.WireupDelay)
	require.True(t, c.RequireIPC)
	require.Equal(t, 4, c.StagedSlots)
	require.Contains(t, log.String(), "UCXLITE_POLYCI")
	require.Contains(t, log.String(), "nearest=UCXLITE_POLICY")

	for _, bad := range []string{"UCXLITE_POLICY=leak", "UCXLITE_WIREUP_TIMEOUT=5", "UCXLITE_STAGED_SLOTS=65", "UCXLITE_REQUIRE_IPC=maybe"} {
		_, err := configFrom([]string{bad}, slog.Default())
		require.ErrorIs(t, err, ErrInvalidParam, bad)
		require.ErrorContains(t, err, strings.Split(bad, "=")[0])
	}
}

// What String prints, the environment accepts.
func TestConfigPrints(t *testing.T) {
	want := DefaultConfig()
	want.Policy, want.StagedSlotSize = Retain, 8192
	var env []string
	for line := range strings.Lines(want.String()) {
		kv, _, _ := strings.Cut(line, " #")
		env = append(env, kv)
	}
	require.Len(t, env, len(variables))
	got, err := configFrom(env, slog.Default())
	require.NoError(t, err)
	require.Equal(t, want, got)
}
