// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
)

const (
	secondTenant    = "team"
	secondNamespace = "nstance-team"
)

// testSecond installs a second operator, which has policies of its own.
func testSecond(t *testing.T, cp *controlplane.ControlPlane, n *Installation) {
	_, err := n.InstallSecond(t.Context(), secondNamespace, secondTenant)
	require.NoError(t, err)
	expectLimits(t, cp, map[string]string{Namespace: "nstance-operator-replicas", secondNamespace: "nstance-operator-team-replicas"})
}

// expectLimits fails unless the policy for each namespace rejects too many replicas.
func expectLimits(t *testing.T, cp *controlplane.ControlPlane, policies map[string]string) {
	t.Helper()
	client, err := capi.NewForConfig(cp.AdminConfig())
	require.NoError(t, err)
	for namespace, policy := range policies {
		machinePool := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Name: "large", Namespace: namespace}}
		machinePool.Spec.ClusterName, machinePool.Spec.Replicas = "any", ptr.To[int32](10001)
		template := &machinePool.Spec.Template.Spec
		template.ClusterName, template.Bootstrap.DataSecretName = "any", ptr.To("")
		template.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: "large"}
		until(t, "the policy for "+namespace+" holds", func(ctx context.Context) error {
			_, err := client.MachinePools(namespace).Create(ctx, machinePool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil || !strings.Contains(err.Error(), "'"+policy+"' with binding '"+policy+"'") {
				return fmt.Errorf("got %w, want it rejected by %s", cmp.Or(err, errors.New("no error")), policy)
			}
			return nil
		})
	}
}
