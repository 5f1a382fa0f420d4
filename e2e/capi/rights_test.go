// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
)

// Cluster API has exactly the rights that it needs: none of its requests is forbidden,
// and every right of manifests/capi-workload is used while it connects, reconciles a
// pool, deletes a Node and drains one.
func TestCAPIWorkloadRights(t *testing.T) {
	const name = "rights"
	from := env.AuditEnd(t)
	// When the API server streams the first objects of a watch, Cluster API does not
	// list what it watches. It lists with other API servers.
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

// grantedRights returns those of the role of the kubeconfig's account.
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

// usedRights returns those for which the API server consulted that role: discovery is
// allowed to every user.
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
