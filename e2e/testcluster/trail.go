// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
)

// TrailLine is a line of the audit trail (docs/operations.md#audit-trail), by key. The key
// "message" has what was done.
type TrailLine map[string]string

var (
	trailMessage = regexp.MustCompile(`\] "Audit: ([^"]+)"`)
	trailValue   = regexp.MustCompile(` (\w+)=("(?:[^"\\]|\\.)*"|\S+)`)
)

// Trail returns the lines of the audit trail that a component has logged and that match.
func Trail(t testing.TB, component *controlplane.Component, match func(TrailLine) bool) []TrailLine {
	t.Helper()
	data, err := os.ReadFile(component.LogPath())
	require.NoError(t, err)
	var lines []TrailLine
	for text := range strings.SplitSeq(string(data), "\n") {
		message := trailMessage.FindStringSubmatch(text)
		if message == nil {
			continue
		}
		line := TrailLine{"message": message[1]}
		for _, value := range trailValue.FindAllStringSubmatch(text, -1) {
			line[value[1]] = value[2]
			if unquoted, err := strconv.Unquote(value[2]); err == nil {
				line[value[1]] = unquoted
			}
		}
		if match(line) {
			lines = append(lines, line)
		}
	}
	return lines
}
