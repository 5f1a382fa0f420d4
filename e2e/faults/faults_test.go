// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// faultyPool is the pool that must not lose instances.
const faultyPool = "precious"

// Information that is missing, late or wrong never deletes an instance: with every
// fault the operator requests no size of a shard below the present one. Once the fault is
// healed, the pool can be scaled.
func TestFaults(t *testing.T) {
	o := runFaultyOperator(t)
	replicas := int32(9)
	env.CreatePoolForTest(t, faultyPool, replicas)
	env.UntilRunning(t, faultyPool, replicas)
	losses := env.NewLossChecker(t, faultyPool)

	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			before := losses.ExpectNone(t)
			fault.happen(t, o)
			o.ensureRunning(t)
			losses.ExpectNone(t)

			replicas += 3
			env.Scale(t, faultyPool, replicas)
			env.UntilRunning(t, faultyPool, replicas)
			if seen := losses.ExpectNone(t) - before; seen < len(shardIDs) {
				t.Errorf("%d calls were checked, the scaling alone is one for each of %d shards", seen, len(shardIDs))
			}
		})
	}
}

// faults happen and are healed. Each lasts until the operator has met it.
var faults = []struct {
	name   string
	happen func(*testing.T, *faultyOperator)
}{
	{"the API server is killed", func(t *testing.T, o *faultyOperator) {
		server := env.Component(controlplane.APIServer)
		require.NoError(t, server.Kill(t.Context()))
		defer testcluster.Start(t, server)
		o.untilExited(t)
	}},
	{"the API server hangs", func(t *testing.T, o *faultyOperator) {
		defer testcluster.Freeze(t, env.Component(controlplane.APIServer))()
		o.untilExited(t)
	}},

	{"the lease cannot be renewed", func(t *testing.T, o *faultyOperator) {
		defer o.Proxy.Heal()
		o.Proxy.Inject(faultproxy.Rule{Resource: "leases", Code: http.StatusInternalServerError})
		o.untilExited(t)
	}},

	{"pools cannot be listed at the start", cannotList("nstancemachinepools")},
	{"shard groups cannot be listed at the start", cannotList("nstanceshardgroups")},
	{"MachinePools cannot be listed at the start", cannotList("machinepools")},
	{"Nodes cannot be listed at the start", cannotList("nodes")},
	{"ConfigMaps cannot be listed at the start", cannotList("configmaps")},

	{"every watch breaks and nothing can be listed", func(t *testing.T, o *faultyOperator) {
		defer o.Proxy.Heal()
		fault := o.Proxy.Inject(faultyRule("", http.StatusInternalServerError))
		if o.Proxy.CutWatches("") == 0 {
			t.Error("no watch was open")
		}
		untilMet(t, fault, 20)
	}},

	{"the shards' ConfigMap is deleted", func(t *testing.T, o *faultyOperator) {
		defer env.SaveConfigMap(t, "nstance-shards")()
		from := o.logSize(t)
		deleteConfigMap(t, "nstance-shards")
		o.untilLogged(t, from, "ConfigMap with the shards")
		o.restart(t)
		untilUnreachable(t, v1beta1.ReasonUnknownShard)
	}},
	{"the shards' ConfigMap is emptied", func(t *testing.T, _ *faultyOperator) {
		defer env.SaveConfigMap(t, "nstance-shards")()
		env.EditShards(t, func(data map[string]string) { clear(data) })
		untilUnreachable(t, v1beta1.ReasonUnknownShard)
	}},
	{"a shard is removed from the configuration", func(t *testing.T, o *faultyOperator) {
		defer env.SaveConfigMap(t, "nstance-shards")()
		require.NoError(t, env.SetShardAddress(t.Context(), shardIDs[1], ""))
		untilUnreachable(t, v1beta1.ReasonUnknownShard)
		o.restart(t)
		o.untilWorking(t)
		untilUnreachable(t, v1beta1.ReasonUnknownShard)
	}},
	{"the endpoints are malformed", func(t *testing.T, o *faultyOperator) {
		defer env.SaveConfigMap(t, "nstance-shards")()
		env.EditShards(t, func(data map[string]string) {
			for shard := range data {
				data[shard] = "::"
			}
		})
		testcluster.Eventually(t, time.Minute, "an event reports it", func(ctx context.Context) error {
			count, err := env.CountEvents(ctx, "nstance-shards", "InvalidEndpoint")
			if err == nil && count == 0 {
				err = errors.New("no event")
			}
			return err
		})
		o.restart(t)
		untilUnreachable(t, v1beta1.ReasonUnknownShard)
	}},

	{"the CA is missing at the start", func(t *testing.T, o *faultyOperator) {
		defer env.SaveConfigMap(t, "nstance-cluster-ca")()
		deleteConfigMap(t, "nstance-cluster-ca")
		o.expectRefusal(t, "ConfigMap nstance-system/nstance-cluster-ca has no key ca.crt")
	}},
	{"the nonce is missing at the first start", func(t *testing.T, o *faultyOperator) {
		defer saveSecret(t, "nstance-operator-nonce")()
		deleteSecret(t, "nstance-operator-nonce")
		deleteSecret(t, "nstance-operator-cert")
		o.expectRefusal(t, "Secret nstance-system/nstance-operator-nonce has no key nonce.jwt")
	}},

	{"a shard is down at the start", func(t *testing.T, o *faultyOperator) {
		shard := env.ShardServer(shardIDs[2])
		require.NoError(t, shard.Kill(t.Context()))
		defer testcluster.Start(t, shard)
		untilUnreachable(t, v1beta1.ReasonShardUnreachable)
		o.restart(t)
		o.untilWorking(t)
		untilUnreachable(t, v1beta1.ReasonShardUnreachable)
	}},
	{"a shard hangs at the start", func(t *testing.T, o *faultyOperator) {
		defer testcluster.Freeze(t, env.ShardServer(shardIDs[0]))()
		o.restart(t)
		untilUnreachable(t, v1beta1.ReasonShardUnreachable)
	}},
	{"a shard accepts connections and never reads", func(t *testing.T, o *faultyOperator) {
		defer env.SaveConfigMap(t, "nstance-shards")()
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer silent.Close()
		env.EditShards(t, func(data map[string]string) { data[shardIDs[1]] = silent.Addr().String() })
		o.restart(t)
		untilUnreachable(t, v1beta1.ReasonShardUnreachable)
	}},
}

