// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
)

// Match selects requests of the audit log.
type Match = func(controlplane.Request) bool

// ByOperator matches the requests of operators.
func ByOperator(r controlplane.Request) bool { return r.User == installation.OperatorUser }

// AuditEnd returns the present end of the audit log.
func (c *Cluster) AuditEnd(t testing.TB) controlplane.Position {
	t.Helper()
	end, err := c.AuditLog().End()
	require.NoError(t, err)
	return end
}

// Requests returns the requests since from that match everything in match.
func (c *Cluster) Requests(t testing.TB, from controlplane.Position, match ...Match) []controlplane.Request {
	t.Helper()
	requests, err := c.AuditLog().Requests(from, all(match))
	require.NoError(t, err)
	return requests
}

// Writes returns the requests for a change since from that match everything in
// match.
func (c *Cluster) Writes(t testing.TB, from controlplane.Position, match ...Match) []controlplane.Write {
	t.Helper()
	writes, err := c.AuditLog().Writes(from, all(match))
	require.NoError(t, err)
	return writes
}

// OperatorRequests returns the requests of operators since from that match
// everything in match. Requests for leases, reviews of tokens and watches, which are renewed at any
// time, are left out.
func (c *Cluster) OperatorRequests(t testing.TB, from controlplane.Position, match ...Match) []controlplane.Request {
	t.Helper()
	return c.Requests(t, from, append(match, ByOperator, notPeriodic)...)
}

// OperatorWrites returns the operators' requests for a change since from that
// match everything in match, other than for leases.
func (c *Cluster) OperatorWrites(t testing.TB, from controlplane.Position, match ...Match) []controlplane.Write {
	t.Helper()
	return c.Writes(t, from, append(match, ByOperator, notPeriodic)...)
}

// UntilNoWrites waits until so many checks in a row, ten a second, find no write that matches,
// other than for leases, so that a measurement does not include effects of the measurement before.
func (c *Cluster) UntilNoWrites(t testing.TB, timeout time.Duration, checks int, match ...Match) {
	t.Helper()
	match = append(match, notPeriodic)
	from, idle := c.AuditEnd(t), 0
	Eventually(t, timeout, "nothing is written", func(context.Context) error {
		writes := c.Writes(t, from, match...)
		if idle++; len(writes) > 0 {
			from, idle = c.AuditEnd(t), 0
		}
		if idle < checks {
			return fmt.Errorf("%d checks without a write, the last writes were%s", idle, Describe(writes))
		}
		return nil
	})
}

func notPeriodic(r controlplane.Request) bool {
	return r.Resource != "leases" && r.Resource != "tokenreviews" && r.Verb != "watch"
}

// Reads returns the reads among the requests of a client other than for leases, without watches.
// It leaves out the list before a watch that was opened again: the resource version of the watch
// before it had expired
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#410-gone-responses).
func Reads(requests []controlplane.Request) []controlplane.Request {
	watched := map[string]time.Time{}
	for _, r := range requests {
		if r.Verb == "watch" && r.Time.After(watched[r.Resource]) {
			watched[r.Resource] = r.Time
		}
	}
	var reads []controlplane.Request
	for _, r := range requests {
		listed := r.Verb == "list" && !r.Time.Before(watched[r.Resource])
		if notPeriodic(r) && (r.Verb == "get" || listed) {
			reads = append(reads, r)
		}
	}
	return reads
}

func all(match []Match) Match {
	return func(r controlplane.Request) bool {
		return !slices.ContainsFunc(match, func(m Match) bool { return !m(r) })
	}
}

// Describe lists requests for a failure message, at most twenty of them.
func Describe(requests []controlplane.Request) string {
	const limit = 20
	var lines strings.Builder
	for i, r := range requests {
		if i == limit {
			fmt.Fprintf(&lines, "\n  and %d more", len(requests)-limit)
			break
		}
		fmt.Fprintf(&lines, "\n  %s %s %s/%s: %d", r.Time.Format(time.TimeOnly), r.Action(), r.Namespace, r.Name, r.Code)
	}
	return lines.String()
}

// CountResources counts the requests for the resources, subresources included.
func CountResources(requests []controlplane.Request, resources ...string) float64 {
	count := 0.0
	for _, r := range requests {
		if slices.Contains(resources, r.Resource) {
			count++
		}
	}
	return count
}

// AuditTrailLine is a line of the audit trail (docs/reference.md#audit-trail), by key. The key
// "message" has what was done.
type AuditTrailLine map[string]string

var (
	trailMessage = regexp.MustCompile(`\] "Audit: ([^"]+)"`)
	trailValue   = regexp.MustCompile(` (\w+)=("(?:[^"\\]|\\.)*"|\S+)`)
)

// AuditTrail returns the lines of the audit trail that a component has logged and that match.
func AuditTrail(t testing.TB, component *controlplane.Component, match func(AuditTrailLine) bool) []AuditTrailLine {
	t.Helper()
	data, err := os.ReadFile(component.LogPath())
	require.NoError(t, err)
	var lines []AuditTrailLine
	for text := range strings.SplitSeq(string(data), "\n") {
		message := trailMessage.FindStringSubmatch(text)
		if message == nil {
			continue
		}
		line := AuditTrailLine{"message": message[1]}
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

// IsDeletion matches requests for the deletion of Nodes and of objects of Cluster API and
// Nstance.
func IsDeletion(r controlplane.Request) bool {
	return slices.Contains([]string{"delete", "deletecollection"}, r.Verb) &&
		slices.Contains([]string{"nodes", "machines", "machinepools", "nstancemachines", "nstanceshardgroups", "nstancemachinepools"}, r.Resource)
}
