// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

var (
	// secretName matches names of vars that have a secret as their value.
	secretName = regexp.MustCompile(`(?i)token|secret|passw|credential|private|bearer|(^|[_-])key$`)
	// joinToken matches bootstrap tokens of kubeadm
	// (https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/#token-format) and
	// tokens of k3s (https://docs.k3s.io/cli/token#token-format).
	joinToken = regexp.MustCompile(`\b([a-z0-9]{6}\.[a-z0-9]{16}|K10[a-f0-9]{8,}::\S+)\b`)
	// noExpiry matches options with which a token never expires.
	noExpiry   = regexp.MustCompile(`--ttl[ =]"?0`)
	varInText  = regexp.MustCompile(`\.Vars\.(\w+)|index \.Vars "([^"]+)"`)
	varsObject = regexp.MustCompile(`(?s)"vars": *\{(.*?)\}`)
	memberName = regexp.MustCompile(`"([^"]+)" *:`)
	varsInYAML = regexp.MustCompile(`(?m)^( *)vars:$`)
)

// publishedSecrets returns the parts of a text that give a secret to vars or userdata, or that
// create a token without expiry.
func publishedSecrets(text string) []string {
	found := slices.Concat(noExpiry.FindAllString(text, -1), joinToken.FindAllString(text, -1))
	var names []string
	for _, match := range varInText.FindAllStringSubmatch(text, -1) {
		names = append(names, match[1]+match[2])
	}
	for _, object := range varsObject.FindAllStringSubmatch(text, -1) {
		for _, member := range memberName.FindAllStringSubmatch(object[1], -1) {
			names = append(names, member[1])
		}
	}
	for _, at := range varsInYAML.FindAllStringSubmatchIndex(text, -1) {
		indent := text[at[2]:at[3]] + " "
		for line := range strings.SplitSeq(text[at[1]+1:], "\n") {
			if !strings.HasPrefix(line, indent) {
				break
			}
			name, _, _ := strings.Cut(strings.TrimSpace(line), ":")
			names = append(names, name)
		}
	}
	return append(found, slices.DeleteFunc(names, func(name string) bool { return !secretName.MatchString(name) })...)
}

func TestPublishedSecretsAreFound(t *testing.T) {
	for _, text := range []string{
		"kubeadm token create --ttl 0 --print-join-command",
		"kubeadm token create --ttl=0",
		`token: {{toJSON .Vars.join_token}}`,
		`curl -H "{{index .Vars "api-key"}}"`,
		`"vars": {"api_server": "10.0.0.10:6443", "join_token": "x"},`,
		"\"vars\": {\n\t\"role\": \"worker\",\n\t\"k3s_secret\": \"x\",\n},",
		`"vars": {"join": "abcdef.0123456789abcdef"},`,
		"k3s agent --token K10aa39f01b2::node:1234",
		"spec:\n  vars:\n    role: worker\n    password: x\n  shards: [a]\n",
	} {
		assert.NotEmpty(t, publishedSecrets(text), text)
	}
	for _, text := range []string{
		"kubeadm token create --ttl 4h",
		`"vars": {"project": "my-project"}, "files": {"token.json": {"kind": "secret", "source": "token.json"}}`,
		"spec:\n  vars:\n    role: worker\n  secret: x\n",
	} {
		assert.Empty(t, publishedSecrets(text), text)
	}
}

// TestDocumentsPublishNoSecrets: who can read vars or userdata could add machines to the cluster.
func TestDocumentsPublishNoSecrets(t *testing.T) {
	root := filepath.Join("..", "..")
	checked := 0
	check := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".md", ".sh", ".yaml", ".jsonc"}, filepath.Ext(path)) {
			return err
		}
		text, err := os.ReadFile(path)
		checked++
		assert.Empty(t, publishedSecrets(string(text)), path)
		return err
	}
	for _, folder := range []string{"docs", "manifests", "e2e/installation"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), check))
	}
	for _, file := range []string{"README.md", "SECURITY.md", "CONTRIBUTING.md"} {
		info, err := os.Stat(filepath.Join(root, file))
		require.NoError(t, err)
		require.NoError(t, check(filepath.Join(root, file), fs.FileInfoToDirEntry(info), nil))
	}
	assert.Greater(t, checked, 50)
}

// tokenLife matches how long the token of join-secret.sh is valid.
var tokenLife = regexp.MustCompile(`^token create --ttl (\S+) `)

// TestJoinSecret runs manifests/agent/join-secret.sh with programs that record their arguments.
func TestJoinSecret(t *testing.T) {
	const token = "abcdef.0123456789abcdef"
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(folder, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		return string(text)
	}
	script, err := os.ReadFile(filepath.Join("..", "..", "manifests", "agent", "join-secret.sh"))
	require.NoError(t, err)
	run := func() error {
		text := strings.ReplaceAll(string(script), "/etc/", folder+"/etc/")
		command := exec.CommandContext(t.Context(), "sh", "-c", text, "join-secret.sh", "10.0.0.10:6443", "--storage", "file")
		command.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
		command.Dir = folder
		return command.Run()
	}
	write("etc/kubernetes/pki/ca.crt", "a certificate")
	write("nstance-admin", "#!/bin/sh\necho \"$@\" >set\ncat >stored\n")
	// Nothing replaces the secret if there is no new token.
	write("kubeadm", "#!/bin/sh\nexit 1\n")
	require.Error(t, run())
	require.NoFileExists(t, filepath.Join(folder, "set"))

	write("kubeadm", "#!/bin/sh\necho \"$@\" >created\necho "+token+"\n")
	require.NoError(t, run())
	assert.Equal(t, "secret set join.json --from-file - --storage file\n", read("set"))
	life := tokenLife.FindStringSubmatch(read("created"))
	require.NotNil(t, life, read("created"))
	ttl, err := time.ParseDuration(life[1])
	require.NoError(t, err)
	assert.Positive(t, ttl, "zero means that the token never expires")
	assert.LessOrEqual(t, ttl, 24*time.Hour)
	client, err := clientcmd.RESTConfigFromKubeConfig([]byte(read("stored")))
	require.NoError(t, err)
	assert.Equal(t, "https://10.0.0.10:6443", client.Host)
	assert.Equal(t, token, client.BearerToken)
	assert.Equal(t, "a certificate", string(client.CAData))
}
