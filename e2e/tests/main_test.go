// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package tests shows the operator's promises on a real control plane: etcd,
// kube-apiserver, Cluster API, three shard servers, and operators with no more
// rights than the shipped ones.
package tests

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

// resync is short, so that quiet means quiet in spite of it.
const resync = 20 * time.Second

// shardIDs are the shards of the cluster, in the order that pools list them.
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
	shards   []nstance.Shard
	operator nstance.Operator
	// kubectl is the command line of an administrator.
	kubectl []string
}

func TestMain(m *testing.M) {
	env = &environment{}
	for _, id := range shardIDs {
		env.shards = append(env.shards, nstance.Shard{ID: id})
	}
	testcluster.Main(m, testcluster.Options{AuditReads: []string{capiUser}, Shards: env.shards}, prepare)
}

// prepare starts an operator and makes the clients.
func prepare(ctx context.Context, cluster *testcluster.Cluster) (err error) {
	env.cp, env.n, env.kubectl = cluster.ControlPlane, cluster.Nstance, cluster.Kubectl
	env.operator, err = env.n.StartOperator(ctx, nstance.Operator{
		Component: "operator",
		Flags:     []string{"--resync-period", resync.String()},
	})
	if err != nil {
		return err
	}
	if env.kube, err = kubernetes.NewForConfig(cluster.AdminConfig()); err != nil {
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
