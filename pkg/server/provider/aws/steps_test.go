// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
)

// stepBlocks returns the blocks of code of a language in a step of docs/aws.md, without their
// indentation.
func stepBlocks(t *testing.T, number int, language string) []string {
	t.Helper()
	document, err := os.ReadFile("../../../../docs/aws.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(document), "\n## From nothing to kubectl scale\n")
	require.True(t, found)
	_, step, found := strings.Cut(section, fmt.Sprintf("\n%d. ", number))
	require.True(t, found)
	step, _, _ = strings.Cut(step, fmt.Sprintf("\n%d. ", number+1))
	var blocks []string
	for _, match := range regexp.MustCompile("(?ms)^   ```"+language+"\n(.*?)^   ```$").FindAllStringSubmatch(step, -1) {
		blocks = append(blocks, strings.ReplaceAll("\n"+match[1], "\n   ", "\n"))
	}
	require.NotEmpty(t, blocks)
	return blocks
}

// TestDocumentedStepsWithMoto runs the commands of docs/aws.md that create the network, the
// bucket and the roles, and launches an instance with them.
func TestDocumentedStepsWithMoto(t *testing.T) {
	url, folder := startMoto(t), t.TempDir()
	shell := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script)
		cmd.Dir = folder
		cmd.Env = append(os.Environ(), "AWS_ENDPOINT_URL="+url, "AWS_ACCESS_KEY_ID=AKIATEST", "AWS_SECRET_ACCESS_KEY=secret",
			"PATH="+filepath.Dir(program(t, "aws"))+":"+os.Getenv("PATH"))
		cmd.Stderr = os.Stderr
		output, err := cmd.Output()
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		return lines[len(lines)-1]
	}
	created := strings.Fields(shell(stepBlocks(t, 1, "sh")[0]))
	require.Len(t, created, 2, "a subnet and a security group")
	const sameShell = "export AWS_DEFAULT_REGION=us-west-2\n"
	shell(sameShell + stepBlocks(t, 2, "sh")[0])
	assert.Equal(t, "Enabled", shell(sameShell+"aws s3api get-bucket-versioning --bucket my-bucket --query Status --output text"))
	policies := stepBlocks(t, 3, "json")
	require.Len(t, policies, 2)
	for n, name := range []string{"machines.json", "storage.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(policies[n]), 0o600))
	}
	scripts := stepBlocks(t, 3, "sh")
	shell(sameShell + scripts[len(scripts)-1])
	assert.Equal(t, "machines\tstorage", shell(sameShell+"aws iam list-role-policies --role-name nstance-server --query PolicyNames --output text"))

	api, err := NewAPI(&Options{Endpoint: url}, provider.Shard{ClusterID: "test", ID: "a", Region: "us-west-2", Zone: motoZone})
	require.NoError(t, err)
	r := request(t)
	r.Subnet, r.CreatedAt = created[0], time.Now()
	r.Type = provider.InstanceType{Name: "m6g.large", Arch: provider.ArchARM64}
	r.Args = map[string]any{
		"image_owners": []any{"amazon"}, "image_filters": map[string]any{"name": "amzn2-ami-*"}, "security_groups": []any{created[1]},
		"iam_instance_profile": "nstance-node",
	}
	launched, err := api.Launch(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, launched.Addresses, 1)
	assert.Contains(t, launched.Addresses[0].String(), "10.0.")
}
