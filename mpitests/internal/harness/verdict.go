package harness

import (
	"errors"
	"fmt"
	"strings"
)

// Verdict is how a case ended.
type Verdict string

// The verdicts. Inconclusive counts as failed: the check itself could not be
// trusted.
const (
	Pass         Verdict = "PASS"
	Fail         Verdict = "FAIL"
	Skip         Verdict = "SKIP"
	Inconclusive Verdict = "INCONCLUSIVE"
)

// verdictError is an error that is not a failure.
type verdictError struct {
	verdict Verdict
	reason  string
}

func (e *verdictError) Error() string { return e.reason }

// Skipf says that this machine cannot run a case: what was found, what is
// needed.
func Skipf(format string, args ...any) error {
	return &verdictError{Skip, fmt.Sprintf(format, args...)}
}

// Inconclusivef says that a case proves nothing: its control did not show what
// it must, or somebody else disturbed the measurement.
func Inconclusivef(format string, args ...any) error {
	return &verdictError{Inconclusive, fmt.Sprintf(format, args...)}
}

// outcome is how a case ended on one rank.
type outcome struct {
	Rank     int            `json:"rank"`
	Verdict  Verdict        `json:"verdict"`
	Reason   string         `json:"reason,omitempty"`
	Remark   string         `json:"remark,omitempty"`
	Notes    []string       `json:"notes,omitempty"`
	Readings map[string]any `json:"readings,omitempty"`
	Expired  bool           `json:"expired,omitempty"` // its time was over
}

// judge turns a case's error into a verdict. Where errors were joined, a failure
// among them decides.
func judge(err error) (Verdict, string) {
	if err == nil {
		return Pass, ""
	}
	verdict := Verdict("")
	for _, e := range leaves(err) {
		v := Fail
		var other *verdictError
		if errors.As(e, &other) {
			v = other.verdict
		}
		switch {
		case v == Fail, verdict == "":
			verdict = v
		case v == Inconclusive && verdict == Skip:
			verdict = v
		}
	}
	return verdict, err.Error()
}

// leaves lists the errors that errors.Join put together, also below what wraps
// them.
func leaves(err error) []error {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		if joined, ok := inner.(interface{ Unwrap() []error }); ok {
			var all []error
			for _, e := range joined.Unwrap() {
				all = append(all, leaves(e)...)
			}
			return all
		}
	}
	return []error{err}
}

// combine makes one verdict of all ranks'. A failure is a failure wherever it
// happened; a case that some ranks skipped and others passed has proven nothing
// on either, and that is a failure too.
func combine(all []outcome) (Verdict, string) {
	count := map[Verdict]int{}
	for _, o := range all {
		count[o.Verdict]++
	}
	switch {
	case count[Pass] == len(all):
		return Pass, ""
	case count[Fail] > 0:
		return Fail, reasons(all, count[Fail] < len(all))
	case count[Inconclusive] > 0:
		return Inconclusive, reasons(all, false)
	case count[Skip] == len(all):
		return Skip, reasons(all, false)
	}
	return Fail, "the ranks disagree: " + reasons(all, true)
}

// reasons names each rank's reason, and with everyone also the ranks that have
// none. One reason that several ranks have stands once.
func reasons(all []outcome, everyone bool) string {
	var parts []string
	for i, o := range all {
		if o.Reason == "" && !everyone {
			continue
		}
		if i > 0 && o.Reason != "" && o.Reason == all[i-1].Reason && o.Verdict == all[i-1].Verdict {
			continue
		}
		text := fmt.Sprintf("rank %d: %s", o.Rank, o.Verdict)
		if o.Reason != "" {
			text += ": " + strings.ReplaceAll(o.Reason, "\n", "; ")
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " | ")
}
