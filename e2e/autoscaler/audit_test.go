// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
)

// changesSince returns the successful writes since from that match, other than to
// leases.
func changesSince(t testing.TB, from controlplane.Position, match testcluster.Match) []controlplane.Write {
	t.Helper()
	return env.Writes(t, from, match, func(w controlplane.Write) bool {
		return w.Code < http.StatusMultipleChoices && w.Resource != "leases"
	})
}

// nodeChanges returns the names of the Nodes of a group that were created and deleted
// since from, each once and sorted. They are those of instances.
func nodeChanges(t testing.TB, from controlplane.Position, group string) (created, deleted []string) {
	t.Helper()
	for _, w := range changesSince(t, from, func(w controlplane.Write) bool { return w.Resource == "nodes" && w.Subresource == "" }) {
		switch {
		case w.Verb != "create" && w.Verb != "delete" || env.nodeLog.groupOf(t, w.Name) != group:
		case w.Verb == "create":
			created = append(created, w.Name)
		default:
			deleted = append(deleted, w.Name)
		}
	}
	slices.Sort(created)
	slices.Sort(deleted)
	return created, slices.Compact(deleted)
}

// expectNodeChanges fails the test unless exactly so many Nodes of a group were
// created since from, and exactly these were deleted.
func expectNodeChanges(t testing.TB, from controlplane.Position, group string, created int, deleted ...string) {
	t.Helper()
	slices.Sort(deleted)
	gotCreated, gotDeleted := nodeChanges(t, from, group)
	assert.Len(t, gotCreated, created, "created Nodes")
	assert.Equal(t, deleted, gotDeleted, "deleted Nodes")
}

// expectMachinesDeleted fails the test unless exactly these Machines of a pool were
// deleted since from.
func expectMachinesDeleted(t testing.TB, from controlplane.Position, pool string, want ...string) {
	t.Helper()
	var deleted []string
	for _, w := range changesSince(t, from, func(w controlplane.Write) bool { return w.Verb == "delete" && w.Resource == "machines" }) {
		if env.nodeLog.isOf(w.Name, pool) {
			deleted = append(deleted, w.Name)
		}
	}
	slices.Sort(deleted)
	slices.Sort(want)
	if deleted = slices.Compact(deleted); !slices.Equal(deleted, want) {
		t.Errorf("Machines %v were deleted, want %v", deleted, want)
	}
}

// expectNothingWritten fails the test for the operator's writes since from to objects
// of a pool.
func expectNothingWritten(t testing.TB, from controlplane.Position, pool string) {
	t.Helper()
	writes := changesSince(t, from, func(w controlplane.Write) bool { return testcluster.ByOperator(w) && env.nodeLog.isOf(w.Name, pool) })
	if len(writes) > 0 {
		t.Errorf("%d writes while nothing changed:%s", len(writes), testcluster.Describe(writes))
	}
}

// watchOperator fails the test at its end when the operator made requests that the
// shipped roles do not grant, or scaled a MachinePool.
func watchOperator(t testing.TB) {
	t.Helper()
	from := env.AuditEnd(t)
	t.Cleanup(func() {
		bad := env.Requests(t, from, testcluster.ByOperator, func(r controlplane.Request) bool {
			return r.Code == http.StatusForbidden || r.Action() == "patch machinepools/scale"
		})
		if len(bad) > 0 {
			t.Errorf("the operator should not have made %d requests:%s", len(bad), testcluster.Describe(bad))
		}
	})
}
