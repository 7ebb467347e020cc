package harness

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// logs collects what the library logs at warning level and above, and with
// live prints everything.
type logs struct {
	mu    sync.Mutex
	lines []string
	live  io.Writer // nil for none
}

// take returns the lines since the last call.
func (l *logs) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

func (l *logs) write(line string, count bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if count {
		l.lines = append(l.lines, line)
	}
	if l.live != nil {
		fmt.Fprintln(l.live, "#   log: "+line)
	}
}

// handler is the slog.Handler of one logger; all of them fill one logs.
type handler struct {
	logs   *logs
	prefix string // groups
	attrs  string // of With, as text
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.logs.live != nil
}

func (h *handler) Handle(_ context.Context, record slog.Record) error {
	var b strings.Builder
	b.WriteString(record.Level.String() + " " + record.Message + h.attrs)
	record.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s%s=%v", h.prefix, a.Key, a.Value)
		return true
	})
	h.logs.write(b.String(), record.Level >= slog.LevelWarn)
	return nil
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	for _, a := range attrs {
		with.attrs += fmt.Sprintf(" %s%s=%v", h.prefix, a.Key, a.Value)
	}
	return &with
}

func (h *handler) WithGroup(name string) slog.Handler {
	with := *h
	with.prefix += name + "."
	return &with
}
