package harness

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/cuda/drivers"
	"github.com/gpurma/gpurma/cuda/softgpu"
)

// jobDevices is how many devices the node of a job has where nobody says: two,
// so that no case of several devices is ever skipped.
const jobDevices = "2"

// begin opens the driver on all ranks and prints the head of the output. It
// returns the status to exit with, exitPassed to go on.
func (j *job) begin() int {
	ctx := context.Background()
	defer j.dog.watch("the start", j.startLimit(), nil)()
	if j.root() {
		var err error
		if j.report, err = newReport(j); err != nil {
			fmt.Fprintf(j.stderr, "%s: %v\n", j.program.Name, err)
			return j.agree(exitUsage)
		}
	}
	if code := j.agree(exitPassed); code != exitPassed {
		return code
	}
	// The seed that the root has chosen, where the command line did not.
	seed, err := j.world.Broadcast(ctx, strconv.AppendUint(nil, j.settings.Seed, 10))
	if err == nil {
		j.settings.Seed, err = strconv.ParseUint(string(seed), 10, 64)
	}
	mine := j.describe()
	if err = errors.Join(err, j.open(ctx)); err != nil {
		mine.Error = err.Error()
		// auto without a GPU is the emulator, and its failure is a failure.
		mine.NoGPU = errors.Is(err, cuda.ErrNoDriver) && j.settings.Driver == drivers.LibCUDA
	} else {
		mine.describeDriver(j.driver, j.device)
	}
	message, err := json.Marshal(mine)
	if err != nil {
		message = nil
	}
	gathered, err := j.world.Gather(ctx, message)
	code := exitPassed
	if err != nil {
		code = exitFailed
	} else if j.root() {
		code = j.report.head(gathered)
	}
	return j.agree(code)
}

// open opens the driver and retains the primary context of this rank's device.
func (j *job) open(ctx context.Context) error {
	if err := j.makeNode(ctx); err != nil {
		return err
	}
	var err error
	if j.driver, err = drivers.Open(j.settings.Driver); err != nil {
		return fmt.Errorf("open driver: %w", err)
	}
	n, err := j.driver.DeviceGetCount()
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("%w: %s shows no device", cuda.ErrNoDriver, j.driver.Name())
	}
	j.device = cuda.Device(j.settings.Device)
	if j.settings.Device < 0 {
		j.device = cuda.Device(j.world.Rank() % n)
	}
	if int(j.device) >= n {
		return fmt.Errorf("--device %d: found %d device(s)", j.device, n)
	}
	if j.primary, err = j.driver.DevicePrimaryCtxRetain(j.device); err != nil {
		return fmt.Errorf("primary context of device %d: %w", j.device, err)
	}
	return nil
}

// makeNode gives the job emulated GPUs of its own, unless the environment names
// some: two jobs on a machine do not see each other's memory (scenario P14).
func (j *job) makeNode(ctx context.Context) error {
	var path string
	if j.root() && os.Getenv(softgpu.EnvNode) == "" && j.settings.Driver != drivers.LibCUDA {
		var unique [8]byte
		if _, err := rand.Read(unique[:]); err != nil {
			return err
		}
		name := fmt.Sprintf("softgpu-%d-job-%s", os.Geteuid(), hex.EncodeToString(unique[:]))
		path = filepath.Join(softgpu.DefaultParent(), name)
	}
	answer, err := j.world.Broadcast(ctx, []byte(path))
	if err != nil || len(answer) == 0 {
		return err
	}
	j.node = string(answer)
	if os.Getenv(softgpu.EnvDevices) == "" {
		err = os.Setenv(softgpu.EnvDevices, jobDevices)
	}
	return errors.Join(err, os.Setenv(softgpu.EnvNode, j.node))
}

// startLimit is how long the job may take to begin, and to end.
func (j *job) startLimit() time.Duration { return max(j.settings.Timeout, time.Minute) }

// end gives back what open took.
func (j *job) end() error {
	defer j.dog.watch("the end", j.startLimit(), nil)()
	var errs []error
	if j.driver != nil {
		if j.primary != 0 {
			errs = append(errs, j.driver.DevicePrimaryCtxRelease(j.device))
		}
		errs = append(errs, j.driver.Close())
	}
	errs = append(errs, j.world.Barrier(context.Background()), j.removeNode())
	return errors.Join(errs...)
}
