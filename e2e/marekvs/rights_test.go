// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvs

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/e2e/marekvsoperator"
	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// The rights of the shipped ServiceAccount: every verb that the operator needs, and no other.
func TestRights(t *testing.T) {
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	for _, c := range []struct {
		namespace, group, resource, subresource, name string
		granted                                       []string
	}{
		{"default", "marekvs.io", "marekvsclusters", "", "", []string{"list", "watch"}},
		{"default", "marekvs.io", "marekvsclusters", "status", "", []string{"patch"}},
		{"default", "apps", "statefulsets", "", "", []string{"get", "list", "watch", "create", "patch", "delete"}},
		{"default", "", "services", "", "", []string{"get", "list", "watch", "create", "patch"}},
		{"default", "policy", "poddisruptionbudgets", "", "", []string{"get", "list", "watch", "create", "patch"}},
		{"default", "", "pods", "", "", []string{"get", "list", "watch", "delete"}},
		{"default", "", "persistentvolumeclaims", "", "", []string{"get", "list", "watch", "patch", "delete"}},
		{"", "storage.k8s.io", "storageclasses", "", "", []string{"get"}},
		{"default", "events.k8s.io", "events", "", "", []string{"create"}},
		{marekvsoperator.Namespace, "coordination.k8s.io", "leases", "", "", []string{"create"}},
		{marekvsoperator.Namespace, "coordination.k8s.io", "leases", "", "marekvs-operator-leader-election", []string{"get", "create", "update"}},
		{"default", "coordination.k8s.io", "leases", "", "marekvs-operator-leader-election", nil},
		{"default", "", "secrets", "", "", nil},
		{"default", "", "configmaps", "", "", nil},
		{"default", "", "pods", "exec", "", nil},
		{"default", "", "pods", "eviction", "", nil},
		{"default", "apps", "statefulsets", "scale", "", nil},
		{"", "", "nodes", "", "", []string{"get", "list"}},
		{"", "", "namespaces", "", "", nil},
		{"", "", "persistentvolumes", "", "", []string{"get"}},
		{"", "rbac.authorization.k8s.io", "clusterroles", "", "", nil},
	} {
		var granted []string
		for _, verb := range verbs {
			review, err := env.kube.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User:   "system:serviceaccount:" + marekvsoperator.Namespace + ":marekvs-operator",
					Groups: []string{"system:serviceaccounts", "system:authenticated"},
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: c.namespace, Group: c.group, Resource: c.resource, Subresource: c.subresource, Name: c.name, Verb: verb,
					},
				},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			if review.Status.Allowed {
				granted = append(granted, verb)
			}
		}
		assert.Equal(t, c.granted, granted, "%s %s/%s %s", c.namespace, c.resource, c.subresource, c.name)
	}
}

// Only one of 6 nodes with 2 copies of the data may be evicted at a time. A budget that was
// deleted is created again.
func TestOneEvictionAtATime(t *testing.T) {
	t.Parallel()
	create(t, "evicted", v1alpha1.MarekvsClusterSpec{Nodes: 6, ReplicationFactor: 2})
	until(t, "evicted", "6 nodes", healthy(6))
	budgets := env.kube.PolicyV1().PodDisruptionBudgets(namespace)
	before, err := budgets.Get(t.Context(), "evicted", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, budgets.Delete(t.Context(), "evicted", metav1.DeleteOptions{}))
	err = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		now, err := budgets.Get(ctx, "evicted", metav1.GetOptions{})
		return err == nil && now.UID != before.UID && now.Status.DisruptionsAllowed == 1, nil
	})
	require.NoError(t, err, "the budget is created again, and allows one eviction")
	evict := func(pod string) error {
		return env.kube.PolicyV1().Evictions(namespace).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}})
	}
	require.NoError(t, evict("evicted-0"))
	err = evict("evicted-1")
	assert.True(t, apierrors.IsTooManyRequests(err), "the second eviction: %v", err)
	until(t, "evicted", "6 nodes again", healthy(6))
}
