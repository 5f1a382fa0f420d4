// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/server"
)

// fence matches a block of code with its language, which may be indented.
var fence = regexp.MustCompile("(?ms)^( *)```([a-z]+)\n(.*?)\n *```$")

// blocks returns the blocks of code of a language in a document.
func blocks(t *testing.T, document, language string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", document))
	require.NoError(t, err)
	var found []string
	for _, match := range fence.FindAllStringSubmatch(string(data), -1) {
		if match[2] == language {
			found = append(found, regexp.MustCompile("(?m)^"+match[1]).ReplaceAllString(match[3], "")+"\n")
		}
	}
	return found
}

// TestProxmoxDocument and TestGoogleDocument: the configurations in them are valid.
func TestProxmoxDocument(t *testing.T) { testDocument(t, "proxmox.md") }

func TestGoogleDocument(t *testing.T) { testDocument(t, "google.md") }

func testDocument(t *testing.T, document string) {
	t.Helper()
	configurations := blocks(t, document, "jsonc")
	require.Len(t, configurations, 1)
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, []byte(configurations[0]), 0o600))
	var said strings.Builder
	require.NoError(t, server.Validate(t.Context(), server.Options{}, path, &said))

	manifests := blocks(t, document, "yaml")
	require.Len(t, manifests, 1)
	for text := range strings.SplitSeq(manifests[0], "\n---\n") {
		var object struct{ APIVersion, Kind string }
		require.NoError(t, yaml.Unmarshal([]byte(text), &object))
		assert.NotEmpty(t, object.APIVersion)
		assert.NotEmpty(t, object.Kind)
	}
	for _, text := range blocks(t, document, "sh") {
		if !strings.HasPrefix(text, "#!") {
			checkSyntax(t, text)
		}
	}
}

// checkSyntax reports a script that the shell cannot parse.
func checkSyntax(t *testing.T, script string) {
	t.Helper()
	output, err := exec.Command("sh", "-n", "-c", script).CombinedOutput()
	assert.NoError(t, err, string(output))
}

// TestProxmoxUserdata and TestGoogleUserdata render userdata as a server does, and run it in a
// folder.
func TestProxmoxUserdata(t *testing.T) {
	testUserdata(t, "proxmox.md", "proxmox:///pve-a/knd06bgm7733st2576nx5jht4ecj")
}

func TestGoogleUserdata(t *testing.T) {
	testUserdata(t, "google.md", "gce://my-project/pve-a/knd06bgm7733st2576nx5jht4ecj")
}

// testUserdata expects that a machine has a provider id.
func testUserdata(t *testing.T, document, providerID string) {
	t.Helper()
	var source string
	for _, text := range blocks(t, document, "sh") {
		if strings.HasPrefix(text, "#!/bin/sh\n") {
			source = text
		}
	}
	parsed, err := template.New("userdata").Option("missingkey=error").Parse(source)
	require.NoError(t, err)
	var script bytes.Buffer
	require.NoError(t, parsed.Execute(&script, map[string]any{
		"Instance": map[string]string{"ID": "knd06bgm7733st2576nx5jht4ecj", "Kind": "knd", "Group": "workers", "Type": "small"},
		"Cluster":  map[string]string{"CACert": "-----BEGIN CERTIFICATE-----"},
		"Server": map[string]string{
			"Shard": "pve-a", "RegistrationAddr": "10.0.0.2:8992", "AgentAddr": "10.0.0.2:8994", "HealthCheckInterval": "1m0s",
		},
		"Provider": map[string]string{"Region": "home", "Zone": "pve-a"},
		"Vars":     map[string]string{"project": "my-project", "api_server": "10.0.0.10:6443", "join_token": "abcdef.0123456789abcdef", "ca_hash": "sha256:00"},
		"Nonce":    "SECRET",
	}))
	folder := t.TempDir()
	require.NoError(t, os.Mkdir(folder+"/etc", 0o755))
	text := strings.NewReplacer("/opt/", folder+"/opt/", "/etc/", folder+"/etc/", "systemctl ", "echo ", "kubeadm join", "echo").Replace(script.String())
	output, err := exec.Command("sh", "-c", text).CombinedOutput()
	require.NoError(t, err, string(output))
	nonce, err := os.ReadFile(folder + "/opt/nstance-agent/identity/nonce.jwt")
	require.NoError(t, err)
	assert.Equal(t, "SECRET\n", string(nonce))
	data, err := os.ReadFile(folder + "/etc/kubernetes/join.yaml")
	require.NoError(t, err)
	var join struct {
		Kind             string
		NodeRegistration struct {
			KubeletExtraArgs []struct{ Name, Value string }
		}
	}
	require.NoError(t, yaml.Unmarshal(data, &join))
	assert.Equal(t, "JoinConfiguration", join.Kind)
	require.Len(t, join.NodeRegistration.KubeletExtraArgs, 2)
	assert.Equal(t, providerID, join.NodeRegistration.KubeletExtraArgs[0].Value)
}
