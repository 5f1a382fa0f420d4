// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

const (
	// capiAccount is the account whose token the kubeconfig for Cluster API has.
	capiAccount = "nstance-capi-workload"
	// capiUser is Cluster API in the audit log when it uses that kubeconfig.
	capiUser = "system:serviceaccount:" + installation.Namespace + ":" + capiAccount
)

// capiRequests returns the requests with the kubeconfig since from.
func capiRequests(t testing.TB, from controlplane.Position, match ...testcluster.Match) []controlplane.Request {
	t.Helper()
	return env.Requests(t, from, append(match, func(r controlplane.Request) bool { return r.User == capiUser })...)
}

// restartCAPI restarts Cluster API, so that it reads the kubeconfig again, with
// variables added to its environment until the end of the test.
func restartCAPI(t testing.TB, variables ...string) {
	t.Helper()
	component := env.Component(controlplane.CAPI)
	before := component.Env
	t.Cleanup(func() { component.Env = before })
	component.Env = append(slices.Clip(before), variables...)
	require.NoError(t, component.Stop(t.Context()))
	require.NoError(t, component.Start(t.Context()))
}

// connected succeeds when Cluster API reports that the Cluster is available, and that
// its API server can be reached.
func connected(ctx context.Context) error {
	cluster, err := env.Clusters().Get(ctx, installation.ClusterName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if cluster.Status.Phase != string(clusterv1.ClusterPhaseProvisioned) {
		return fmt.Errorf("phase %s", cluster.Status.Phase)
	}
	for _, kind := range []string{clusterv1.ClusterAvailableCondition, clusterv1.ClusterRemoteConnectionProbeCondition} {
		if !meta.IsStatusConditionTrue(cluster.Status.Conditions, kind) {
			return fmt.Errorf("condition %s is %+v", kind, meta.FindStatusCondition(cluster.Status.Conditions, kind))
		}
	}
	return nil
}

func kubeconfigSecret(ctx context.Context) (*corev1.Secret, error) {
	return env.Kube.CoreV1().Secrets(installation.Namespace).Get(ctx, installation.ClusterName+"-kubeconfig", metav1.GetOptions{})
}

func eventuallyConnected(t testing.TB) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "Cluster API is connected", connected)
}
