// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/agent/notice"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/config"
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

// TestProviderDocuments: the configurations in the documents are valid.
func TestProviderDocuments(t *testing.T) {
	for _, document := range []string{"proxmox.md", "aws.md", "google.md"} {
		t.Run(document, func(t *testing.T) { checkDocument(t, document) })
	}
}

// TestConfigurationsThatCreateNothing are refused before a server has them.
func TestConfigurationsThatCreateNothing(t *testing.T) {
	configurations := blocks(t, "aws.md", "jsonc")
	require.Len(t, configurations, 1)
	const userdata = `"userdata": {"url": "https://files.example.com/userdata.sh", "sha256": "0000000000000000000000000000000000000000000000000000000000000000"},`
	for _, tc := range []struct{ name, old, with, want string }{
		{"a zone of another region", `"zone": "us-west-2a"`, `"zone": "us-east-1a"`, `shard.infra.zone: Invalid value: "us-east-1a": must be a zone of region us-west-2`},
		{"no userdata", userdata, "", "templates.worker.userdata: Required value: every machine of provider aws has an agent"},
		{"no nonce", userdata, `"userdata": "#!/bin/sh\nrun {{.Instance.ID}}",`, "templates.worker.userdata: Invalid value: must contain {{.Instance.ID}} and {{.Nonce}}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Contains(t, configurations[0], tc.old)
			path := filepath.Join(t.TempDir(), "shard.jsonc")
			require.NoError(t, os.WriteFile(path, []byte(strings.Replace(configurations[0], tc.old, tc.with, 1)), 0o600))
			err := server.Validate(t.Context(), server.Options{}, path, io.Discard)
			require.ErrorContains(t, err, path+":\n"+tc.want)
		})
	}
}

func checkDocument(t *testing.T, document string) {
	configurations := blocks(t, document, "jsonc")
	require.Len(t, configurations, 1)
	validate(t, configurations[0])
	for _, part := range parts(t, document) {
		// A part belongs into the shard or into the whole configuration.
		place := "{"
		if strings.HasPrefix(part, `"leader_network"`) {
			place = `"shard": {`
		}
		require.Contains(t, configurations[0], place)
		validate(t, strings.Replace(configurations[0], place, place+"\n"+part, 1))
	}

	manifests := blocks(t, document, "yaml")
	require.Len(t, manifests, 1)
	for text := range strings.SplitSeq(manifests[0], "\n---\n") {
		var kind metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal([]byte(text), &kind))
		object := map[metav1.TypeMeta]any{
			{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"}:            new(clusterv1.MachinePool),
			{APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: "NstanceMachinePool"}: new(v1beta1.NstanceMachinePool),
		}[kind]
		require.NotNil(t, object, kind)
		assert.NoError(t, yaml.UnmarshalStrict([]byte(text), object))
	}
	for _, text := range blocks(t, document, "sh") {
		if !strings.HasPrefix(text, "#!") {
			checkSyntax(t, text)
		}
	}
}

// validate expects that a configuration is valid.
func validate(t *testing.T, configuration string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, []byte(configuration), 0o600))
	var said strings.Builder
	require.NoError(t, server.Validate(t.Context(), server.Options{}, path, &said), configuration)
	assert.NotContains(t, said.String(), "warning")
}

// parts returns the parts of configurations in a document, which have no language, except
// incomplete parts.
func parts(t *testing.T, document string) []string {
	t.Helper()
	var found []string
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", document))
	require.NoError(t, err)
	for _, match := range regexp.MustCompile("(?ms)^ *```\n *(\"[a-z_]+\": .*?)\n *```$").FindAllStringSubmatch(string(data), -1) {
		if !strings.Contains(match[1], "…") {
			found = append(found, match[1])
		}
	}
	return found
}

// checkSyntax reports a script that the shell cannot parse.
func checkSyntax(t *testing.T, script string) {
	t.Helper()
	output, err := exec.Command("sh", "-n", "-c", script).CombinedOutput()
	assert.NoError(t, err, string(output))
}

