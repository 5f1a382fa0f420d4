// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/nstance"
)

// autoscalerAccount is the account of manifests/cluster-autoscaler.
const autoscalerAccount = "cluster-autoscaler"

// The API server takes the objects of manifests/cluster-autoscaler, and by them
// the autoscaler may annotate Machines and scale MachinePools. Whatever goes, goes
// because of that: it deletes nothing by itself.
func TestAutoscalerRights(t *testing.T) {
	if err := env.n.Apply(t.Context(), filepath.Join("testdata", "cluster-autoscaler")); err != nil {
		t.Fatal(err)
	}
	const (
		ours  = nstance.Namespace
		other = metav1.NamespaceDefault
	)
	for _, may := range []request{
		{"list", "cluster.x-k8s.io", "machinepools", "", ours, ""},
		{"watch", "cluster.x-k8s.io", "machinepools", "", ours, ""},
		{"get", "cluster.x-k8s.io", "machinepools", "scale", ours, ""},
		{"patch", "cluster.x-k8s.io", "machinepools", "scale", ours, ""},
		{"update", "cluster.x-k8s.io", "machinepools", "scale", ours, ""},
		{"list", "cluster.x-k8s.io", "machines", "", ours, ""},
		{"watch", "cluster.x-k8s.io", "machines", "", ours, ""},
		{"update", "cluster.x-k8s.io", "machines", "", ours, ""},
		{"watch", "cluster.x-k8s.io", "machinesets", "", ours, ""},
		{"watch", "cluster.x-k8s.io", "machinedeployments", "", ours, ""},
		{"watch", "infrastructure.cluster.x-k8s.io", "nstancemachinepools", "", ours, ""},
		{"update", "coordination.k8s.io", "leases", "", ours, "cluster-autoscaler"},
		{"update", "", "configmaps", "", ours, "cluster-autoscaler-status"},
		{"update", "", "nodes", "", "", ""},
		{"watch", "", "pods", "", other, ""},
		{"create", "", "pods", "eviction", other, ""},
		{"create", "", "events", "", other, ""},
	} {
		// The API server reads roles from a cache.
		eventually(t, 30*time.Second, may.String(), func(ctx context.Context) error {
			allowed, err := may.allowed(ctx)
			if err == nil && !allowed {
				err = fmt.Errorf("%s may not %s", autoscalerAccount, may)
			}
			return err
		})
	}
	for _, mayNot := range []request{
		{"delete", "cluster.x-k8s.io", "machines", "", ours, ""},
		{"deletecollection", "cluster.x-k8s.io", "machines", "", ours, ""},
		{"create", "cluster.x-k8s.io", "machines", "", ours, ""},
		{"update", "cluster.x-k8s.io", "machines", "", other, ""},
		{"patch", "cluster.x-k8s.io", "machinepools", "", ours, ""},
		{"update", "cluster.x-k8s.io", "machinepools", "", ours, ""},
		{"delete", "cluster.x-k8s.io", "machinepools", "", ours, ""},
		{"patch", "cluster.x-k8s.io", "machinepools", "scale", other, ""},
		{"patch", "cluster.x-k8s.io", "machinedeployments", "scale", ours, ""},
		{"patch", "infrastructure.cluster.x-k8s.io", "nstancemachinepools", "", ours, ""},
		{"update", "infrastructure.cluster.x-k8s.io", "nstancemachinepools", "status", ours, ""},
		{"get", "infrastructure.cluster.x-k8s.io", "nstancemachines", "", ours, ""},
		{"update", "coordination.k8s.io", "leases", "", ours, "nstance-operator-leader-election"},
		{"get", "", "configmaps", "", ours, "nstance-shards"},
		{"get", "", "secrets", "", ours, "nstance-operator-cert"},
		{"delete", "", "nodes", "", "", ""},
		{"delete", "", "pods", "", other, ""},
	} {
		allowed, err := mayNot.allowed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if allowed {
			t.Errorf("%s may %s", autoscalerAccount, mayNot)
		}
	}
}

// request is what an account wants to do.
type request struct{ verb, group, resource, subresource, namespace, name string }

func (r request) String() string {
	return fmt.Sprintf("%s %q in namespace %q", rightTo(r.verb, r.group, r.resource+subresource(r.subresource), ""), r.name, r.namespace)
}

// allowed asks the API server whether the autoscaler may do it.
func (r request) allowed(ctx context.Context) (bool, error) {
	review, err := env.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:" + nstance.Namespace + ":" + autoscalerAccount,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + nstance.Namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.subresource, Namespace: r.namespace, Name: r.name,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask whether %s may %s: %w", autoscalerAccount, r, err)
	}
	return review.Status.Allowed, nil
}
