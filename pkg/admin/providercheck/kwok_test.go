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
	clienttesting "k8s.io/client-go/testing"

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

// TestMarket: the instance is created in the market that the flag names, and of a type that has a quota
// there.
func TestMarket(t *testing.T) {
	client := kwoktest.NewClientset()
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	// Without quotas, the smallest type is c7i.large.
	config := strings.Replace(kwokConfig, `"/kubeconfig"`, `"/kubeconfig", "quota": {"c7i.large/Spot": 0, "t3.large": 0}`, 1)
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	check := func(market string) (string, error) {
		command := providercheck.NewCommand(kwoktest.Providers(client))
		var output strings.Builder
		command.SetOut(&output)
		command.SetErr(&output)
		command.SetArgs([]string{"--config", path, "--timeout", "1m", "--market", market})
		err := command.ExecuteContext(t.Context())
		return output.String(), err
	}
	output, err := check("Spot")
	require.NoError(t, err, output)
	assert.Contains(t, output, "instance type m7i.large, market Spot, subnet subnet.")
	output, err = check("Standard")
	require.NoError(t, err, output)
	assert.Contains(t, output, "instance type c7i.large, market Standard, subnet subnet.")
	_, err = check("Elsewhere")
	require.ErrorContains(t, err, `--market: provider kwok: market: Unsupported value: "Elsewhere": supported values: "Spot", "Standard"`)
	var markets []string
	for _, action := range client.Actions() {
		if create, ok := action.(clienttesting.CreateAction); ok && action.Matches("create", "nodes") {
			markets = append(markets, create.GetObject().(*corev1.Node).Labels[kwok.LabelMarket])
		}
	}
	assert.Equal(t, []string{"Spot", ""}, markets)
}
