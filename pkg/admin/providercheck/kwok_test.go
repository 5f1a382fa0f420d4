// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/admin/providercheck"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
)

const kwokConfig = `{
	"cluster": {"id": "prod", "secrets": {"encryption_key": {"env": "NSTANCE_ENCRYPTION_KEY"}}},
	"shard": {
		"id": "a",
		"infra": {"provider": "kwok", "region": "region", "zone": "zone", "options": {"kubeconfig": "/kubeconfig"}},
		"bind": {"health_addr": ":1", "election_addr": ":2", "registration_addr": ":3", "operator_addr": ":4"},
		"subnet_pools": {"default": ["subnet"]},
	},
	"templates": {"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}},
}`

// TestKwok removes the Node of an earlier check, and keeps the Node of the server.
func TestKwok(t *testing.T) {
	node := func(name, cluster, tenant, group string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Labels: map[string]string{
			kwok.LabelManaged: "true", kwok.LabelClusterID: cluster, kwok.LabelShard: "a",
			kwok.LabelTenant: tenant, kwok.LabelGroup: group, kwok.LabelInstanceID: name,
		}}}
	}
	client := kwoktest.NewClientset(
		node("server", "prod", "default", "workers"),
		node("former", "check--prod", "check--tenant", "check--group"),
	)
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, []byte(kwokConfig), 0o600))
	command := providercheck.NewCommand(kwoktest.Providers(client))
	var output strings.Builder
	command.SetOut(&output)
	command.SetArgs([]string{"--config", path, "--timeout", "1m"})
	require.NoError(t, command.ExecuteContext(t.Context()), output.String())
	assert.Contains(t, output.String(), "remove what an earlier check has left ... ok")
	assert.Contains(t, output.String(), "kwok:///zone/")
	assert.NotContains(t, output.String(), "find it by its id")
	assert.Len(t, numbered.FindAllString(output.String(), -1), 25)
	assert.Contains(t, output.String(), "25. every cloud: first boot\n    result:     not checked: provider kwok has no service of others\n")

	left, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, left.Items, 1)
	assert.Equal(t, "server", left.Items[0].Name)
	created := 0
	for _, action := range client.Actions() {
		if action.Matches("create", "nodes") {
			created++
		}
	}
	assert.Equal(t, 1, created, "Nodes that were created")
}
