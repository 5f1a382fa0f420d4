// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterctl "sigs.k8s.io/cluster-api/cmd/clusterctl/client"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/runbook"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const uninstalledPool = "workers" // testPool has created it

// uninstall deletes the operator, and reads the objects that are left.
type uninstall struct {
	cp      *controlplane.ControlPlane
	n       *Installation
	nstance versioned.Interface
	kube    string
}

// testUninstall removes the operator with clusterctl and by the procedure: neither terminates
// an instance. Then it deletes a kind and the namespace, which no policy prevents.
func testUninstall(t *testing.T, cp *controlplane.ControlPlane, n *Installation, binaries controlplane.Binaries, client clusterctl.Client) {
	u := &uninstall{cp: cp, n: n, nstance: versioned.NewForConfigOrDie(cp.AdminConfig()), kube: binaries.Kube}
	before := u.groups(t.Context(), t)
	require.NotEmpty(t, before)

	require.NoError(t, client.Delete(t.Context(), clusterctl.DeleteOptions{
		Kubeconfig:              clusterctl.Kubeconfig{Path: cp.KubeconfigPath()},
		InfrastructureProviders: []string{"nstance"},
	}))
	u.expectDeleted(t, components)
	assert.Contains(t, u.kubectl(t, "get", "-o", "name", "clusterroles,clusterrolebindings"), "/nstance-operator\n", "what it leaves")
	u.expectPool(t, "clusterctl delete")

	// The procedure leaves the same objects as clusterctl.
	require.NoError(t, n.Apply(t.Context(), filepath.Join(n.options.Manifests, "operator")))
	p := runbook.StartProcedure(t, "Uninstall", runbook.Tools{
		Root:       filepath.Dir(n.options.Manifests),
		Kubeconfig: cp.KubeconfigPath(),
		Programs:   map[string]string{"kubectl": binaries.Kube},
	}, map[string]string{"NAMESPACE": Namespace, "UNINSTALL": "manifests/uninstall"})
	p.Run("Delete the operator, its rights, webhook and policies")
	require.NoError(t, cp.Component("operator").Stop(t.Context()))
	p.Run("Wait until the operator has stopped")
	u.expectDeleted(t, components+",clusterroles,clusterrolebindings")
	u.expectPool(t, "kubectl delete -k")
	assert.Equal(t, before, u.groups(t.Context(), t), "groups of the shards")

	expectLimits(t, cp, map[string]string{secondNamespace: "nstance-operator-team-replicas"})

	u.deleteKind(t, before)
	u.deleteNamespace(t)
}

// deleteKind deletes the kind of the shard groups, which the next operator completes by
// terminating the instances. Then it installs the kind again.
func (u *uninstall) deleteKind(t *testing.T, before map[string][]string) {
	const kind = "customresourcedefinitions/nstanceshardgroups.infrastructure.cluster.x-k8s.io"
	u.kubectl(t, "delete", "--wait=false", kind)
	u.expectPool(t, "the deletion of a kind")
	assert.Equal(t, before, u.groups(t.Context(), t), "groups of the shards")

	require.NoError(t, u.n.Apply(t.Context(), filepath.Join(u.n.options.Manifests, "operator")))
	// The last operator could not release its lease, because its rights were deleted first.
	u.kubectl(t, "delete", "--namespace", Namespace, "lease", "nstance-operator-leader-election")
	_, err := u.n.StartOperator(t.Context(), Operator{Component: "next"})
	require.NoError(t, err)
	u.kubectl(t, "wait", "--for=delete", "--timeout=2m", kind)
	assert.Empty(t, u.groups(t.Context(), t), "groups of the shards")
	require.NoError(t, u.cp.Component("next").Stop(t.Context()))

	require.NoError(t, u.n.Apply(t.Context(), filepath.Join(u.n.options.Manifests, "operator")))
	require.NoError(t, u.cp.Component("next").Start(t.Context()))
	until(t, "the pool runs again", func(ctx context.Context) error {
		now := u.groups(ctx, t)
		for shard, instances := range before {
			if len(now[shard]) != len(instances) {
				return fmt.Errorf("there are %v", now)
			}
		}
		return nil
	})
	require.NoError(t, u.cp.Component("next").Kill(t.Context()))
}

