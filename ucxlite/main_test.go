package ucxlite

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childRole names what a re-exec of this test binary does instead of testing.
const childRole = "UCXLITE_TEST_ROLE"

// roles are the things a child process can be.
var roles = map[string]func() error{}

func TestMain(m *testing.M) {
	if name := os.Getenv(childRole); name != "" {
		os.Unsetenv(childRole)
		if err := roles[name](); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
