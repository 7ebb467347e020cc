//go:build !cgo

package libcuda

import (
	"errors"

	"github.com/gpurma/gpurma/cuda"
)

// Open always fails in a program built without cgo.
func Open() (cuda.Driver, error) {
	return nil, noDriver(errors.New("this program was built without cgo and cannot call "+defaultLibrary),
		"build it with CGO_ENABLED=1 and a C compiler")
}
