// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
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

// step returns the commands of a step of docs/aws.md.
func step(t *testing.T, number string) string {
	t.Helper()
	document, err := os.ReadFile("../../../../docs/aws.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(document), "\n## From nothing to kubectl scale\n")
	require.True(t, found)
	match := regexp.MustCompile("(?s)\n" + number + `\. .*?` + "```sh\n(.*?)```").FindStringSubmatch(section)
	require.NotNil(t, match)
	return match[1]
}

// TestDocumentedNetworkWithMoto runs the commands of docs/aws.md that create the network and
// the bucket, and launches an instance in that network.
func TestDocumentedNetworkWithMoto(t *testing.T) {
	url := startMoto(t)
	shell := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script)
		cmd.Env = append(os.Environ(), "AWS_ENDPOINT_URL="+url, "AWS_ACCESS_KEY_ID=AKIATEST", "AWS_SECRET_ACCESS_KEY=secret",
			"PATH="+filepath.Dir(program(t, "aws"))+":"+os.Getenv("PATH"))
		cmd.Stderr = os.Stderr
		output, err := cmd.Output()
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		return lines[len(lines)-1]
	}
	created := strings.Fields(shell(step(t, "1")))
	require.Len(t, created, 2, "a subnet and a security group")
	const sameShell = "export AWS_DEFAULT_REGION=us-west-2\n"
	shell(sameShell + step(t, "2"))
	assert.Equal(t, "Enabled", shell(sameShell+"aws s3api get-bucket-versioning --bucket my-bucket --query Status --output text"))

	api, err := NewAPI(&Options{Endpoint: url}, provider.Shard{ClusterID: "test", ID: "a", Region: "us-west-2", Zone: motoZone})
	require.NoError(t, err)
	r := request(t)
	r.Subnet, r.CreatedAt = created[0], time.Now()
	r.Type = provider.InstanceType{Name: "m6g.large", Arch: provider.ArchARM64}
	r.Args = map[string]any{
		"image_owners": []any{"amazon"}, "image_filters": map[string]any{"name": "amzn2-ami-*"}, "security_groups": []any{created[1]},
	}
	launched, err := api.Launch(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, launched.Addresses, 1)
	assert.Contains(t, launched.Addresses[0].String(), "10.0.")
}
