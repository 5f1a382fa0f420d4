// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package autoscaler shows that the cluster autoscaler can rely on pools: only the instance that
// it selected is deleted, even during a failure, and a pool without instances reports what its
// Nodes will be like. Everything is real but the machines' kubelets and the autoscaler, whose
// requests the tests make.
//
// Each test has a pool of its own, and does not depend on other pools. Tests that stop shared
// components run before the parallel tests.
package autoscaler

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// oldShard has a server that seems to know no extension of the protocol.
	oldShard = "us-west-2d"

	// scarceType is an instance type of which the first shard has a single instance.
	scarceType = "m7i.xlarge"

	// drainTimeout is longer than the tests wait: a test whose drain times out fails.
	drainTimeout = 5 * time.Minute

	// resync is short, so that resyncs happen while a test expects no writes.
	resync = 5 * time.Second

	// timeout is how long a test waits for an expected state.
	timeout = 3 * time.Minute

	// capiUser is Cluster API in the audit log when it works on Nodes and their
	// Pods.
	capiUser = "system:serviceaccount:" + installation.Namespace + ":nstance-capi-workload"

	mergePatch = types.MergePatchType
)

// shardIDs are the shards of most pools, in the order that the pools list them.
var shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// env is the cluster that all tests of this package share.
var env struct {
	*testcluster.Cluster
	// autoscaler has clients with the rights in the shipped manifests of the cluster autoscaler.
	autoscaler struct {
		kube    kubernetes.Interface
		dynamic dynamic.Interface
	}
	nodeLog *nodeLog
	// shards are clients of the servers, by shard. They are kept open, because the tests call them
	// many times a second.
	shards map[string]nstancev1.OperatorServiceClient
}

func TestMain(m *testing.M) {
	options := testcluster.Options{
		Prepare:       prepare,
		OperatorFlags: []string{"--resync-period", resync.String()},
	}
	for _, id := range append(shardIDs, oldShard) {
		options.Shards = append(options.Shards, installation.Shard{ID: id, DrainTimeout: drainTimeout})
	}
	options.Shards[0].Quota = map[string]int{scarceType: 1}
	testcluster.Main(m, &env.Cluster, options)
}

// prepare creates the clients, and a relay through which the operator reaches the old
// shard.
func prepare(ctx context.Context) (err error) {
	if env.nodeLog, err = watchNodes(ctx, env.Kube); err != nil {
		return err
	}
	if err := createAutoscalerClients(ctx); err != nil {
		return err
	}
	env.shards = map[string]nstancev1.OperatorServiceClient{}
	for _, id := range env.ShardIDs {
		connection, err := env.Installation.Dial(id)
		if err != nil {
			return err
		}
		env.shards[id] = nstancev1.NewOperatorServiceClient(connection)
	}
	return startOldServer(ctx, oldShard)
}

// createAutoscalerClients applies the shipped manifests of the cluster autoscaler but
// its Deployment, and creates clients with its rights.
func createAutoscalerClients(ctx context.Context) error {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return err
	}
	objects, err := controlplane.Render(filepath.Join(root, "manifests", "cluster-autoscaler"))
	if err != nil {
		return err
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })
	if err := controlplane.Apply(ctx, env.AdminConfig(), "test", objects); err != nil {
		return err
	}
	config := env.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{
		UserName: serviceaccount.MakeUsername(installation.Namespace, "cluster-autoscaler"),
		Groups:   append(serviceaccount.MakeGroupNames(installation.Namespace), user.AllAuthenticated),
	}
	if env.autoscaler.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	env.autoscaler.dynamic, err = dynamic.NewForConfig(config)
	return err
}
