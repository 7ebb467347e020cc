package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpurma/gpurma/cuda/drivers"
)

// report is the root's output: lines for people, and files for programs.
type report struct {
	program  Program
	settings *Settings
	args     []string
	ranks    int
	stdout   io.Writer
	json     *os.File // nil for none
	progress *os.File
	driver   string

	count map[Verdict]int
	bad   []string // lines to repeat at the end
	wrote error    // the first failure to write a file
}

func newReport(j *job) (*report, error) {
	r := &report{program: j.program, settings: j.settings, args: j.args, ranks: j.world.Size(),
		stdout: j.stdout, count: map[Verdict]int{}}
	var err error
	if path := j.settings.JSON; path != "" {
		if r.json, err = os.Create(path); err != nil {
			return nil, fmt.Errorf("--json: %w", err)
		}
	}
	if path := j.settings.Progress; path != "" {
		if r.progress, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return nil, fmt.Errorf("--progress: %w", err)
		}
	}
	return r, nil
}

func (r *report) printf(format string, args ...any) { fmt.Fprintf(r.stdout, format, args...) }

// head prints who runs where and returns the status to exit with.
func (r *report) head(gathered [][]byte) int {
	all := make([]description, len(gathered))
	noGPU := false
	r.printf("# %s, %d ranks, seed %d\n", r.program.Name, r.ranks, r.settings.Seed)
	for i, b := range gathered {
		if err := json.Unmarshal(b, &all[i]); err != nil {
			all[i] = description{Rank: i, Error: err.Error()}
		}
		noGPU = noGPU || all[i].NoGPU
		for _, line := range all[i].lines() {
			r.printf("# %s\n", line)
		}
	}
	r.driver = all[0].Driver
	reasons := complaints(all)
	if len(reasons) == 0 {
		return exitPassed
	}
	// Without a GPU there is nothing to run; a host that has one, or must have
	// one, and whose driver cannot be opened is broken.
	node, _ := drivers.DeviceNode()
	if required, err := drivers.GPURequired(); noGPU && node == "" && !required && err == nil {
		r.printf("SKIP  %s: %s\n", r.program.Name, strings.Join(reasons, " | "))
		r.printf("0 passed, 0 failed, 1 skipped\n")
		return exitNothingRan
	}
	r.printf("FAIL  %s: %s\n", r.program.Name, strings.Join(reasons, " | "))
	r.printf("0 passed, 1 failed, 0 skipped\n")
	return exitFailed
}

func (r *report) start(c Case) {
	r.note("start " + c.Name)
	if r.settings.Verbose {
		r.printf("# %s ...\n", c.Name)
	}
}

func (r *report) note(line string) {
	if r.progress != nil {
		_, err := fmt.Fprintln(r.progress, line)
		r.wrote = errors.Join(r.wrote, err)
	}
}

// isStage tells setup and teardown, which count only where they did not pass.
func isStage(c Case) bool { return c.Name == "setup" || c.Name == "teardown" }

// finished prints a case's verdict and returns it.
func (r *report) finished(c Case, all []outcome, took time.Duration) Verdict {
	verdict, reason := combine(all)
	r.note("end " + string(verdict) + " " + c.Name)
	if isStage(c) && verdict == Pass {
		return verdict
	}
	r.count[verdict]++
	line := r.line(c, verdict, reason, all, took)
	r.printf("%s\n", line)
	var notes []string
	for _, o := range all {
		for _, n := range o.Notes {
			notes = append(notes, fmt.Sprintf("#   rank %d: %s", o.Rank, n))
		}
	}
	bad := verdict == Fail || verdict == Inconclusive
	if len(notes) > 0 && (bad || r.program.Readings && !r.settings.Verbose) {
		r.printf("%s\n", strings.Join(notes, "\n"))
	}
	if bad {
		lines := slices.Concat([]string{line}, notes, []string{"  again: " + r.again(c)})
		for _, l := range lines {
			r.note("repeat " + l)
		}
		r.bad = append(r.bad, lines...)
	}
	r.writeJSON(c, verdict, reason, all, took)
	return verdict
}

