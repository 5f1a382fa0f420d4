// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// Cluster API has exactly the rights that it needs: no request is forbidden, and every right of
// manifests/capi-workload is used while it connects, reconciles a pool, deletes a Node and drains
// a Node.
func TestCAPIWorkloadRights(t *testing.T) {
	const name = "rights"
	from := env.AuditEnd(t)
	// If the API server streams the initial objects of a watch, Cluster API does not list
	// (https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists). With other
	// API servers it needs the right to list.
	restartCAPI(t, "KUBE_FEATURE_WatchListClient=false")
	t.Parallel()
	// A forbidden request fails the test; Cluster API would retry it for ever.
	await := func(what string, check func(context.Context) error) {
		t.Helper()
		testcluster.Eventually(t, 3*time.Minute, what, func(ctx context.Context) error {
			for _, r := range capiRequests(t, from, func(r controlplane.Request) bool { return r.Code == http.StatusForbidden }) {
				t.Fatalf("%s: Cluster API was forbidden to %q", what, right(r))
			}
			return check(ctx)
		})
	}

	env.CreatePoolForTest(t, name, 3)
	await("the pool runs", func(ctx context.Context) error { return env.Running(ctx, name, 3) })
	env.Scale(t, name, 2)
	await("the pool is scaled down", func(ctx context.Context) error { return env.Running(ctx, name, 2) })

	machine := createMachine(t, "drained", name)
	await("the Machine has its Node", machine.hasNode)
	machine.fill(t)
	await("Pods run on the Node", machine.hasPods)
	machine.delete(t)
	await("the Machine waits for its volume", func(context.Context) error {
		if len(capiRequests(t, from, func(r controlplane.Request) bool { return r.Resource == "persistentvolumes" })) == 0 {
			return errors.New("Cluster API has not read volumes")
		}
		return nil
	})
	machine.detach(t)
	await("the Machine and its Node are deleted", machine.deleted)

	granted, used := grantedRights(t), usedRights(t, from)
	for _, right := range granted {
		if !slices.Contains(used, right) && right != getNodes {
			t.Errorf("the right to %s is not used", right)
		}
	}
	for _, right := range used {
		if !slices.Contains(granted, right) {
			t.Errorf("the right to %s was used and is not in the role", right)
		}
	}
	t.Logf("used: %s", strings.Join(used, ", "))
}

// getNodes is documented as needed, and not used by this release of Cluster API,
// which reads Nodes from its cache.
const getNodes = "get nodes"

// right returns the right that a request needs, such as "create pods/eviction" or "get /".
func right(r controlplane.Request) string {
	return rightTo(r.Verb, r.Group, r.Resource+subresource(r.Subresource), r.Path)
}

func subresource(name string) string {
	if name == "" {
		return ""
	}
	return "/" + name
}

func rightTo(verb, group, resource, path string) string {
	switch {
	case path != "":
		return verb + " " + path
	case group != "":
		return fmt.Sprintf("%s %s of %s", verb, resource, group)
	default:
		return verb + " " + resource
	}
}

// grantedRights returns the rights in the role of the kubeconfig's account.
func grantedRights(t testing.TB) []string {
	t.Helper()
	role, err := env.Kube.RbacV1().ClusterRoles().Get(t.Context(), capiAccount, metav1.GetOptions{})
	require.NoError(t, err)
	var rights []string
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			for _, path := range rule.NonResourceURLs {
				rights = append(rights, rightTo(verb, "", "", path))
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					rights = append(rights, rightTo(verb, group, resource, ""))
				}
			}
		}
	}
	slices.Sort(rights)
	return rights
}

// usedRights returns the rights for which the API server consulted that role. Discovery is not
// among them, because every user may do it.
func usedRights(t testing.TB, from controlplane.Position) []string {
	t.Helper()
	rights := map[string]bool{}
	for _, r := range capiRequests(t, from) {
		if strings.Contains(r.Reason, fmt.Sprintf("of ClusterRole %q", capiAccount)) {
			rights[right(r)] = true
		}
	}
	return slices.Sorted(maps.Keys(rights))
}

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

// request has the attributes of a request that the API server authorizes.
type request struct{ verb, group, resource, subresource, namespace, name string }

func (r request) String() string {
	return fmt.Sprintf("%s %q in namespace %q", rightTo(r.verb, r.group, r.resource+subresource(r.subresource), ""), r.name, r.namespace)
}

// allowed reports whether the API server allows the request to the autoscaler.
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
