// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
	"nstance.dev/operator/pkg/server/storage/gcs/gcstest"
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

// TestProviderDocuments: the shell can parse the scripts in the documents. TestEverySampleIsSilent
// tests their configurations.
func TestProviderDocuments(t *testing.T) {
	for _, document := range []string{"proxmox.md", "aws.md", "google.md"} {
		for _, text := range blocks(t, document, "sh") {
			checkSyntax(t, text)
		}
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

// TestMistakeInASubnet: a subnet that the provider cannot have is reported where it is written, with
// field, line, value and what is allowed, and nowhere else.
func TestMistakeInASubnet(t *testing.T) {
	const subnet = `"subnet-0123456789abcdef0"`
	configuration := blocks(t, "aws.md", "jsonc")[0]
	require.Contains(t, configuration, subnet)
	configuration = strings.Replace(configuration, subnet, subnet+",\n\"lan\"", 1)
	before, _, _ := strings.Cut(configuration, `"lan"`)
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, []byte(configuration), 0o600))
	err := server.Validate(t.Context(), server.Options{}, path, io.Discard)
	require.EqualError(t, err, fmt.Sprintf(
		"configuration %s:\nshard.subnet_pools.default[1]: Invalid value: \"lan\": must be the id of a subnet, such as subnet-0123456789abcdef0 (line %d)",
		path, strings.Count(before, "\n")+1))
}

// TestElectionsThatWriteTooOften: Cloud Storage lets no object be written more than once per second, and
// other storages have no such limit.
func TestElectionsThatWriteTooOften(t *testing.T) {
	const shard, election = `"id": "europe-west1-b",`, `"leader_election": {"interval": "900ms"},`
	configuration := blocks(t, "google.md", "jsonc")[0]
	require.Contains(t, configuration, shard)
	configuration = strings.Replace(configuration, shard, shard+"\n"+election, 1)
	before, _, _ := strings.Cut(configuration, election)
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, []byte(configuration), 0o600))
	want := fmt.Sprintf(":\nshard.leader_election.interval: Invalid value: \"900ms\": must be at least 1s: the storage lets no object be written more often (line %d)",
		strings.Count(before, "\n")+1)
	for _, other := range []string{"", backend.File, backend.S3} {
		require.NoError(t, server.Validate(t.Context(), server.Options{Storage: other}, path, io.Discard), other)
	}
	err := server.Validate(t.Context(), server.Options{Storage: backend.GCS}, path, io.Discard)
	require.EqualError(t, err, "configuration "+path+want)

	const id = "europe-west1-b"
	t.Setenv("STORAGE_EMULATOR_HOST", gcstest.Start(t, nil, "nstance").URL)
	store, err := backend.Open(t.Context(), backend.GCS, "nstance", "")
	require.NoError(t, err)
	_, err = store.Create(t.Context(), storage.ConfigKey(id), []byte(configuration))
	require.NoError(t, err)
	err = server.Run(t.Context(), server.Options{Shard: id, ID: "1", Storage: backend.GCS, Bucket: "nstance", CacheDir: t.TempDir()})
	require.ErrorContains(t, err, "configuration "+storage.ConfigKey(id)+want)
}

// checkSyntax reports a script that the shell cannot parse.
func checkSyntax(t *testing.T, script string) {
	t.Helper()
	output, err := exec.Command("sh", "-n", "-c", script).CombinedOutput()
	assert.NoError(t, err, string(output))
}
