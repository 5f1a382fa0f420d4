// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package ondemand shows what the operator promises of single machines: those of
// Pods that ask for one, those of a MachineDeployment, and those that a shard
// ends by itself. Everything but the machines' kubelets is real.
package ondemand

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
)

const (
	clusterName = nstance.ClusterID + "--" + nstance.Tenant

	// group is on all shards and has no instances but those that are asked for
	// one by one.
	group = "builders"
	// unavailable is an instance type of which no shard has any: its instances
	// stay pending.
	unavailable = "r7i.4xlarge"

	// resync is short, so that quiet means quiet in spite of it.
	resync = 20 * time.Second

	// capiUser is Cluster API in the audit log when it works on Nodes.
	capiUser = "system:serviceaccount:" + nstance.Namespace + ":nstance-capi-workload"
)

// shardIDs are the shards of the cluster.
var shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// env is the cluster that all tests of this package share.
var env *environment

type environment struct {
	cp       *controlplane.ControlPlane
	n        *nstance.Nstance
	kube     kubernetes.Interface
	nstance  versioned.Interface
	capi     *capi.Client
	dynamic  dynamic.Interface
	operator nstance.Operator
	// kubectl is the command line of an administrator.
	kubectl []string
}

func TestMain(m *testing.M) {
	var shards []nstance.Shard
	for _, id := range shardIDs {
		shards = append(shards, nstance.Shard{
			ID:     id,
			Groups: map[string]nstance.Group{group: {Template: nstance.OnDemandTemplate}},
			Quota:  map[string]int{unavailable: 0},
		})
	}
	env = &environment{}
	testcluster.Main(m, testcluster.Options{AuditReads: []string{nstance.OperatorUser}, Shards: shards}, prepare)
}

// prepare starts an operator and makes the clients.
func prepare(ctx context.Context, cluster *testcluster.Cluster) (err error) {
	env.cp, env.n, env.kubectl = cluster.ControlPlane, cluster.Nstance, cluster.Kubectl
	env.operator, err = env.n.StartOperator(ctx, nstance.Operator{
		Component: "operator",
		Flags:     []string{"--resync-period", resync.String(), "--on-demand-limit", "1000"},
	})
	if err != nil {
		return err
	}
	if env.kube, err = kubernetes.NewForConfig(cluster.Config()); err != nil {
		return err
	}
	if env.nstance, err = versioned.NewForConfig(cluster.Config()); err != nil {
		return err
	}
	if env.capi, err = capi.NewForConfig(cluster.Config()); err != nil {
		return err
	}
	env.dynamic, err = dynamic.NewForConfig(cluster.Config())
	return err
}
