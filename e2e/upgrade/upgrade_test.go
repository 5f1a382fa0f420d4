// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// pool is scaled up while each process is replaced.
	pool = "scaled"
	// draining has an instance that drains all the time, because a budget protects its Pod.
	draining = "draining"
)

// Operators and servers of the previous version are replaced by this version, one after the other,
// and then the other way round, while a pool is scaled up and a drain is blocked. Exactly the
// wanted instances are created, no instance is terminated, and the drain is the same at the end.
// The upgrade follows docs/install.md#upgrade. The kinds of this version stay.
func TestUpgradeAndRollBack(t *testing.T) {
	standby := env.RunStandby(t)
	operators := []*controlplane.Component{env.OperatorProcess(), env.Component(standby.Component)}
	operator, server := operators[0].Argv[0], env.ShardServer(shardIDs[0]).Argv[0]
	var servers []*controlplane.Component
	for _, shard := range shardIDs {
		servers = append(servers, env.ShardServer(shard))
		run(t, env.ShardServer(shard), before.Server)
	}
	for _, component := range operators {
		run(t, component, before.Operator)
	}
	env.Kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(before.Source, "manifests", "crd"))

	replicas := int32(6)
	// The cluster is deleted with the pools.
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), pool, replicas))
	require.NoError(t, env.CreatePoolOn(t.Context(), draining, 2, shardIDs[0]))
	env.UntilRunning(t, pool, replicas)
	env.UntilRunning(t, draining, 2)
	pods := protectedPods(t)
	env.Scale(t, draining, 1)
	begun := untilDraining(t)
	witness, from := env.NewWitness(t, pool), env.AuditEnd(t)

	added := int32(0)
	perform := func(verb, operator, server string, components ...*controlplane.Component) {
		for _, component := range components {
			program := server
			if slices.Contains(operators, component) {
				program = operator
			}
			t.Run(verb+" "+component.Name, func(t *testing.T) {
				seen := witness.ExpectNone(t)
				witness.SetBaseline(t)
				added += int32(len(shardIDs))
				env.Scale(t, pool, replicas+added)
				run(t, component, program)
				replaced := env.AuditEnd(t)
				untilCounted(t, replicas+added)
				if witness.ExpectNone(t) == seen {
					t.Error("no call was checked, not even those of the scale-up")
				}
				assert.Equal(t, begun, untilDraining(t), "the drain")
				expectCreated(t, from, int(added))
				untilEvicting(t, replaced, pods)
			})
		}
	}
	p := env.StartProcedure(t, "Upgrade", map[string]string{
		"NAMESPACE": installation.Namespace,
		"OVERLAY":   env.Installation.Overlay(),
	})
	p.Run("Apply the kinds")
	p.Run("Apply the rest")
	perform("upgrade", operator, server, operators...) // as the Deployment does with its Pods
	p.Do("Replace the servers of a shard one by one", func() { perform("upgrade", operator, server, servers...) })
	p.Run("Check that the operator is connected")
	useEverySetting(t)
	perform("roll back", before.Operator, before.Server, slices.Concat(servers, operators)...)

	for _, pod := range pods {
		_, err := env.Kube.PolicyV1().PodDisruptionBudgets(draining).
			Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"spec":{"minAvailable":0}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	env.UntilRunning(t, draining, 1)
	untilCounted(t, replicas+added)
	expectCreated(t, from, int(added))
	acknowledged := slices.DeleteFunc(env.Calls(t, shardIDs[0]), func(c installation.Call) bool {
		return c.Method != installation.AcknowledgeDrained
	})
	require.Len(t, acknowledged, 1, "acknowledged drains")
	require.Equal(t, begun.instance, acknowledged[0].Instance)
}

