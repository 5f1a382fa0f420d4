// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
)

func auditEnd(t testing.TB) controlplane.Position {
	t.Helper()
	end, err := env.AuditLog().End()
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// writesSince are the writes since from that changed something and match.
func writesSince(t testing.TB, from controlplane.Position, match func(controlplane.Write) bool) []controlplane.Write {
	t.Helper()
	writes, err := env.AuditLog().Writes(from, func(w controlplane.Write) bool {
		return w.Code < http.StatusMultipleChoices && w.Resource != "leases" && match(w)
	})
	if err != nil {
		t.Fatal(err)
	}
	return writes
}

func byOperator(r controlplane.Request) bool { return r.User == nstance.OperatorUser }

// nodeChanges are the names of the Nodes of a group that were made and deleted
// since from, each once and sorted. They are those of instances.
func nodeChanges(t testing.TB, from controlplane.Position, group string) (made, deleted []string) {
	t.Helper()
	for _, w := range writesSince(t, from, func(w controlplane.Write) bool { return w.Resource == "nodes" && w.Subresource == "" }) {
		switch {
		case w.Verb != "create" && w.Verb != "delete" || env.census.groupOf(t, w.Name) != group:
		case w.Verb == "create":
			made = append(made, w.Name)
		default:
			deleted = append(deleted, w.Name)
		}
	}
	slices.Sort(made)
	slices.Sort(deleted)
	return made, slices.Compact(deleted)
}

// expectNodeChanges fails the test unless exactly so many Nodes of a group were
// made since from, and exactly these were deleted.
func expectNodeChanges(t testing.TB, from controlplane.Position, group string, made int, deleted ...string) {
	t.Helper()
	slices.Sort(deleted)
	nowMade, nowDeleted := nodeChanges(t, from, group)
	if len(nowMade) != made {
		t.Errorf("%d Nodes were made, want %d: %v", len(nowMade), made, nowMade)
	}
	if !slices.Equal(nowDeleted, deleted) {
		t.Errorf("Nodes %v were deleted, want %v", nowDeleted, deleted)
	}
}

// expectMachinesDeleted fails the test unless somebody asked to delete exactly
// these Machines of a pool since from.
func expectMachinesDeleted(t testing.TB, from controlplane.Position, pool string, want ...string) {
	t.Helper()
	var deleted []string
	for _, w := range writesSince(t, from, func(w controlplane.Write) bool { return w.Verb == "delete" && w.Resource == "machines" }) {
		if env.census.isOf(w.Name, pool) {
			deleted = append(deleted, w.Name)
		}
	}
	slices.Sort(deleted)
	slices.Sort(want)
	if deleted = slices.Compact(deleted); !slices.Equal(deleted, want) {
		t.Errorf("Machines %v were deleted, want %v", deleted, want)
	}
}

// expectNothingWritten fails the test for what the operator wrote since from that
// is of a pool.
func expectNothingWritten(t testing.TB, from controlplane.Position, pool string) {
	t.Helper()
	writes := writesSince(t, from, func(w controlplane.Write) bool { return byOperator(w) && env.census.isOf(w.Name, pool) })
	if len(writes) > 0 {
		t.Errorf("%d writes while nothing happened:%s", len(writes), describe(writes, line))
	}
}

// watchOperator fails the test at its end when the operator asked for what the
// shipped roles do not grant, or wrote how many replicas there are to be.
func watchOperator(t testing.TB) {
	t.Helper()
	from := auditEnd(t)
	t.Cleanup(func() {
		bad, err := env.AuditLog().Requests(from, func(r controlplane.Request) bool {
			return byOperator(r) && (r.Code == http.StatusForbidden || r.Verb == "patch" && r.Resource == "machinepools" && r.Subresource == "scale")
		})
		if err != nil {
			t.Error(err)
		}
		if len(bad) > 0 {
			t.Errorf("the operator should not have made %d requests:%s", len(bad), describe(bad, line))
		}
	})
}

func line(r controlplane.Request) string {
	return fmt.Sprintf("%s %s %s/%s %s/%s: %d", r.Time.Format(time.TimeOnly), r.Verb, r.Resource, r.Subresource, r.Namespace, r.Name, r.Code)
}
