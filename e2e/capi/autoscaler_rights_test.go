// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// autoscalerAccount is the account of manifests/cluster-autoscaler.
const autoscalerAccount = "cluster-autoscaler"

// The API server accepts the objects of manifests/cluster-autoscaler. They allow the
// autoscaler to annotate Machines and scale MachinePools, and to delete nothing.
func TestAutoscalerRights(t *testing.T) {
	require.NoError(t, env.Installation.Apply(t.Context(), filepath.Join("testdata", "cluster-autoscaler")))
	const (
		nstance = installation.Namespace
		other   = metav1.NamespaceDefault
	)
	for _, may := range []request{
		{verb: "list", group: "cluster.x-k8s.io", resource: "machinepools", namespace: nstance},
		{verb: "watch", group: "cluster.x-k8s.io", resource: "machinepools", namespace: nstance},
		{verb: "get", group: "cluster.x-k8s.io", resource: "machinepools", subresource: "scale", namespace: nstance},
		{verb: "patch", group: "cluster.x-k8s.io", resource: "machinepools", subresource: "scale", namespace: nstance},
		{verb: "update", group: "cluster.x-k8s.io", resource: "machinepools", subresource: "scale", namespace: nstance},
		{verb: "list", group: "cluster.x-k8s.io", resource: "machines", namespace: nstance},
		{verb: "watch", group: "cluster.x-k8s.io", resource: "machines", namespace: nstance},
		{verb: "update", group: "cluster.x-k8s.io", resource: "machines", namespace: nstance},
		{verb: "watch", group: "cluster.x-k8s.io", resource: "machinesets", namespace: nstance},
		{verb: "watch", group: "cluster.x-k8s.io", resource: "machinedeployments", namespace: nstance},
		{verb: "watch", group: "infrastructure.cluster.x-k8s.io", resource: "nstancemachinepools", namespace: nstance},
		{verb: "update", group: "coordination.k8s.io", resource: "leases", namespace: nstance, name: "cluster-autoscaler"},
		{verb: "update", resource: "configmaps", namespace: nstance, name: "cluster-autoscaler-status"},
		{verb: "update", resource: "nodes"},
		{verb: "watch", resource: "pods", namespace: other},
		{verb: "create", resource: "pods", subresource: "eviction", namespace: other},
		{verb: "create", resource: "events", namespace: other},
	} {
		// The API server reads roles from a cache.
		testcluster.Eventually(t, 30*time.Second, may.String(), func(ctx context.Context) error {
			allowed, err := may.allowed(ctx)
			if err == nil && !allowed {
				err = fmt.Errorf("%s may not %s", autoscalerAccount, may)
			}
			return err
		})
	}
	for _, mayNot := range []request{
		{verb: "delete", group: "cluster.x-k8s.io", resource: "machines", namespace: nstance},
		{verb: "deletecollection", group: "cluster.x-k8s.io", resource: "machines", namespace: nstance},
		{verb: "create", group: "cluster.x-k8s.io", resource: "machines", namespace: nstance},
		{verb: "update", group: "cluster.x-k8s.io", resource: "machines", namespace: other},
		{verb: "patch", group: "cluster.x-k8s.io", resource: "machinepools", namespace: nstance},
		{verb: "update", group: "cluster.x-k8s.io", resource: "machinepools", namespace: nstance},
		{verb: "delete", group: "cluster.x-k8s.io", resource: "machinepools", namespace: nstance},
		{verb: "patch", group: "cluster.x-k8s.io", resource: "machinepools", subresource: "scale", namespace: other},
		{verb: "patch", group: "cluster.x-k8s.io", resource: "machinedeployments", subresource: "scale", namespace: nstance},
		{verb: "patch", group: "infrastructure.cluster.x-k8s.io", resource: "nstancemachinepools", namespace: nstance},
		{verb: "update", group: "infrastructure.cluster.x-k8s.io", resource: "nstancemachinepools", subresource: "status", namespace: nstance},
		{verb: "get", group: "infrastructure.cluster.x-k8s.io", resource: "nstancemachines", namespace: nstance},
		{verb: "update", group: "coordination.k8s.io", resource: "leases", namespace: nstance, name: "nstance-operator-leader-election"},
		{verb: "get", resource: "configmaps", namespace: nstance, name: "nstance-shards"},
		{verb: "get", resource: "secrets", namespace: nstance, name: "nstance-operator-cert"},
		{verb: "delete", resource: "nodes"},
		{verb: "delete", resource: "pods", namespace: other},
	} {
		allowed, err := mayNot.allowed(t.Context())
		require.NoError(t, err)
		if allowed {
			t.Errorf("%s may %s", autoscalerAccount, mayNot)
		}
	}
}

// request is what an account requests.
type request struct{ verb, group, resource, subresource, namespace, name string }

func (r request) String() string {
	return fmt.Sprintf("%s %q in namespace %q", rightTo(r.verb, r.group, r.resource+subresource(r.subresource), ""), r.name, r.namespace)
}

// allowed reports whether the API server allows the autoscaler to do it.
func (r request) allowed(ctx context.Context) (bool, error) {
	review, err := env.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:" + installation.Namespace + ":" + autoscalerAccount,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + installation.Namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.subresource, Namespace: r.namespace, Name: r.name,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review whether %s may %s: %w", autoscalerAccount, r, err)
	}
	return review.Status.Allowed, nil
}