// cannotList makes lists of a resource fail in every way while the operator
// starts.
func cannotList(resource string) func(*testing.T, *faultyOperator) {
	return func(t *testing.T, o *faultyOperator) {
		defer o.Proxy.Heal()
		forbidden := o.Proxy.Inject(faultyRule(resource, http.StatusForbidden))
		o.restart(t)
		untilMet(t, forbidden, 2)
		o.Proxy.Heal()
		untilMet(t, o.Proxy.Inject(faultyRule(resource, http.StatusInternalServerError)), 2)
		o.Proxy.Heal()
		// A list that hangs is not retried, so it is met once.
		untilMet(t, o.Proxy.Inject(faultyRule(resource, 0)), 1)
	}
}

// faultyRule keeps a resource from being listed. A watch that begins with all
// objects is a list too.
func faultyRule(resource string, code int) faultproxy.Rule {
	return faultproxy.Rule{Verbs: []string{"list", "watch"}, Resource: resource, Code: code}
}

// untilMet waits until the operator has met a fault so many times.
func untilMet(t *testing.T, fault *faultproxy.Fault, times int) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the operator meets the fault", func(context.Context) error {
		if met := fault.Met(); met < times {
			return fmt.Errorf("%d of %d times", met, times)
		}
		return nil
	})
}

// untilUnreachable waits until the pool reports why not all of its shards are
// reachable.
func untilUnreachable(t *testing.T, reason string) {
	t.Helper()
	untilPoolUnreachable(t, faultyPool, reason)
}

func untilPoolUnreachable(t *testing.T, name, reason string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "pool "+name+" reports "+reason, func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionShardsReachable, metav1.ConditionFalse, reason)
	})
}
