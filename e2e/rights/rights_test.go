// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rights

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
)

const auditLog = `{"verb":"patch","user":{"username":"op"},"objectRef":{"resource":"nodes","name":"n","subresource":"status"},"responseStatus":{"code":200},"annotations":{"authorization.k8s.io/reason":"RBAC: allowed by ClusterRoleBinding \"nstance-operator\" of ClusterRole \"nstance-operator-workload\" to ServiceAccount"}}
{"verb":"watch","user":{"username":"op"},"objectRef":{"resource":"leases","apiGroup":"coordination.k8s.io","name":"l"},"responseStatus":{"code":200},"annotations":{"authorization.k8s.io/reason":"RBAC: allowed by RoleBinding \"x\" of Role \"nstance-operator\" to ServiceAccount"}}
{"verb":"get","user":{"username":"op"},"objectRef":{"resource":"pods"},"responseStatus":{"code":200},"annotations":{"authorization.k8s.io/reason":"RBAC: allowed by ClusterRoleBinding \"x\" of ClusterRole \"system:discovery\" to Group"}}
{"verb":"patch","user":{"username":"op"},"objectRef":{"resource":"secrets","name":"s"},"responseStatus":{"code":201},"annotations":{"authorization.k8s.io/reason":"RBAC: allowed by RoleBinding \"x\" of Role \"nstance-operator\" to ServiceAccount"}}
{"verb":"list","user":{"username":"early"},"objectRef":{"resource":"pods"},"responseStatus":{"code":403},"annotations":{"authorization.k8s.io/reason":""}}
{"verb":"get","user":{"username":"other"},"objectRef":{"resource":"pods"},"responseStatus":{"code":403},"annotations":{"authorization.k8s.io/reason":""}}
`

func TestUsed(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.log")
	require.NoError(t, os.WriteFile(log, []byte(auditLog), 0o600))
	used, refused, err := Used(controlplane.AuditLog(log), "op")
	require.NoError(t, err)
	assert.Empty(t, refused)
	assert.Equal(t, []string{"create secrets", "create secrets s", "patch nodes/status", "patch nodes/status n", "patch secrets", "patch secrets s", "watch leases.coordination.k8s.io", "watch leases.coordination.k8s.io l"}, used)
	_, refused, err = Used(controlplane.AuditLog(log), "other")
	require.NoError(t, err)
	assert.Len(t, refused, 1)
}

func TestUnused(t *testing.T) {
	used := []string{"watch pods", "get nodes"}
	assert.Equal(t, []string{"list nodes", "patch nodes"}, Unused([]string{"get nodes", "list nodes", "list pods", "patch nodes", "watch pods"}, used))
}

func TestRecords(t *testing.T) {
	folder := t.TempDir()
	log := filepath.Join(folder, "audit.log")
	require.NoError(t, os.WriteFile(log, []byte(auditLog), 0o600))
	t.Setenv(FolderVariable, folder)
	manifests := filepath.Join("..", "..", "manifests")
	for _, name := range []string{"first", "second", "second"} {
		require.NoError(t, Record(name, controlplane.AuditLog(log), "op", manifests))
	}
	used, records, err := Recorded(folder)
	require.NoError(t, err)
	assert.Equal(t, 2, records)
	assert.Len(t, used, 8)
	assert.ErrorContains(t, Record("third", controlplane.AuditLog(log), "other", manifests), "other lacks the right to get pods")
	assert.NoError(t, Record("third", controlplane.AuditLog(log), "early", manifests))
}

func TestGranted(t *testing.T) {
	granted, err := Granted(filepath.Join("..", "..", "manifests"))
	require.NoError(t, err)
	for _, right := range []string{"patch nodes", "create pods/eviction", "patch secrets nstance-operator-cert", "create leases.coordination.k8s.io"} {
		assert.Contains(t, granted, right)
	}
}
