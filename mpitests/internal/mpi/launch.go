package mpi

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// sizeVariables are where launchers say how many processes they started. What
// an allocation says (SLURM_NTASKS) is not among them: it is set in shells too.
var sizeVariables = []string{
	"OMPI_COMM_WORLD_SIZE", // Open MPI's mpirun, prterun
	"PMI_SIZE",             // MPICH, Intel MPI, Slurm with PMI
	"MV2_COMM_WORLD_SIZE",
	"SLURM_STEP_NUM_TASKS", // srun
}

// LaunchedSize is how many processes the launcher says it has started, and the
// variable that says so; 0 where none does.
func LaunchedSize() (n int, variable string) {
	for _, name := range sizeVariables {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
			return n, name
		}
	}
	return 0, ""
}

// CheckLaunch returns an error where the launcher and the MPI library do not
// belong together: the library sees fewer processes than were started (scenario
// P12).
func (w *World) CheckLaunch() error {
	launched, variable := LaunchedSize()
	if launched <= w.size {
		return nil
	}
	return fmt.Errorf("the launcher started %d processes (%s), but MPI in this one sees a job of %d: "+
		"mpirun and %s (%s) are of different MPIs", launched, variable, w.size, LibraryPath(), LibraryVersion())
}

// LibraryPath is the file of the MPI library that this process has loaded;
// "unknown" where it cannot be seen.
func LibraryPath() string {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return "unknown"
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		_, path, found := strings.Cut(lines.Text(), "/")
		if base := path[strings.LastIndexByte(path, '/')+1:]; found && strings.HasPrefix(base, "libmpi.so") {
			return "/" + path
		}
	}
	return "unknown"
}
