package drivers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// DeviceRootVariable names the environment variable that replaces /dev in the
// search for device nodes. Tests use it to play a GPU host on any machine.
const DeviceRootVariable = "GPURMA_DEV_ROOT"

func deviceRoot() string {
	if root := os.Getenv(DeviceRootVariable); root != "" {
		return root
	}
	return "/dev"
}

// deviceNodes matches the names of the NVIDIA driver's control node, of its
// devices, and of the one node that stands for them under WSL. nvidia-uvm and
// the like do not count: they can be there without a GPU.
var deviceNodes = regexp.MustCompile(`^(nvidiactl|nvidia[0-9]+|dxg)$`)

// DeviceNode returns the path of an NVIDIA device node of this host, or "" where
// there is none. A host that cannot be looked at is an error, not one without.
func DeviceNode() (string, error) {
	root := deviceRoot()
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for NVIDIA device nodes: %w", err)
	}
	for _, entry := range entries {
		if deviceNodes.MatchString(entry.Name()) {
			return filepath.Join(root, entry.Name()), nil
		}
	}
	return "", nil
}
