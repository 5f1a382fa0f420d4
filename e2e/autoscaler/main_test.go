// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package autoscaler shows that the cluster autoscaler can rely on pools: the
// instance that it chose goes and no other, whatever fails meanwhile, and a pool
// without instances says what its Nodes will be like. Everything is real but the
// machines' kubelets and the autoscaler, whose requests the tests make.
//
// Each test has a pool of its own, and nothing is said of others. Those that stop
// parts that all need run before those that run at the same time.
package autoscaler

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	clusterName = nstance.ClusterID + "--" + nstance.Tenant

	// oldShard has a server that seems to know no extension of the wire.
	oldShard = "us-west-2d"

	// scarceType is an instance type of which the first shard has one.
	scarceType = "m7i.xlarge"

	// drainTimeout is more than any drain here takes: whoever has to wait for its
	// end fails.
	drainTimeout = 5 * time.Minute

	// resync is short, so that quiet means quiet in spite of it.
	resync = 5 * time.Second

	// patience is how long a test waits for what must come.
	patience = 3 * time.Minute

	// capiUser is Cluster API in the audit log when it works on Nodes and their
	// Pods.
	capiUser = "system:serviceaccount:" + nstance.Namespace + ":nstance-capi-workload"
)

// shardIDs are the shards of most pools, in the order that the pools list them.
var shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// env is the cluster that all tests of this package share.
var env struct {
	*testcluster.Cluster
	kube     kubernetes.Interface
	dynamic  dynamic.Interface
	nstance  versioned.Interface
	capi     *capi.Client
	operator nstance.Operator
	// autoscaler has the rights of the cluster autoscaler, as they are shipped.
	autoscaler struct {
		kube    kubernetes.Interface
		dynamic dynamic.Interface
	}
	census *census
	// servers are the shards' by shard id. Nothing is between them and the tests.
	servers map[string]nstancev1.OperatorServiceClient
}

func TestMain(m *testing.M) {
	options := testcluster.Options{AuditReads: []string{nstance.OperatorUser}}
	for _, id := range append(shardIDs, oldShard) {
		options.Shards = append(options.Shards, nstance.Shard{ID: id, DrainTimeout: drainTimeout})
	}
	options.Shards[0].Quota = map[string]int{scarceType: 1}
	testcluster.Main(m, options, prepare)
}

// prepare makes the clients and starts an operator that reaches the old shard
// through a relay.
func prepare(ctx context.Context, cluster *testcluster.Cluster) (err error) {
	env.Cluster = cluster
	if env.kube, err = kubernetes.NewForConfig(cluster.Config()); err != nil {
		return err
	}
	if env.dynamic, err = dynamic.NewForConfig(cluster.Config()); err != nil {
		return err
	}
	if env.nstance, err = versioned.NewForConfig(cluster.Config()); err != nil {
		return err
	}
	if env.capi, err = capi.NewForConfig(cluster.Config()); err != nil {
		return err
	}
	if env.census, err = takeCensus(ctx, env.kube); err != nil {
		return err
	}
	if err := becomeAutoscaler(ctx); err != nil {
		return err
	}
	env.servers = map[string]nstancev1.OperatorServiceClient{}
	for _, id := range append(shardIDs, oldShard) {
		connection, err := cluster.Nstance.Dial(id)
		if err != nil {
			return err
		}
		env.servers[id] = nstancev1.NewOperatorServiceClient(connection)
	}
	address, err := startOldServer(oldShard)
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"data":{%q:%q}}`, oldShard, address)
	_, err = env.kube.CoreV1().ConfigMaps(nstance.Namespace).Patch(ctx, "nstance-shards", mergePatch, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	env.operator, err = cluster.Nstance.StartOperator(ctx, nstance.Operator{
		Component: "operator",
		Flags:     []string{"--resync-period", resync.String()},
	})
	return err
}

// becomeAutoscaler grants the cluster autoscaler what it is shipped with, and
// makes its clients. It does not run.
func becomeAutoscaler(ctx context.Context) error {
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
	config := env.Config()
	config.Impersonate = rest.ImpersonationConfig{
		UserName: serviceaccount.MakeUsername(nstance.Namespace, "cluster-autoscaler"),
		Groups:   append(serviceaccount.MakeGroupNames(nstance.Namespace), user.AllAuthenticated),
	}
	if env.autoscaler.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	env.autoscaler.dynamic, err = dynamic.NewForConfig(config)
	return err
}
