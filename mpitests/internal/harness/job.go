package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpurma/gpurma/cuda"
	"github.com/gpurma/gpurma/mpitests/internal/mpi"
)

// job is one run of a program, as one rank sees it.
type job struct {
	program  Program
	settings *Settings
	args     []string
	world    *mpi.World
	stdout   io.Writer
	stderr   io.Writer

	driver  cuda.Driver
	device  cuda.Device
	primary cuda.Context
	logs    *logs
	dog     *watchdog
	report  *report     // on the root; nil elsewhere
	over    atomic.Bool // all verdicts are known
	node    string      // the emulated GPUs of this job, if it made some
}

func (j *job) root() bool { return j.world.Rank() == mpi.Root }

// run returns the exit status, the same on all ranks.
func (j *job) run(cases []Case) int {
	debug.SetTraceback("all") // a panic shows every goroutine of its rank
	j.stdout = &lockedWriter{w: j.stdout}
	j.logs = &logs{}
	if j.settings.Verbose {
		j.logs.live = j.stdout
	}
	slog.SetDefault(slog.New(&handler{logs: j.logs}))
	j.dog = &watchdog{world: j.world, stderr: j.stderr, grace: grace}
	dumpOnSignal(j.stderr, j.world.Rank(), j.over.Load)
	defer j.over.Store(true)
	if code := j.begin(); code != exitPassed {
		j.over.Store(true)
		if err := j.end(); err != nil {
			fmt.Fprintf(j.stderr, "# rank %d: end: %v\n", j.world.Rank(), err)
		}
		return j.agree(code)
	}
	if verdict := j.stage("setup", j.program.Setup); verdict == Pass {
		for _, c := range cases {
			j.runCase(c)
		}
	} else if j.root() {
		j.report.notRun(cases, verdict)
	}
	j.stage("teardown", j.program.Teardown)
	code := exitPassed
	if err := j.end(); err != nil {
		fmt.Fprintf(j.stderr, "# rank %d: end: %v\n", j.world.Rank(), err)
		code = exitFailed
	}
	code = j.agree(code)
	j.over.Store(true)
	if j.root() {
		code = j.report.close(code)
	}
	defer j.dog.watch("the last word", j.startLimit(), nil)()
	return j.agree(code)
}

// agree returns the worst of all ranks' codes, on all of them.
func (j *job) agree(code int) int {
	ctx := context.Background() // a rank that is gone ends the job
	all, err := j.world.Gather(ctx, []byte{byte(code)})
	var worst byte
	for _, b := range all {
		// A failure outweighs the other statuses.
		if worst == exitPassed || b[0] == exitFailed {
			worst = b[0]
		}
	}
	answer, err2 := j.world.Broadcast(ctx, []byte{worst})
	if errors.Join(err, err2) != nil {
		return exitFailed
	}
	return int(answer[0])
}

// stage runs setup or teardown as a case, which is reported only where it did
// not pass, and returns its verdict on all ranks.
func (j *job) stage(name string, run func(context.Context, *Rank) error) Verdict {
	if run == nil {
		return Pass
	}
	verdict := j.runCase(Case{Name: name, Run: run})
	answer, err := j.world.Broadcast(context.Background(), []byte(verdict))
	if err != nil {
		return Fail
	}
	return Verdict(answer)
}

// runCase runs c on every pair and reports it. The verdict is the root's to
// know.
func (j *job) runCase(c Case) Verdict {
	ctx := context.Background()
	if j.root() {
		j.report.start(c)
	}
	began := time.Now()
	var mine outcome
	if pairs := j.world.Size() / 2; j.program.InTurn && pairs > 1 {
		for turn := range pairs {
			if j.world.Rank()/2 == turn {
				mine = j.runHere(c)
			}
			if err := j.world.Barrier(ctx); err != nil {
				mine.Verdict, mine.Reason = Fail, err.Error()
			}
		}
	} else {
		mine = j.runHere(c)
	}
	message, err := json.Marshal(mine)
	if err != nil { // a reading that JSON cannot express: a mistake in the program
		message, _ = json.Marshal(outcome{Rank: mine.Rank, Verdict: Fail, Reason: err.Error()})
	}
	gathered, err := j.world.Gather(ctx, message)
	if err != nil || !j.root() {
		return mine.Verdict
	}
	all := make([]outcome, len(gathered))
	for i, b := range gathered {
		if err := json.Unmarshal(b, &all[i]); err != nil {
			all[i] = outcome{Rank: i, Verdict: Fail, Reason: err.Error()}
		}
	}
	return j.report.finished(c, all, time.Since(began))
}

// runHere runs c on this rank, in step with the other rank of the pair.
func (j *job) runHere(c Case) outcome {
	limit := j.settings.Timeout
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var expired atomic.Bool
	// The goroutines are printed before the case learns that its time is over,
	// while they show what it waits for.
	defer j.dog.watch("case "+c.Name, limit, func() {
		expired.Store(true)
		cancel(fmt.Errorf("not done within --timeout %s: %w", limit, context.DeadlineExceeded))
	})()
	r := &Rank{
		Settings: j.settings, Driver: j.driver, Device: j.device, Primary: j.primary,
		Log: slog.New(&handler{logs: j.logs}), ctx: ctx, world: j.world, readings: map[string]any{},
	}
	r.peerExpired = func() {
		if !expired.Swap(true) {
			j.dog.dump("case " + c.Name + " has not ended in time on the other rank")
		}
	}
	if j.settings.Verbose {
		r.live = j.stdout
	}
	stack, err := protect(func() error { return c.Run(ctx, r) })
	r.notes = append(r.notes, stack...)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = errors.Join(err, cause)
	}
	if lines := j.logs.take(); len(lines) > 0 {
		r.notes = append(r.notes, lines...)
		if !c.Logs {
			err = errors.Join(err, fmt.Errorf("the library logged: %s", strings.Join(lines, "; ")))
		}
	}
	verdict, reason := judge(err)
	o := outcome{Rank: j.world.Rank(), Verdict: verdict, Reason: reason, Remark: r.remark, Notes: r.notes, Readings: r.readings, Expired: expired.Load()}
	r.finish(o)
	return o
}

// protect turns a panic into an error and the lines of its stack: the other
// cases may tell more.
func protect(run func() error) (stack []string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			stack = strings.Split(strings.TrimSpace(string(debug.Stack())), "\n")
		}
	}()
	return nil, run()
}

// lockedWriter lets goroutines share a writer.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// removeNode removes what a crashed process of the job left of its GPUs; the
// last one to leave has removed the rest.
func (j *job) removeNode() error {
	if j.node == "" || !j.root() {
		return nil
	}
	return os.RemoveAll(j.node)
}
