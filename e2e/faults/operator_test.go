// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

func (o *faultyOperator) configurationFaults() []testcluster.Fault {
	return []testcluster.Fault{
		{Name: "the shards' ConfigMap is deleted", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-shards")()
			from := o.logSize(t)
			deleteConfigMap(t, "nstance-shards")
			o.untilLogged(t, from, "ConfigMap with the shards")
			o.restart(t)
			untilUnreachable(t, v1beta1.ReasonUnknownShard)
		})},
		{Name: "the shards' ConfigMap is emptied", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-shards")()
			env.EditShards(t, func(data map[string]string) { clear(data) })
			untilUnreachable(t, v1beta1.ReasonUnknownShard)
		})},
		{Name: "a shard is removed from the configuration", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-shards")()
			require.NoError(t, env.SetShardAddress(t.Context(), shardIDs[1], ""))
			untilUnreachable(t, v1beta1.ReasonUnknownShard)
			o.restart(t)
			o.untilWorking(t)
			untilUnreachable(t, v1beta1.ReasonUnknownShard)
		})},
		{Name: "the endpoints are malformed", Happen: testcluster.During(func(t *testing.T) {
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
		})},
		{Name: "the CA is missing at the start", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-cluster-ca")()
			deleteConfigMap(t, "nstance-cluster-ca")
			o.expectRefusal(t, "ConfigMap nstance-system/nstance-cluster-ca has no key ca.crt")
		})},
		{Name: "the nonce is missing at the first start", Happen: testcluster.During(func(t *testing.T) {
			defer saveSecret(t, "nstance-operator-nonce")()
			deleteSecret(t, "nstance-operator-nonce")
			deleteSecret(t, "nstance-operator-cert")
			o.expectRefusal(t, "Secret nstance-system/nstance-operator-nonce has no key nonce.jwt")
		})},
	}
}

// controllerFaults are faults of the other controllers. The operator and the shards continue
// without these controllers.
func (o *faultyOperator) controllerFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "Cluster API is killed", Happen: continuesWhile(killed(controlplane.CAPI))},
		{Name: "the controller manager hangs", Happen: continuesWhile(frozen(controlplane.ControllerManager))},
		{Name: "all kubelets hang", Happen: func(t *testing.T, scaleUp testcluster.ScaleUp) {
			thaw := testcluster.Freeze(t, env.Component(controlplane.KWOK))
			defer thaw()
			if !tier.Full() {
				markUnknown(t, faultyPool)
			}
			testcluster.Eventually(t, 3*time.Minute, "no Node of the pool is ready", func(ctx context.Context) error {
				ready, err := env.ReadyNodeIDs(ctx, faultyPool)
				if err == nil && len(ready) > 0 {
					err = fmt.Errorf("%d are ready", len(ready))
				}
				return err
			})
			scaleUp.Begin(t)
			scaleUp.UntilShardsRun(t)
		}},
	}, testcluster.OnlyInFull(
		testcluster.Fault{Name: "Cluster API hangs", Happen: continuesWhile(frozen(controlplane.CAPI))},
		testcluster.Fault{Name: "the controller manager is killed", Happen: continuesWhile(killed(controlplane.ControllerManager))},
	)...)
}

