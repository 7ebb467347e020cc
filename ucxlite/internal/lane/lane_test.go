package lane

import (
	"testing"

	"github.com/gpurma/gpurma/cudaipc"
	"github.com/stretchr/testify/require"
)

func TestChoose(t *testing.T) {
	legacy := []cudaipc.Handle{{Kind: cudaipc.KindLegacy}}
	both := []cudaipc.Handle{{Kind: cudaipc.KindPosixFD}, {Kind: cudaipc.KindLegacy}}
	bad := map[cudaipc.Kind]string{cudaipc.KindLegacy: "no peer access"}
	badFD := map[cudaipc.Kind]string{cudaipc.KindPosixFD: "no right"}
	for _, c := range []struct {
		name   string
		facts  Facts
		lane   Lane
		kind   cudaipc.Kind
		err    error
		reason string
	}{
		{"same process", Facts{SameProcess: true, RequireIPC: true}, IPC, cudaipc.KindNone, nil, "own"},
		{"legacy", Facts{Handles: legacy}, IPC, cudaipc.KindLegacy, nil, "legacy handle"},
		{"no handle", Facts{}, Staged, cudaipc.KindNone, nil, "no handle can share"},
		{"no handle, ipc only", Facts{RequireIPC: true}, None, cudaipc.KindNone, cudaipc.ErrNotShareable, "no handle can share"},
		{"unreachable", Facts{Handles: legacy, Unreachable: bad}, Staged, cudaipc.KindNone, nil, "no peer access"},
		{"unreachable, ipc only", Facts{Handles: legacy, Unreachable: bad, RequireIPC: true}, None, cudaipc.KindNone, cudaipc.ErrUnreachable, "no peer access"},
		{"another kind unreachable", Facts{Handles: legacy, Unreachable: badFD}, IPC, cudaipc.KindLegacy, nil, ""},
		{"second handle", Facts{Handles: both, Unreachable: badFD}, IPC, cudaipc.KindLegacy, nil, ""},
	} {
		got := Choose(c.facts)
		require.Equal(t, c.lane, got.Lane, c.name)
		require.Equal(t, c.kind, got.Kind, c.name)
		require.Equal(t, c.err, got.Err, c.name)
		require.Contains(t, got.Reason, c.reason, c.name)
	}
}