// deleteNamespace deletes the namespace, which the policy for static pools does not
// prevent. Without an operator its objects wait.
func (u *uninstall) deleteNamespace(t *testing.T) {
	before := u.groups(t.Context(), t)
	pools := u.nstance.InfrastructureV1beta1().NstanceMachinePools(Namespace)
	_, err := pools.Patch(t.Context(), uninstalledPool, types.MergePatchType, []byte(`{"status":{"isStatic":true}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	until(t, "users do not delete a static pool", func(ctx context.Context) error {
		err := pools.Delete(ctx, uninstalledPool, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("got %w, want it forbidden", cmp.Or(err, errors.New("no error")))
		}
		return nil
	})
	// The namespace would first wait for the Pods of the Deployment.
	u.kubectl(t, "delete", "--namespace", Namespace, "--all", "--force", "--grace-period=0", "deployments,pods")
	u.kubectl(t, "delete", "namespace", Namespace, "--wait=false")
	until(t, "the pool and its shard groups are being deleted", func(ctx context.Context) error {
		pool, err := pools.Get(ctx, uninstalledPool, metav1.GetOptions{})
		if err != nil {
			return err
		}
		groups, err := u.nstance.InfrastructureV1beta1().NstanceShardGroups(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if pool.DeletionTimestamp == nil || len(groups.Items) == 0 {
			return fmt.Errorf("the pool is not being deleted, or has none of its %d shard groups", len(groups.Items))
		}
		for _, group := range groups.Items {
			if group.DeletionTimestamp == nil {
				return fmt.Errorf("%s is not being deleted", group.Name)
			}
		}
		return nil
	})
	assert.Equal(t, before, u.groups(t.Context(), t), "groups of the shards")
	_, err = u.n.client.CoreV1().ServiceAccounts(Namespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "next"}}, metav1.CreateOptions{})
	require.ErrorContains(t, err, "being terminated", "nothing can be installed")
}

func (u *uninstall) kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	arguments = slices.Concat([]string{"kubectl", "--kubeconfig", u.cp.KubeconfigPath()}, arguments)
	output, err := exec.CommandContext(t.Context(), u.kube, arguments...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return string(output)
}

// components are the kinds of the objects that an uninstallation deletes.
const components = "deployments,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies," +
	"validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings"

// expectDeleted fails if there is an object of the first operator of these kinds, or if the
// namespace or one of the operator's kinds is missing.
func (u *uninstall) expectDeleted(t *testing.T, kinds string) {
	t.Helper()
	left := u.kubectl(t, "get", "-o", "name", "--namespace", Namespace, kinds)
	for line := range strings.Lines(left) {
		if !strings.Contains(line, "-"+secondTenant) {
			assert.NotContains(t, line, "nstance")
		}
	}
	kept := u.kubectl(t, "get", "-o", "name", "namespaces,customresourcedefinitions")
	assert.Contains(t, kept, "namespace/"+Namespace)
	assert.Equal(t, 5, strings.Count(kept, ".infrastructure.cluster.x-k8s.io\n"), "kinds")
}

// expectPool fails if the pool or its shard groups do not exist.
func (u *uninstall) expectPool(t *testing.T, after string) {
	t.Helper()
	objects := u.kubectl(t, "get", "-o", "name", "--namespace", Namespace, "machinepools,nstancemachinepools,nstanceshardgroups")
	for _, name := range []string{"machinepool.cluster.x-k8s.io/workers", "nstancemachinepool.", "workers--us-west-2a", "workers--us-west-2b"} {
		assert.Contains(t, objects, name, "after %s", after)
	}
}

// groups returns the instances of the pool's groups by shard.
func (u *uninstall) groups(ctx context.Context, t *testing.T) map[string][]string {
	t.Helper()
	groups := map[string][]string{}
	for _, shard := range u.n.options.Shards {
		connection, err := u.n.Dial(shard.ID)
		require.NoError(t, err)
		defer connection.Close()
		list, err := nstancev1.NewOperatorServiceClient(connection).ListGroups(ctx, &emptypb.Empty{})
		require.NoError(t, err)
		for _, group := range list.GetGroups() {
			if group.GetKey() == uninstalledPool {
				groups[shard.ID] = group.GetProviderIds()
			}
		}
	}
	return groups
}

func until(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	var state error
	err := wait.PollUntilContextTimeout(t.Context(), 250*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		state = check(ctx)
		return state == nil, nil
	})
	require.NoError(t, errors.Join(err, state), what)
}
