// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package audittest collects the audit trail of a test.
package audittest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/base/audit"
)

// Log collects all log lines, at any verbosity.
type Log struct {
	logger klog.Logger
	taken  int
}

// NewLog returns an empty Log.
func NewLog() *Log {
	return &Log{logger: ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(10)))}
}

// Logger returns the logger that writes to l.
func (l *Log) Logger() klog.Logger { return l.logger }

// Context returns ctx with a logger that writes to l.
func (l *Log) Context(ctx context.Context) context.Context { return klog.NewContext(ctx, l.logger) }

func (l *Log) entries() []ktesting.LogEntry {
	return l.logger.GetSink().(ktesting.Underlier).GetBuffer().Data()
}

// Text returns all that was logged.
func (l *Log) Text() string {
	return l.logger.GetSink().(ktesting.Underlier).GetBuffer().String()
}

// Line is a line of the audit trail.
type Line struct {
	Action audit.Action
	Values map[string]any
}

// String returns the line as documented, with the request id replaced by ID.
func (l Line) String() string {
	var text strings.Builder
	text.WriteString(string(l.Action))
	for _, key := range audit.Keys {
		value, found := l.Values[key]
		if !found {
			continue
		}
		if key == audit.KeyRequestID {
			value = "ID"
		}
		fmt.Fprintf(&text, " %s=%v", key, value)
	}
	return text.String()
}

// RequestID returns the request id of the line.
func (l Line) RequestID() string {
	id, _ := l.Values[audit.KeyRequestID].(string)
	return id
}

// Take returns the lines of the audit trail since the last call.
func (l *Log) Take() []Line {
	var lines []Line
	entries := l.entries()
	for _, entry := range entries[l.taken:] {
		if !strings.HasPrefix(entry.Message, "Audit: ") || entry.Verbosity != 0 {
			continue
		}
		line := Line{Action: audit.Action(entry.Message), Values: map[string]any{}}
		for _, list := range [][]any{entry.WithKVList, entry.ParameterKVList} {
			for i := 0; i+1 < len(list); i += 2 {
				line.Values[fmt.Sprint(list[i])] = list[i+1]
			}
		}
		lines = append(lines, line)
	}
	l.taken = len(entries)
	return lines
}

// Expect compares the lines since the last call, and returns them.
func (l *Log) Expect(t testing.TB, want ...string) []Line {
	t.Helper()
	lines := l.Take()
	got := make([]string, len(lines))
	for i, line := range lines {
		got[i] = line.String()
	}
	if want == nil {
		want = []string{}
	}
	assert.Equal(t, want, got, "the audit trail")
	return lines
}
