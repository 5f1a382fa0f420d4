// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit_test

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider/registry"
)

// run runs nstance-admin shard init.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	command := admin.NewCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	command.SetIn(strings.NewReader(""))
	command.SetArgs(append([]string{"shard", "init"}, args...))
	err := command.ExecuteContext(t.Context())
	return output.String(), err
}

const (
	shard   = "us-west-2a"
	agentAt = "https://files.example.com/nstance-agent"
)

var sum = strings.Repeat("0a", 32)

// flagsOf are the flags that a provider or a way to join needs, beside the flags of all shards.
var flagsOf = map[string][]string{
	"aws":                 {"--subnet", "subnet-0123456789abcdef0,subnet-0123456789abcdef1", "--security-group", "sg-0123456789abcdef0"},
	"google":              {"--subnet", "nodes-eu", "--project", "my-project", "--zone", "europe-west1-b"},
	"proxmox":             {"--endpoint", "https://pve1.example.com:8006,https://pve2.example.com:8006", "--node", "pve1,pve2", "--disk-storage", "ceph"},
	"kubeadm-certificate": {"--kubernetes-endpoint", "10.0.0.10:6443"},
	"eks": {"--image", "amazon-eks-node-al2023-x86_64-standard-1.34-*", "--eks-cluster", "prod", "--eks-endpoint", "https://ABC.gr7.us-west-2.eks.amazonaws.com",
		"--eks-ca", "Q0E=", "--eks-cidr", "10.100.0.0/16", "--agent-url", agentAt, "--agent-sha256", sum},
}

// arguments returns the flags for a shard, and the folder for the files.
func arguments(t *testing.T, provider, join string) (args []string, folder string) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), "shard")
	args = append([]string{
		"--provider", provider, "--join", join, "--cluster-id", "prod", "--shard", shard, "--storage-bucket", "/var/lib/nstance/bucket",
		"--address", "10.0.0.20", "--output-dir", folder,
	}, flagsOf[provider]...)
	args = append(args, flagsOf[join]...)
	if provider == "docker" && join == "kubeadm" || join == "kubeadm-certificate" {
		authority := filepath.Join(t.TempDir(), "ca.crt")
		require.NoError(t, os.WriteFile(authority, []byte("-----BEGIN CERTIFICATE-----\n"), 0o600))
		args = append(args, "--kubernetes-ca", authority)
	}
	return args, folder
}

// written runs the command, and returns the folder and the parsed configuration.
func written(t *testing.T, provider, join string, more ...string) (string, *config.Config) {
	t.Helper()
	args, folder := arguments(t, provider, join)
	_, err := run(t, append(args, more...)...)
	require.NoError(t, err)
	path := filepath.Join(folder, shard+".jsonc")
	var said strings.Builder
	require.NoError(t, server.Validate(t.Context(), server.Options{}, path, &said))
	assert.Equal(t, path+": shard us-west-2a of cluster prod is valid\n", said.String(), "it warns")
	source, err := config.ReadFile(path)
	require.NoError(t, err)
	parsed, err := source.Parse(registry.Providers)
	require.NoError(t, err)
	return folder, parsed
}

func read(t *testing.T, folder, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, name))
	require.NoError(t, err)
	return string(text)
}

func decode(t *testing.T, text string) string {
	t.Helper()
	decoded, err := base64.StdEncoding.DecodeString(text)
	require.NoError(t, err)
	return string(decoded)
}
