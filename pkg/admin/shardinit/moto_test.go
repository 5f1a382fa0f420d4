// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit_test

import (
	"bufio"
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

	"nstance.dev/operator/pkg/admin"
)

// motoEnv is the environment variable without which the tests with moto and the AWS CLI are
// skipped: make test-moto sets it.
const motoEnv = "NSTANCE_TEST_MOTO"

// program returns the path of a program of Python, which make test-moto installs.
func program(t *testing.T, name string) string {
	t.Helper()
	if os.Getenv(motoEnv) == "" {
		t.Skipf("NOT TESTED with moto and the AWS CLI: %s is not set (make test-moto)", motoEnv)
	}
	path, err := exec.LookPath(name)
	require.NoError(t, err)
	return path
}

// startMoto returns the URL of moto.
func startMoto(t *testing.T) string {
	t.Helper()
	command := exec.Command(program(t, "moto_server"), "-H", "127.0.0.1", "-p", "0")
	command.Env = append(os.Environ(), "PYTHONUNBUFFERED=1")
	output, err := command.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		assert.NoError(t, command.Process.Kill())
		_ = command.Wait() // the error is that it was killed
	})
	address := regexp.MustCompile(`http://127\.0\.0\.1:[0-9]+`)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if url := address.FindString(lines.Text()); url != "" {
			go func() { _, _ = io.Copy(io.Discard, output) }() // ends with the process
			return url
		}
	}
	t.Fatal("moto has not started")
	return ""
}

// TestDocumentedStepsWithMoto runs the commands of docs/aws.md that create the network, the bucket
// and the roles, and lets provider check launch an instance with the configuration.
func TestDocumentedStepsWithMoto(t *testing.T) {
	url, folder := startMoto(t), t.TempDir()
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-west-2", "AWS_REGION": "us-west-2",
	} {
		t.Setenv(name, value)
	}
	shell := func(script string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script)
		command.Dir, command.Stderr = folder, os.Stderr
		output, err := command.Output()
		require.NoError(t, err, script)
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		return lines[len(lines)-1]
	}
	network := shellBlocks(t, "aws.md", "Network")
	created := strings.Fields(shell(network[0]))
	require.Len(t, created, 2, "a subnet and a security group")
	image := shell("aws ec2 describe-images --owners amazon --filters Name=architecture,Values=x86_64 --query 'Images[0].ImageId' --output text")
	_, err := run(t, "--provider", "aws", "--join", "none", "--cluster-id", "prod", "--shard", "us-west-2a", "--storage-bucket", "my-bucket",
		"--address", "10.0.0.20", "--subnet", created[0], "--security-group", created[1], "--image", image, "--output-dir", filepath.Join(folder, "us-west-2a"))
	require.NoError(t, err)

	guide := shellBlocks(t, "aws.md", fromNothing)
	require.Contains(t, guide[1], "aws cloudformation deploy")
	shell(guide[1])
	// moto does not apply the versioning of the template.
	shell("aws s3api head-bucket --bucket my-bucket")
	assert.Equal(t, "machines\tstorage", shell("aws iam list-role-policies --role-name nstance-prod-server --query PolicyNames --output text"))
	assert.Equal(t, "nstance-prod-node", shell("aws iam get-instance-profile --instance-profile-name nstance-prod-node --query InstanceProfile.Roles[0].RoleName --output text"))

	check := admin.NewCommand()
	var output bytes.Buffer
	check.SetOut(&output)
	// moto ignores client tokens and the ids of images, and has no console.
	check.SetArgs([]string{"provider", "check", "--skip-assumptions", "--config", filepath.Join(folder, "us-west-2a", "us-west-2a.jsonc")})
	require.NoError(t, check.ExecuteContext(t.Context()), output.String())
	assert.Contains(t, output.String(), "All steps succeeded. Nothing is left.")
}