// TestProviderUserdata is rendered as a server renders it, and run in a folder. The Node has
// the provider id that the server reports. The machine joins when the agent has received the
// secret, and not before.
func TestProviderUserdata(t *testing.T) {
	const project = "$(touch PWNED) `touch PWNED` '\"; touch PWNED\nYAML\ntouch PWNED\n  - name: v"
	for _, tc := range []struct{ document, kind, commands, providerID string }{
		{"proxmox.md", "proxmox", "", "proxmox:///zone-a/knd06bgm7733st2576nx5jht4ecj"},
		// Like the metadata service, it responds only to requests with its token.
		{"aws.md", "aws", `curl() { case "$*" in *-X\ PUT*/api/token) echo T ;; *"token: T"*/instance-id) echo i-0123456789abcdef0 ;; *) return 22 ;; esac; }`,
			"aws:///zone-a/i-0123456789abcdef0"},
		{"google.md", "google", "", "gce://" + project + "/zone-a/knd06bgm7733st2576nx5jht4ecj"},
	} {
		t.Run(tc.document, func(t *testing.T) {
			var source string
			for _, text := range blocks(t, tc.document, "sh") {
				if strings.HasPrefix(text, "#!/bin/sh\n") {
					source = text
				}
			}
			folder := t.TempDir()
			runUserdata(t, folder, tc.kind, tc.commands, project, source)
			_, err := os.Stat(folder + "/PWNED")
			require.ErrorIs(t, err, os.ErrNotExist, "the value of a var was run")
			nonce, err := os.ReadFile(folder + "/opt/nstance-agent/identity/nonce.jwt")
			require.NoError(t, err)
			assert.Equal(t, "SECRET\n", string(nonce))
			environment, err := os.ReadFile(folder + "/etc/nstance-agent.env")
			require.NoError(t, err)
			// Without the variable the agent reports no termination notice.
			assert.Equal(t, notice.New(tc.kind, "") != nil, strings.Contains(string(environment), "\nNSTANCE_PROVIDER="+tc.kind+"\n"))
			data, err := os.ReadFile(folder + "/etc/kubernetes/join.yaml")
			require.NoError(t, err)
			var join struct {
				Kind      string
				Discovery struct {
					File struct{ KubeConfigPath string }
				}
				NodeRegistration struct {
					KubeletExtraArgs []struct{ Name, Value string }
				}
			}
			require.NoError(t, yaml.Unmarshal(data, &join))
			assert.Equal(t, "JoinConfiguration", join.Kind)
			assert.Equal(t, folder+"/opt/nstance-agent/recv/join.json", join.Discovery.File.KubeConfigPath)
			require.Len(t, join.NodeRegistration.KubeletExtraArgs, 2)
			assert.Equal(t, tc.providerID, join.NodeRegistration.KubeletExtraArgs[0].Value)
			joined, err := os.ReadFile(folder + "/joined")
			require.NoError(t, err)
			assert.Equal(t, "received\n", string(joined))
		})
	}
}

// runUserdata renders userdata and runs it with a folder as the root, and with commands of
// the shell that replace others. The agent receives its file while the userdata waits, and
// kubeadm copies the file.
func runUserdata(t *testing.T, folder, kind, commands, project, source string) {
	t.Helper()
	parsed, err := config.NewTemplate("userdata").Option("missingkey=error").Parse(source)
	require.NoError(t, err)
	var script bytes.Buffer
	require.NoError(t, parsed.Execute(&script, map[string]any{
		"Instance": map[string]string{"ID": "knd06bgm7733st2576nx5jht4ecj", "Kind": "knd", "Group": "workers", "Type": "small"},
		"Cluster":  map[string]string{"ID": "test", "CACert": "-----BEGIN CERTIFICATE-----"},
		"Server": map[string]string{
			"Shard": "a", "RegistrationAddr": "10.0.0.2:8992", "AgentAddr": "10.0.0.2:8994", "HealthCheckInterval": "1m0s",
		},
		"Provider": map[string]string{"Kind": kind, "Region": "region", "Zone": "zone-a"},
		"Vars":     map[string]string{"project": project},
		"Nonce":    "SECRET",
	}))
	require.NoError(t, os.Mkdir(folder+"/etc", 0o755))
	recv := folder + "/opt/nstance-agent/recv"
	text := strings.NewReplacer("/opt/", folder+"/opt/", "/etc/", folder+"/etc/", "systemctl ", "echo ",
		"sleep ", "mkdir "+recv+"; echo received >"+recv+"/join.json; echo ",
		"kubeadm join", "cp "+recv+"/join.json joined; echo").Replace(script.String())
	command := exec.Command("sh", "-c", commands+"\n"+text)
	command.Dir = folder
	output, err := command.CombinedOutput()
	require.NoError(t, err, string(output))
}
