// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package drains shows that the Nodes of instances that are to go are emptied in
// time: on a real control plane with its controllers and scheduler, whose Pods
// kwok runs, and with shard servers that the operators reach through relays, so
// that nobody has to be asked who acknowledged what.
//
// The tests leave behind what they made: the cluster ends with them.
package drains

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
)

const (
	// steadyShard is up all the time. restartedShard is restarted by a test.
	steadyShard    = "us-west-2a"
	restartedShard = "us-west-2b"

	// drainTimeout is long enough for what has to happen while a drain is
	// blocked, for one test waits until it is over.
	drainTimeout = time.Minute

	// patience is how long a test waits for what must come.
	patience = 2 * time.Minute
)

// electionFlags make a standby lead soon after the leader was killed.
var electionFlags = []string{
	"--leader-elect-lease-duration", "4s",
	"--leader-elect-renew-deadline", "3s",
	"--leader-elect-retry-period", "500ms",
}

// env is the cluster that all tests of this package share.
var env struct {
	*testcluster.Cluster
	kube     kubernetes.Interface
	dynamic  dynamic.Interface
	nstance  versioned.Interface
	capi     *capi.Client
	operator nstance.Operator
	// relays are by shard.
	relays map[string]*relay
	losses *losses
}

func TestMain(m *testing.M) {
	testcluster.Main(m, testcluster.Options{
		AuditReads: []string{nstance.OperatorUser},
		Shards: []nstance.Shard{
			{ID: steadyShard, DrainTimeout: drainTimeout},
			{ID: restartedShard, DrainTimeout: drainTimeout},
		},
	}, prepare)
}

// prepare makes the clients and starts the relays and an operator that knows no
// other way to the shards.
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
	if env.losses, err = watchLosses(ctx, env.kube); err != nil {
		return err
	}
	env.relays = map[string]*relay{}
	for _, shard := range []string{steadyShard, restartedShard} {
		if env.relays[shard], err = startRelay(ctx, shard); err != nil {
			return err
		}
		patch := fmt.Appendf(nil, `{"data":{%q:%q}}`, shard, env.relays[shard].address)
		_, err := env.kube.CoreV1().ConfigMaps(nstance.Namespace).
			Patch(ctx, "nstance-shards", types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return err
		}
	}
	env.operator, err = env.Nstance.StartOperator(ctx, nstance.Operator{Component: "operator", Flags: electionFlags})
	return err
}

// eventually returns when check succeeds, and fails the test with check's last
// error when it does not in time.
func eventually(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	last := errors.New("never checked")
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) {
			err := check(ctx)
			// What was in the way before the time was over tells more.
			if err == nil || ctx.Err() == nil {
				last = err
			}
			return err == nil, nil
		})
	if err != nil {
		t.Fatalf("%s: not within %s: %v", what, patience, last)
	}
}

// auditEnd is the present end of the audit log.
func auditEnd(t testing.TB) controlplane.Position {
	t.Helper()
	end, err := env.AuditLog().End()
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// operatorRequests are the requests of the operators since from that match.
// Those that watch, which end at any time, are not among them.
func operatorRequests(t testing.TB, from controlplane.Position, match func(controlplane.Request) bool) []controlplane.Request {
	t.Helper()
	requests, err := env.AuditLog().Requests(from, func(r controlplane.Request) bool {
		return r.User == nstance.OperatorUser && r.Verb != "watch" && match(r)
	})
	if err != nil {
		t.Fatal(err)
	}
	return requests
}

// evictions are the operators' tries since from to evict a Pod.
func evictions(t testing.TB, from controlplane.Position, namespace, name string) []controlplane.Request {
	t.Helper()
	return operatorRequests(t, from, func(r controlplane.Request) bool {
		return isEviction(r) && r.Namespace == namespace && r.Name == name
	})
}

func isEviction(r controlplane.Request) bool {
	return r.Verb == "create" && r.Resource == "pods" && r.Subresource == "eviction"
}
