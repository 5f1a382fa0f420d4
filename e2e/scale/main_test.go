// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package scale shows what an installation of a thousand groups costs: a control
// plane of its own, three shard servers that have the groups in their
// configuration, and an operator that starts when they are all there.
package scale

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
)

// groups is how many groups each of the shards has. None has an instance: it is
// the objects that are counted here.
const groups = 1000

var shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// env is the cluster that the test and the benchmark share.
var env *environment

type environment struct {
	cp      *controlplane.ControlPlane
	n       *nstance.Nstance
	kube    kubernetes.Interface
	nstance versioned.Interface
	capi    *capi.Client
	dynamic dynamic.Interface
}

func TestMain(m *testing.M) {
	testcluster.Main(m, testcluster.Options{Shards: shards()}, prepare)
}

func prepare(_ context.Context, cluster *testcluster.Cluster) (err error) {
	env = &environment{cp: cluster.ControlPlane, n: cluster.Nstance}
	config := cluster.Config()
	if env.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if env.nstance, err = versioned.NewForConfig(config); err != nil {
		return err
	}
	if env.capi, err = capi.NewForConfig(config); err != nil {
		return err
	}
	env.dynamic, err = dynamic.NewForConfig(config)
	return err
}

// shards all have the same groups.
func shards() []nstance.Shard {
	configured := map[string]nstance.Group{}
	for i := range groups {
		configured[groupName(i)] = nstance.Group{Size: 0}
	}
	var shards []nstance.Shard
	for _, id := range shardIDs {
		shards = append(shards, nstance.Shard{ID: id, Groups: configured})
	}
	return shards
}

func groupName(i int) string { return fmt.Sprintf("group-%03d", i) }
