// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
)

type cloudResource struct {
	Type, Condition, DeletionPolicy string
	Properties                      struct {
		RoleName, InstanceProfileName, BucketName string
		ManagedPolicyArns                         []string
		Policies                                  []struct {
			PolicyName     string
			PolicyDocument json.RawMessage
		}
		VersioningConfiguration struct{ Status string }
		Roles                   []struct{ Ref string }
	}
}

// stackOf returns the resources of the CloudFormation template.
func stackOf(t *testing.T, folder string) map[string]cloudResource {
	t.Helper()
	var stack struct{ Resources map[string]cloudResource }
	require.NoError(t, json.Unmarshal([]byte(read(t, folder, "stack.json")), &stack))
	return stack.Resources
}

var nodeRole = regexp.MustCompile(`\{\s*"Fn::GetAtt": *\[\s*"NodeRole",\s*"Arn"\s*\]\s*\}`)

// policyOf returns a document with a policy, as ec2test reads it, with the role of docs/aws.md.
func policyOf(t *testing.T, policy json.RawMessage) (path string) {
	t.Helper()
	var parsed struct {
		Version   string
		Statement json.RawMessage
	}
	require.NoError(t, json.Unmarshal(nodeRole.ReplaceAll(policy, []byte(`"arn:aws:iam::123456789012:role/nstance-node"`)), &parsed))
	path = filepath.Join(t.TempDir(), "policy.md")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "```json\n{\n\"Version\": %q, \"Statement\": %s}\n```", parsed.Version, parsed.Statement), 0o600))
	return path
}

// TestPoliciesAreThoseOfTheDocument, without the statements for what the shard does not have:
// target groups and the address of the leader.
func TestPoliciesAreThoseOfTheDocument(t *testing.T) {
	folder, c := written(t, "aws", "kubeadm", "--storage-bucket", "my-bucket")
	stack := stackOf(t, folder)
	policies := stack["ServerRole"].Properties.Policies
	require.Len(t, policies, 2)
	machines := policyOf(t, policies[0].PolicyDocument)
	got, want := ec2test.ReadPolicy(t, machines), ec2test.ReadPolicy(t, filepath.Join("..", "..", "..", "docs", "aws.md"))
	require.Greater(t, len(want.Statements), len(got.Statements))
	assert.Equal(t, want.Statements[:len(got.Statements)], got.Statements)
	for _, statement := range want.Statements[len(got.Statements):] {
		for _, action := range statement.Action {
			assert.Regexp(t, "^elasticloadbalancing:(De)?[Rr]egisterTargets$|^ec2:(At|De)tachNetworkInterface$", action)
		}
	}
	assert.Contains(t, string(policies[1].PolicyDocument), `"arn:aws:s3:::my-bucket/*"`)
	assert.Equal(t, c.Templates["worker"].Args["iam_instance_profile"], stack["NodeProfile"].Properties.InstanceProfileName)
	assert.Equal(t, "Enabled", stack["Bucket"].Properties.VersioningConfiguration.Status)
	assert.Equal(t, "Retain", stack["Bucket"].DeletionPolicy)
	assert.Equal(t, "my-bucket", stack["Bucket"].Properties.BucketName)
	assert.Empty(t, stack["NodeRole"].Properties.ManagedPolicyArns)
	assert.Empty(t, stack["NodeRole"].Properties.Policies, "machines need no rights")
	for profile, role := range map[string]string{"ServerProfile": "ServerRole", "NodeProfile": "NodeRole"} {
		assert.Equal(t, role, stack[profile].Properties.Roles[0].Ref)
	}
}

func TestNodesOfEKSHaveTheirPolicies(t *testing.T) {
	folder, _ := written(t, "aws", "eks", "--storage", "file")
	stack := stackOf(t, folder)
	assert.Len(t, stack["NodeRole"].Properties.ManagedPolicyArns, 3)
	assert.NotContains(t, stack, "Bucket", "the storage is no bucket")
	assert.Len(t, stack["ServerRole"].Properties.Policies, 1)
}

var permission = regexp.MustCompile("`((?:compute|storage)\\.[A-Za-z.]+)`")

// TestPermissionsAreThoseOfTheDocument, in the second column of the tables.
func TestPermissionsAreThoseOfTheDocument(t *testing.T) {
	folder, _ := written(t, "google", "kubeadm", "--storage-bucket", "my-bucket")
	for flag, table := range map[string]struct{ document, heading string }{
		"nstance.machines": {"google.md", "\n## Permissions\n"}, "nstance.objects": {"server-reference.md", "\n### Google Cloud Storage\n"},
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", table.document))
		require.NoError(t, err)
		_, section, found := strings.Cut(string(text), table.heading)
		require.True(t, found)
		section, _, _ = strings.Cut(section, "\n## ")
		section, _, _ = strings.Cut(section, "\n### ")
		var want []string
		for line := range strings.Lines(section) {
			if cells := strings.Split(line, "|"); len(cells) == 4 {
				for _, match := range permission.FindAllStringSubmatch(cells[2], -1) {
					want = append(want, match[1])
				}
			}
		}
		slices.Sort(want)
		given := regexp.MustCompile(`roles create ` + flag + ` .*--permissions=(\S+)`).FindStringSubmatch(read(t, folder, "setup.sh"))
		require.NotNil(t, given)
		got := strings.Split(given[1], ",")
		slices.Sort(got)
		assert.Equal(t, slices.Compact(want), got, flag)
	}
}

var privileges = regexp.MustCompile(`"([A-Za-z. ]+\.[A-Za-z. ]+)"`)

// TestPrivilegesAreThoseOfTheDocument in the table of docs/providers.md#proxmox.
func TestPrivilegesAreThoseOfTheDocument(t *testing.T) {
	folder, _ := written(t, "proxmox", "k3s")
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "providers.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n| path | privileges |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	var want []string
	for line := range strings.Lines(table) {
		prefix := ""
		for _, match := range regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(strings.SplitN(line, "|", 4)[2], -1) {
			name := match[1]
			if strings.HasPrefix(name, ".") {
				name = prefix + name
			}
			prefix = name[:strings.LastIndex(name, ".")]
			want = append(want, name)
		}
	}
	slices.Sort(want)
	var got []string
	for _, match := range privileges.FindAllStringSubmatch(read(t, folder, "setup.sh"), -1) {
		got = append(got, strings.Fields(match[1])...)
	}
	slices.Sort(got)
	assert.Equal(t, slices.Compact(want), slices.Compact(got))
}
