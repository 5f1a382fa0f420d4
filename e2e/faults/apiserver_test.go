// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

func (o *faultyOperator) apiServerFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "the API server is killed", Happen: o.exitsWhile(killed(controlplane.APIServer))},
		{Name: "the API server hangs", Happen: o.exitsWhile(frozen(controlplane.APIServer))},
		{Name: "all requests are forbidden", Happen: o.exitsWhile(o.injected(faultproxy.Rule{Code: http.StatusForbidden}))},
		{Name: "nothing can be written", Happen: o.exitsWhile(o.injected(faultproxy.Rule{Verbs: writeVerbs, Code: http.StatusInternalServerError}))},
		{Name: "every watch breaks and nothing can be listed", Happen: testcluster.During(func(t *testing.T) {
			defer o.Proxy.Heal()
			fault := o.Proxy.Inject(listRule("", http.StatusInternalServerError))
			if o.Proxy.CutWatches("") == 0 {
				t.Error("no watch was open")
			}
			untilMet(t, fault, 20)
		})},
	}, testcluster.OnlyInFull(
		testcluster.Fault{Name: "etcd is killed", Happen: o.exitsWhile(killed(controlplane.Etcd))},
		testcluster.Fault{Name: "etcd hangs", Happen: o.exitsWhile(frozen(controlplane.Etcd))},
		testcluster.Fault{Name: "the token is rejected", Happen: o.exitsWhile(o.injected(faultproxy.Rule{Code: http.StatusUnauthorized}))},
		testcluster.Fault{Name: "all requests hang", Happen: o.exitsWhile(o.injected(faultproxy.Rule{}))},
	)...)
}

// exitsWhile is a fault in which the operator cannot renew its lease, and exits. The next operator
// does not wait for the lease.
func (o *faultyOperator) exitsWhile(begin func(*testing.T) (end func())) func(*testing.T, testcluster.ScaleUp) {
	exits := func(t *testing.T) {
		t.Helper()
		defer begin(t)()
		o.untilExited(t)
	}
	return testcluster.During(func(t *testing.T) {
		exits(t)
		env.ReleaseLease(t)
	})
}

func killed(component string) func(*testing.T) func() {
	return func(t *testing.T) func() {
		t.Helper()
		process := env.Component(component)
		require.NoError(t, process.Kill(t.Context()))
		return func() { testcluster.Start(t, process) }
	}
}

func frozen(component string) func(*testing.T) func() {
	return func(t *testing.T) func() {
		t.Helper()
		return testcluster.Freeze(t, env.Component(component))
	}
}

func (o *faultyOperator) injected(rule faultproxy.Rule) func(*testing.T) func() {
	return func(*testing.T) func() {
		o.Proxy.Inject(rule)
		return o.Proxy.Heal
	}
}

var writeVerbs = []string{"create", "update", "patch", "delete", "deletecollection"}

// writeFaults let the writes after a scale-up fail.
func (o *faultyOperator) writeFaults() []testcluster.PoolFault {
	faults := []testcluster.PoolFault{
		{Name: "writes of shard groups hang", Begin: o.writesFail("nstanceshardgroups", 0, 1)},
	}
	for _, written := range []struct{ name, resource string }{
		{"shard groups", "nstanceshardgroups"},
		{"the status of shard groups", "nstanceshardgroups/status"},
		{"pools", "nstancemachinepools"},
		{"the status of pools", "nstancemachinepools/status"},
	} {
		faults = append(faults,
			testcluster.PoolFault{Name: written.name + " cannot be written", Begin: o.writesFail(written.resource, http.StatusInternalServerError, 3)},
			testcluster.PoolFault{Name: "writes of " + written.name + " conflict", Begin: o.writesFail(written.resource, http.StatusConflict, 3)})
	}
	return append(faults, testcluster.PoolFault{
		Name: "there are too many writes of shard groups", Begin: o.writesFail("nstanceshardgroups", http.StatusTooManyRequests, 3),
	})
}

// writesFail is a fault that the operator meets so many times, and survives: writes of a
// pool, or of its shard groups, fail.
func (o *faultyOperator) writesFail(resource string, code, times int) func(*testing.T, string) func(context.Context) error {
	return func(_ *testing.T, pool string) func(context.Context) error {
		names := []string{pool}
		if strings.HasPrefix(resource, "nstanceshardgroups") {
			names = nil
			for _, shard := range shardIDs {
				names = append(names, v1beta1.ShardGroupName(pool, shard))
			}
		}
		var faults []*faultproxy.Fault
		for _, name := range names {
			faults = append(faults, o.Proxy.Inject(faultproxy.Rule{Verbs: writeVerbs, Resource: resource, Name: name, Code: code}))
		}
		return func(context.Context) error { return met(times, faults...) }
	}
}

// listFaults make lists of a resource fail in every way while the operator starts.
func (o *faultyOperator) listFaults() []testcluster.Fault {
	type kind struct{ name, resource string }
	// The operator waits for all its caches in the same way.
	kinds := []kind{{"pools", "nstancemachinepools"}}
	if tier.Full() {
		kinds = append(kinds, kind{"shard groups", "nstanceshardgroups"}, kind{"MachinePools", "machinepools"},
			kind{"Nodes", "nodes"}, kind{"ConfigMaps", "configmaps"})
	}
	var faults []testcluster.Fault
	for _, kind := range kinds {
		faults = append(faults, testcluster.Fault{Name: kind.name + " cannot be listed at the start", Happen: testcluster.During(func(t *testing.T) {
			defer o.Proxy.Heal()
			forbidden := o.Proxy.Inject(listRule(kind.resource, http.StatusForbidden))
			o.restart(t)
			untilMet(t, forbidden, 2)
			o.Proxy.Heal()
			untilMet(t, o.Proxy.Inject(listRule(kind.resource, http.StatusInternalServerError)), 2)
			o.Proxy.Heal()
			// A list that hangs is not retried, so it meets the fault once.
			untilMet(t, o.Proxy.Inject(listRule(kind.resource, 0)), 1)
		})})
	}
	return faults
}

// listRule lets lists of a resource fail, and watches that begin with all objects
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists).
func listRule(resource string, code int) faultproxy.Rule {
	return faultproxy.Rule{Verbs: []string{"list", "watch"}, Resource: resource, Code: code}
}