func (r *report) line(c Case, verdict Verdict, reason string, all []outcome, took time.Duration) string {
	var b strings.Builder
	if c.Title != "" {
		fmt.Fprintf(&b, "%s: %s", c.Title, verdict)
	} else {
		fmt.Fprintf(&b, "%-12s  %-40s", verdict, c.Name)
	}
	if verdict != Pass && reason != "" {
		fmt.Fprintf(&b, " (%s)", reason)
	}
	for _, o := range all {
		if o.Remark != "" {
			b.WriteString("  " + o.Remark)
		}
	}
	if c.Title != "" {
		fmt.Fprintf(&b, "  # %s", c.Name)
	}
	fmt.Fprintf(&b, "  %.2f s", took.Seconds())
	return b.String()
}

func (r *report) writeJSON(c Case, verdict Verdict, reason string, all []outcome, took time.Duration) {
	if r.json == nil {
		return
	}
	line, err := json.Marshal(struct {
		Program string    `json:"program"`
		Case    string    `json:"case"`
		Title   string    `json:"title,omitempty"`
		Driver  string    `json:"driver"`
		Policy  string    `json:"policy"`
		Seed    uint64    `json:"seed"`
		Verdict Verdict   `json:"verdict"`
		Reason  string    `json:"reason,omitempty"`
		Seconds float64   `json:"seconds"`
		Ranks   []outcome `json:"ranks"`
	}{r.program.Name, c.Name, c.Title, r.driver, r.settings.Policy, r.settings.Seed, verdict, reason, took.Seconds(), all})
	if err == nil {
		_, err = r.json.Write(append(line, '\n'))
	}
	r.wrote = errors.Join(r.wrote, err)
}

// notRun counts the cases that a failed setup leaves out.
func (r *report) notRun(cases []Case, setup Verdict) {
	r.printf("# setup did not pass: %d cases not run\n", len(cases))
	if setup == Skip {
		r.count[Skip] += len(cases) - 1 // setup itself stands for one
	}
}

// again is the command that runs one case alone, with the same choices.
func (r *report) again(c Case) string {
	launch := os.Getenv("GPURMA_LAUNCH")
	if launch == "" {
		launch = fmt.Sprintf("mpirun -mca plm isolated -np %d", r.ranks)
	}
	words := []string{launch, quote(os.Args[0])}
	for i := 0; i < len(r.args); i++ {
		name, _, joined := strings.Cut(r.args[i], "=")
		switch name {
		case "--run", "--seed", "--after", "--progress", "--json":
			if !joined {
				i++
			}
			continue
		}
		words = append(words, quote(r.args[i]))
	}
	if !isStage(c) {
		words = append(words, "--run", quote("^"+regexp.QuoteMeta(c.Name)+"$"))
	}
	return strings.Join(append(words, "--seed", fmt.Sprint(r.settings.Seed)), " ")
}

// quote makes one shell word of s.
func quote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=/.,:+") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// close prints the end of the output, where the last lines tell everything, and
// returns the job's status. code is what the ranks' own ends came to.
func (r *report) close(code int) int {
	if code != exitPassed {
		r.count[Fail]++
		r.bad = append(r.bad, "FAIL          the end of a rank; see its message above")
	}
	for _, f := range []*os.File{r.json, r.progress} {
		if f != nil {
			r.wrote = errors.Join(r.wrote, f.Close())
		}
	}
	if r.wrote != nil {
		r.count[Fail]++
		r.bad = append(r.bad, "FAIL          writing a report: "+r.wrote.Error())
	}
	if len(r.bad) > 0 {
		r.printf("# failed:\n%s\n", strings.Join(r.bad, "\n"))
	}
	failed := r.count[Fail] + r.count[Inconclusive]
	r.printf("%d passed, %d failed, %d skipped\n", r.count[Pass], failed, r.count[Skip])
	switch {
	case failed > 0:
		return exitFailed
	case r.count[Pass] == 0:
		return exitNothingRan
	}
	return exitPassed
}