// markUnknown marks the Nodes of a group as the controller manager does if their kubelets have not
// reported for its grace period (https://kubernetes.io/docs/reference/node/node-status/).
func markUnknown(t *testing.T, group string) {
	t.Helper()
	nodes, err := env.Nodes(t.Context(), group)
	require.NoError(t, err)
	for _, node := range nodes {
		_, err := env.Kube.CoreV1().Nodes().Patch(t.Context(), node.Name, types.StrategicMergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
}

func continuesWhile(begin func(*testing.T) (end func())) func(*testing.T, testcluster.ScaleUp) {
	return func(t *testing.T, scaleUp testcluster.ScaleUp) {
		defer begin(t)()
		scaleUp.Begin(t)
		scaleUp.UntilShardsRun(t)
	}
}

const leaseName = "nstance-operator-leader-election"

func leases() coordinationv1client.LeaseInterface {
	return env.Kube.CoordinationV1().Leases(installation.Namespace)
}

func (o *faultyOperator) leaseFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "the lease cannot be renewed", Happen: o.exitsWhile(o.injected(faultproxy.Rule{Resource: "leases", Code: http.StatusInternalServerError}))},
		{Name: "another process has the lease, with a clock that is an hour ahead", Happen: o.exitsWhenTaken(time.Hour)},
		{Name: "the lease is deleted", Happen: testcluster.During(func(t *testing.T) {
			err := leases().Delete(t.Context(), leaseName, metav1.DeleteOptions{})
			require.NoError(t, err)
			testcluster.Eventually(t, time.Minute, "there is a lease again, or the operator has exited", func(ctx context.Context) error {
				if _, running := o.Process.PID(); !running {
					return nil
				}
				_, err := leases().Get(ctx, leaseName, metav1.GetOptions{})
				return err
			})
		})},
		{Name: "the operator is killed several times", Happen: testcluster.During(func(t *testing.T) {
			for range 3 {
				require.NoError(t, o.Process.Kill(t.Context()))
				env.ReleaseLease(t)
				testcluster.Start(t, o.Process)
			}
		})},
	}, testcluster.OnlyInFull(
		testcluster.Fault{Name: "another process has the lease, with a clock that is an hour behind", Happen: o.exitsWhenTaken(-time.Hour)},
		// In TestPausedLeader another operator leads in this time.
		testcluster.Fault{Name: "the operator hangs until its lease has expired", Happen: testcluster.During(func(t *testing.T) {
			defer testcluster.Freeze(t, o.Process)()
			testcluster.Eventually(t, time.Minute, "the lease has expired", func(ctx context.Context) error {
				lease, err := leases().Get(ctx, leaseName, metav1.GetOptions{})
				if err != nil {
					return err
				}
				duration := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
				if age := time.Since(lease.Spec.RenewTime.Time); age < 2*duration {
					return fmt.Errorf("it was renewed %s ago", age)
				}
				return nil
			})
		})},
	)...)
}

// exitsWhenTaken replaces the holder of the lease by a holder that never renews it, with a wrong
// clock. The next operator waits until the lease has expired.
func (o *faultyOperator) exitsWhenTaken(ahead time.Duration) func(*testing.T, testcluster.ScaleUp) {
	return testcluster.During(func(t *testing.T) {
		// The operator that the fault before has restarted may not lead yet.
		o.untilWorking(t)
		testcluster.Eventually(t, time.Minute, "another process has the lease", func(ctx context.Context) error {
			lease, err := leases().Get(ctx, leaseName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			lease.Spec.HolderIdentity = ptr.To("another")
			lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
			lease.Spec.RenewTime.Time = lease.Spec.RenewTime.Add(ahead)
			_, err = leases().Update(ctx, lease, metav1.UpdateOptions{})
			return err
		})
		o.untilExited(t)
	})
}

// A leader that was suspended while another operator led exits when it resumes, and does not send
// the sizes that it knew before.
func TestPausedLeader(t *testing.T) {
	const name = "paused"
	// Each of the two operators leads and is paused.
	pauses := tier.Pick(2, 4)
	leader := runFaultyOperator(t, testcluster.ShortLease...).Process
	standby := env.Component(env.RunStandby(t, testcluster.ShortLease...).Component)
	replicas := int32(6)
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), name, replicas))
	env.UntilRunning(t, name, replicas)
	losses := env.NewLossChecker(t, name)

	for range pauses {
		// The leader is paused while it scales, and knows this size only.
		env.Scale(t, name, replicas+3)
		thaw := testcluster.Freeze(t, leader)
		replicas += 6
		env.Scale(t, name, replicas)
		env.UntilRunning(t, name, replicas)
		thaw()
		testcluster.UntilExited(t, leader)
		losses.ExpectNone(t)
		testcluster.Start(t, leader)
		leader, standby = standby, leader
	}
	env.UntilRunning(t, name, replicas)
	if seen := losses.ExpectNone(t); seen < pauses*len(shardIDs) {
		t.Errorf("%d calls were checked, want at least one of each shard for each pause", seen)
	}
}
