// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
)

const (
	// capiAccount is whose token the kubeconfig for Cluster API holds.
	capiAccount = "nstance-capi-workload"
	// capiUser is Cluster API in the audit log when it uses that kubeconfig.
	capiUser = "system:serviceaccount:" + nstance.Namespace + ":" + capiAccount
)

// capiRequests are the requests with the kubeconfig since from.
func capiRequests(t testing.TB, from controlplane.Position, match func(controlplane.Request) bool) []controlplane.Request {
	t.Helper()
	requests, err := env.cp.AuditLog().Requests(from, func(r controlplane.Request) bool {
		return r.User == capiUser && (match == nil || match(r))
	})
	if err != nil {
		t.Fatal(err)
	}
	return requests
}

// restartCAPI has Cluster API read the kubeconfig anew, with variables added to
// its environment until the test ends.
func restartCAPI(t testing.TB, variables ...string) {
	t.Helper()
	component := env.cp.Component(controlplane.CAPI)
	before := component.Env
	t.Cleanup(func() { component.Env = before })
	component.Env = append(slices.Clip(before), variables...)
	if err := component.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := component.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// connected succeeds when the Cluster is there, Cluster API says that it is
// available, and that it reaches the Nodes.
func connected(ctx context.Context) error {
	cluster, err := env.capi.Clusters(nstance.Namespace).Get(ctx, clusterName, metav1.GetOptions{})
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
	return env.kube.CoreV1().Secrets(nstance.Namespace).Get(ctx, clusterName+"-kubeconfig", metav1.GetOptions{})
}

func eventuallyConnected(t testing.TB) {
	t.Helper()
	eventually(t, 2*time.Minute, "Cluster API is connected", connected)
}
