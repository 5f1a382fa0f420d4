// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package ondemand shows the operator's guarantees for single machines: machines of Pods and of a
// MachineDeployment, and machines whose instance is deleted on its shard. Everything but the
// machines' kubelets is real. Tests that stop the operator, or count all that it does, run before
// the parallel tests.
package ondemand

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

const (
	// group is on all shards and has only instances that are created on demand.
	group = "builders"
	// unavailable is an instance type whose instances stay pending.
	unavailable = installation.UncreatableType

	// resync is short, so that resyncs happen while a test expects no writes.
	resync = 5 * time.Second

	// capiUser is Cluster API in the audit log when it works on Nodes.
	capiUser = "system:serviceaccount:" + installation.Namespace + ":nstance-capi-workload"

	// registrationTimeout is longer than any test. The server deletes an instance that has stayed
	// pending for so long, and the Pod gets another: on a slow machine, the test would never have
	// all of them.
	registrationTimeout = time.Hour

	mergePatch = types.MergePatchType
)

// shardIDs are the shards of the cluster.
var shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// env is the cluster that all tests of this package share.
var env *testcluster.Cluster

func TestMain(m *testing.M) {
	var shards []installation.Shard
	for _, id := range shardIDs {
		shards = append(shards, installation.Shard{
			ID:      id,
			Tenants: []string{otherTenant},
			Groups:  map[string]installation.Group{group: {Template: installation.OnDemandTemplate}},

			RegistrationTimeout: registrationTimeout,
		})
	}
	testcluster.Main(m, &env, testcluster.Options{
		Shards:        shards,
		OperatorFlags: []string{"--resync-period", resync.String(), "--on-demand-limit", "1000", "--on-demand-namespaces=*"},
	})
}

// watchOperator fails the test at its end if the operator made requests that the shipped roles do
// not grant, or wrote to Pods or Nodes. Here only Cluster API drains Nodes.
func watchOperator(t *testing.T) {
	t.Helper()
	from := env.AuditEnd(t)
	t.Cleanup(func() {
		// Events in a namespace that is being deleted are forbidden, although the right is there.
		forbidden := env.Requests(t, from, testcluster.ByOperator, func(r controlplane.Request) bool {
			return r.Code == http.StatusForbidden && !strings.HasPrefix(r.Reason, "RBAC: allowed")
		})
		if len(forbidden) > 0 {
			t.Errorf("%d requests of the operator were forbidden:%s", len(forbidden), testcluster.Describe(forbidden))
		}
		writes := env.OperatorWrites(t, from, func(w controlplane.Write) bool { return w.Resource == "pods" || w.Resource == "nodes" })
		assert.Empty(t, writes, "the operator wrote to Pods or Nodes:%s", testcluster.Describe(writes))
	})
}