// untilCounted waits until the pool has so many instances. It is ready, unless a server does not know its
// settings.
func untilCounted(t *testing.T, replicas int32) {
	t.Helper()
	testcluster.Eventually(t, 3*time.Minute, fmt.Sprintf("the pool has %d instances", replicas), func(ctx context.Context) error {
		nodes, err := env.Nodes(ctx, pool)
		if err != nil {
			return err
		}
		counted, err := env.NstanceMachinePool(ctx, pool)
		if err != nil {
			return err
		}
		if got := ptr.Deref(counted.Status.Replicas, 0); got != replicas || len(nodes) != int(replicas) {
			return fmt.Errorf("%d instances and %d Nodes, want %d", got, len(nodes), replicas)
		}
		ready := meta.FindStatusCondition(counted.Status.Conditions, v1beta1.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionTrue && ready.Reason != v1beta1.ReasonUnsupportedByServer {
			return fmt.Errorf("Ready is %+v", ready)
		}
		return nil
	})
}

// useEverySetting gives the pool every setting that the previous version may not know, in a way that
// replaces no instance: the instances are of the first candidate. A roll-back finds the settings.
func useEverySetting(t *testing.T) {
	t.Helper()
	shape, err := env.Group(t.Context(), shardIDs[0], pool)
	require.NoError(t, err)
	_, err = env.PatchNstanceMachinePool(t.Context(), pool, fmt.Sprintf(`{"spec":{
		"rotation":{"maxSurge":"25%%","canary":1,"maxAgeSeconds":86400},
		"remediation":{"checks":{"unhealthyNodeConditions":[{"type":"Ready","status":"Unknown","timeoutSeconds":86400}]}},
		"scaleDown":{"maxInFlight":1},"drainTimeoutSeconds":7200,
		"node":{"labels":{"example.com/team":"red"},"taints":[{"key":"example.com/dedicated","value":"red","effect":"PreferNoSchedule","propagation":"Always"}],"maxPods":50},
		"instanceType":null,"returnAfterSeconds":600,
		"candidates":[{"name":"as-before","instanceType":%q,"maxReplicas":"100%%"},{"name":"other","instanceType":"m7i.2xlarge"}]
	}}`, shape.GetInstanceType()))
	require.NoError(t, err)
	testcluster.Eventually(t, 2*time.Minute, "every server has the settings of the pool", func(ctx context.Context) error {
		for _, shard := range shardIDs {
			group, err := env.Group(ctx, shard, pool)
			if err != nil {
				return err
			}
			if group.GetRotation() == nil || group.GetNodeSettings().GetMaxPods() != 50 || len(group.GetCandidateUse()) != 2 {
				return fmt.Errorf("shard %s has %v", shard, group)
			}
		}
		rotated, err := env.NstanceMachinePool(ctx, pool)
		if err != nil {
			return err
		}
		return testcluster.HasCondition(rotated.Status.Conditions, v1beta1.ConditionRollingOut, metav1.ConditionFalse, v1beta1.ReasonNotRollingOut)
	})
}

// run replaces the process of a component by a process of another program. Only the name of the
// program differs: the flags come from the Deployment of this version.
func run(t *testing.T, component *controlplane.Component, program string) {
	t.Helper()
	require.NoError(t, component.Stop(t.Context()))
	component.Argv = slices.Concat([]string{program}, component.Argv[1:])
	testcluster.Start(t, component)
}

// protectedPods creates a Pod on each Node of the group that drains, each with a budget of
// its name that allows no eviction.
func protectedPods(t *testing.T) []corev1.Pod {
	t.Helper()
	env.CreateNamespace(t, draining)
	nodes, err := env.Nodes(t.Context(), draining)
	require.NoError(t, err)
	var pods []corev1.Pod
	for _, node := range nodes {
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: draining, Name: node.Name, Labels: map[string]string{"app": node.Name}},
			Spec: corev1.PodSpec{
				NodeName: node.Name, AutomountServiceAccountToken: ptr.To(false),
				Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}},
			},
		}
		_, err := env.Kube.CoreV1().Pods(draining).Create(t.Context(), &pod, metav1.CreateOptions{})
		require.NoError(t, err)
		budgets := env.Kube.PolicyV1().PodDisruptionBudgets(draining)
		_, err = budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		testcluster.Eventually(t, time.Minute, "the budget of "+pod.Name+" is in force", func(ctx context.Context) error {
			budget, err := budgets.Get(ctx, pod.Name, metav1.GetOptions{})
			if err == nil && (budget.Status.CurrentHealthy != 1 || budget.Status.DisruptionsAllowed != 0) {
				err = fmt.Errorf("status %+v", budget.Status)
			}
			return err
		})
		pods = append(pods, pod)
	}
	return pods
}

// drain is a drain that a server reports.
type drain struct {
	instance        string
	begin, deadline time.Time
}

// untilDraining returns the drain of the group that drains, as its server reports it to a
// client that connects now.
func untilDraining(t *testing.T) drain {
	t.Helper()
	var found drain
	testcluster.Eventually(t, time.Minute, "the server reports the drain", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		connection, err := env.Installation.Dial(shardIDs[0])
		if err != nil {
			return err
		}
		defer func() { _ = connection.Close() }()
		watch, err := nstancev1.NewOperatorServiceClient(connection).WatchInstances(ctx, &emptypb.Empty{})
		if err != nil {
			return err
		}
		for {
			event, err := watch.Recv()
			if err != nil {
				return err
			}
			if event.GetGroup() != draining {
				continue
			}
			if event.GetStatus() != "pending_deletion" {
				return fmt.Errorf("the instance is %s", event.GetStatus())
			}
			found = drain{event.GetInstanceId(), event.GetUnhealthyAt().AsTime(), event.GetDeleteAt().AsTime()}
			return nil
		}
	})
	return found
}

// untilEvicting waits until the operator that leads since from tries to evict a protected
// Pod.
func untilEvicting(t *testing.T, from controlplane.Position, pods []corev1.Pod) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the drain continues", func(context.Context) error {
		evictions := env.OperatorRequests(t, from, func(r controlplane.Request) bool {
			return r.Subresource == "eviction" && slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == r.Name })
		})
		if len(evictions) == 0 {
			return errors.New("no eviction was tried")
		}
		return nil
	})
}

// expectCreated fails the test unless so many instances were created since from. Each
// instance of these shards is a Node that its server creates.
func expectCreated(t *testing.T, from controlplane.Position, want int) {
	t.Helper()
	created := env.Writes(t, from, func(w controlplane.Write) bool {
		return w.Verb == "create" && w.Resource == "nodes" && w.Code == http.StatusCreated
	})
	if len(created) != want {
		t.Errorf("%d instances were created, want %d:%s", len(created), want, strings.TrimSpace(testcluster.Describe(created)))
	}
}
