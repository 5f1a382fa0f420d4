// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package rights compares the rights that the manifests grant to the operator with the rights that
// it used in the tests of all clusters.
package rights

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// roles are the names of the operator's Role and of its ClusterRoles. The second has what the
// operator may do in the cluster of the Nodes, which may be another cluster.
var roles = []string{"nstance-operator", "nstance-operator-workload"}

// Granted returns the rights that the manifests in a folder grant to the operator, sorted.
// A right is text, such as "patch nodes" or "get secrets nstance-operator-key". Wildcards
// are an error.
func Granted(manifests string) ([]string, error) {
	objects, err := controlplane.Render(filepath.Join(manifests, "rbac"))
	if err != nil {
		return nil, err
	}
	var rights []string
	for _, object := range objects {
		if kind := object.GetKind(); !slices.Contains(roles, object.GetName()) || kind != "Role" && kind != "ClusterRole" {
			continue
		}
		// A Role has the same rules as a ClusterRole.
		var parsed rbacv1.ClusterRole
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &parsed); err != nil {
			return nil, fmt.Errorf("read %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		for _, rule := range parsed.Rules {
			rights = append(rights, ofRule(rule)...)
		}
	}
	slices.Sort(rights)
	rights = slices.Compact(rights)
	for _, right := range rights {
		if strings.Contains(right, "*") {
			return nil, fmt.Errorf("a right has a wildcard: %s", right)
		}
	}
	return rights, nil
}

func ofRule(rule rbacv1.PolicyRule) (rights []string) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, verb := range rule.Verbs {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					rights = append(rights, text(verb, group, resource, name))
				}
			}
		}
	}
	return rights
}

func text(verb, group, resource, name string) string {
	if group != "" {
		resource += "." + group
	}
	return strings.TrimSpace(verb + " " + resource + " " + name)
}

// Used returns the rights for which the API server consulted the roles of the operator,
// each with and without the name of the object, sorted, and the requests of a user that
// it refused for lack of a right.
func Used(log controlplane.AuditLog, user string) (used []string, refused []controlplane.Request, err error) {
	requests, err := log.Requests(0, func(r controlplane.Request) bool { return r.User == user })
	if err != nil {
		return nil, nil, err
	}
	for _, r := range requests {
		switch {
		case strings.HasPrefix(r.Reason, "RBAC: allowed") && slices.ContainsFunc(roles, func(role string) bool {
			return strings.Contains(r.Reason, fmt.Sprintf("Role %q", role))
		}):
			used = append(used, ofRequest(r)...)
		case r.Reason == "" && r.Code == http.StatusForbidden:
			refused = append(refused, r)
		}
	}
	slices.Sort(used)
	return slices.Compact(used), refused, nil
}

// ofRequest returns the rights that a request needs, each with and without the name of
// the object.
func ofRequest(r controlplane.Request) (rights []string) {
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	verbs := []string{r.Verb}
	if r.Verb == "patch" && r.Code == http.StatusCreated {
		// A server-side apply that creates its object needs both rights.
		verbs = append(verbs, "create")
	}
	for _, verb := range verbs {
		rights = append(rights, text(verb, r.Group, resource, ""), text(verb, r.Group, resource, r.Name))
	}
	return rights
}

// missing returns the requests that no granted right allows. An API server that has just
// started may refuse others, before it has read the roles.
func missing(refused []controlplane.Request, granted []string) []controlplane.Request {
	return slices.DeleteFunc(refused, func(r controlplane.Request) bool {
		return slices.ContainsFunc(ofRequest(r), func(right string) bool { return slices.Contains(granted, right) })
	})
}

// Unused returns the rights in granted that are not in used. A right to list counts as used with
// the right to watch the same resource: an informer lists only if the API server cannot stream the
// initial objects of a watch
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists), and the API
// server of the tests can.
func Unused(granted, used []string) (unused []string) {
	for _, right := range granted {
		verb, rest, _ := strings.Cut(right, " ")
		if !slices.Contains(used, right) && right != ownersOfPools && (verb != "list" || !slices.Contains(used, "watch "+rest)) {
			unused = append(unused, right)
		}
	}
	return unused
}

// ownersOfPools is the right to change the owners of a pool, which the audit log does not show: the
// plugin OwnerReferencesPermissionEnforcement checks it during a request to patch the pool
// (https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#ownerreferencespermissionenforcement).
const ownersOfPools = "delete nstancemachinepools." + v1beta1.GroupName

// FolderVariable is the environment variable with the folder of the records. Without it
// nothing is recorded.
const FolderVariable = "NSTANCE_E2E_RIGHTS"

// Record writes the rights that a user has used in a cluster to a file of that name in the
// folder, in place of what an earlier run wrote. A request for which the manifests grant no
// right is an error.
func Record(name string, log controlplane.AuditLog, user, manifests string) error {
	used, refused, err := Used(log, user)
	if err != nil {
		return err
	}
	granted, err := Granted(manifests)
	if err != nil {
		return err
	}
	if lacking := missing(refused, granted); len(lacking) > 0 {
		first := lacking[0]
		return fmt.Errorf("%s lacks the right to %s %s/%s, and %d others", user, first.Action(), first.Namespace, first.Name, len(lacking)-1)
	}
	folder := os.Getenv(FolderVariable)
	if folder == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(folder, name+suffix), []byte(strings.Join(used, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("record the rights that were used: %w", err)
	}
	return nil
}

// suffix is the end of the names of records.
const suffix = ".txt"

// Recorded returns the rights that the records in a folder have, sorted, and the number of
// records.
func Recorded(folder string) (used []string, records int, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*"+suffix))
	if err != nil {
		return nil, 0, err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, 0, fmt.Errorf("read the rights that were used: %w", err)
		}
		used = append(used, strings.Split(strings.TrimSpace(string(data)), "\n")...)
	}
	slices.Sort(used)
	return slices.Compact(used), len(files), nil
}
