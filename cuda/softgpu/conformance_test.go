package softgpu_test

import (
	"testing"
	"time"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/drivertest"
	"github.com/gpurma/gpurma/cuda/softgpu"
	"github.com/gpurma/gpurma/cuda/softgpu/softgputest"
)

func TestMain(m *testing.M) {
	childMain()
	drivertest.Main(m, openFromEnv)
}

func openFromEnv() (cuda.Driver, error) {
	cfg, err := softgpu.ConfigFromEnv()
	if err != nil {
		return nil, err
	}
	return softgpu.Open(cfg)
}

// TestConformance runs the suite as a GPU would run it: the same tests, the
// same expectations, smaller sizes. Copies last a random time.
func TestConformance(t *testing.T) {
	delay := softgpu.Delay{Min: 100 * time.Microsecond, Max: time.Millisecond}
	open := func(tb testing.TB) (cuda.Driver, []string) {
		drv := softgputest.New(tb, func(cfg *softgpu.Config) {
			cfg.CopyDelay = delay
		})
		return drv, softgpu.Config{Node: drv.NodePath(), CopyDelay: delay}.Env()
	}
	drivertest.Run(t, open, drivertest.Options{
		Size:     1 << 30, // sparse: the suite touches 4 MiB of it
		CopySize: 8 << 20,
		Copies:   16,
	})
}
