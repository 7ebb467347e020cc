// Package caselist compares the cases of the programs with the checked-in list
// of all of them, mpitests/testdata/cases.txt, so that none leaves the suite
// unseen. The list has a line "PROGRAM CASE" for each, in the order in which
// they run. After a wanted change: go test ./mpitests/... -args -update-cases
package caselist

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// file is the list as a program's package sees it.
const file = "../testdata/cases.txt"

var update = flag.Bool("update-cases", false, "write what the programs list into "+file)

// Check fails the test unless listed, what the program has printed for --list,
// is what the checked-in list says of the program.
func Check(t *testing.T, program, listed string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	var want, others strings.Builder
	for line := range strings.Lines(string(raw)) {
		if name, found := strings.CutPrefix(line, program+" "); found {
			want.WriteString(name)
		} else {
			others.WriteString(line)
		}
	}
	if *update && want.String() != listed {
		for name := range strings.Lines(listed) {
			others.WriteString(program + " " + name)
		}
		require.NoError(t, os.WriteFile(file, []byte(others.String()), 0o644))
		return
	}
	if diff := cmp.Diff(strings.Split(want.String(), "\n"), strings.Split(listed, "\n")); diff != "" {
		t.Fatalf("%s has other cases than %s (-want +got):\n%s", program, file, diff)
	}
}
