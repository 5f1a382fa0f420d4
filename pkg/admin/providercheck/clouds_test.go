// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/aws/elbtest"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/testing/tier"
)

// cloudConfig is a configuration without the parts that depend on the provider.
const cloudConfig = `{
	"cluster": {"id": %q, "secrets": {"encryption_key": {"env": "NSTANCE_ENCRYPTION_KEY"}}},
	"shard": {
		"id": %q,
		"infra": %s,
		"bind": {"health_addr": ":1", "election_addr": ":2", "registration_addr": ":3", "operator_addr": ":4", "agent_addr": ":5"},
		"subnet_pools": {"default": [%q]},
	},
	"load_balancers": {"web": %s},
	"templates": {"worker": {"kind": "knd", "arch": "amd64", "instance_type": %q, "subnet_pool": "default"}},
}`

// longestID is as long as ids may be.
var longestID = strings.Repeat("p", 32)

const (
	awsSubnet   = "subnet-00000000000000001"
	awsImage    = "ami-0123456789abcdef0"
	targetGroup = "arn:aws:elasticloadbalancing:us-test-1:123456789012:targetgroup/web/0123456789abcdef"
)

// writeCloudConfig writes a configuration and returns its path.
func writeCloudConfig(t *testing.T, values ...any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, cloudConfig, values...), 0o600))
	return path
}

// checkCloud interrupts the program while the machine starts, runs it to its end, and kills it at
// questions. left returns what exists.
func checkCloud(t *testing.T, env []string, config string, left func() []string) {
	t.Helper()
	timeouts := []string{"--timeout", "3m", "--cleanup-timeout", "3m"}
	output, code := runProgram(t, env, config, "wait until it runs", func(process *os.Process, _ io.Closer) {
		require.NoError(t, process.Signal(os.Interrupt))
	}, timeouts...)
	require.Equal(t, 1, code, output)
	assert.Contains(t, output, "create an instance ... ok")
	assert.Contains(t, output, "remove what the check has created ... ok")

	output, code = runProgram(t, env, config, "", nil, append(timeouts, "--load-balancers", "web")...)
	require.Equal(t, 0, code, output)
	for _, step := range append(append([]string{}, steps[:1]...), append([]string{registerStep, deregisterStep}, steps[2:]...)...) {
		assert.Contains(t, output, step+" ... ok")
	}
	killAtQuestions(t, env, config, expectAnswers(t, output), left)
}

// expectAnswers expects that the emulator answers as expected, and that the report has the 25
// subjects. It returns the questions with their results.
func expectAnswers(t *testing.T, output string) [][]string {
	t.Helper()
	asked := questions.FindAllStringSubmatch(output, -1)
	assert.NotEmpty(t, asked)
	for _, question := range asked {
		assert.Regexp(t, "^(as expected|not checked: )", question[2], question[1])
	}
	assert.Len(t, numbered.FindAllString(output, -1), 25)
	return asked
}

// questions match the steps in which the check asks something, with their results.
var questions = regexp.MustCompile(`(?m)^ask about (.+) \.\.\. (.+)$`)

// killAtQuestions interrupts and kills the program at questions, in turn. An interrupted program
// leaves nothing. What a killed one has left is removed by the next, which asks no questions in the
// end. left returns what exists.
func killAtQuestions(t *testing.T, env []string, config string, asked [][]string, left func() []string) {
	t.Helper()
	// make test does so at two questions.
	every := tier.Pick(1+len(asked)/2, 1)
	killed := false
	for n := 0; n < len(asked); n += every {
		killed = n/every%2 == 1
		signal, want := os.Interrupt, 1
		if killed {
			signal, want = os.Kill, -1
		}
		output, code := runProgram(t, env, config, "ask about "+asked[n][1], func(process *os.Process, _ io.Closer) {
			require.NoError(t, process.Signal(signal))
		}, "--timeout", "3m", "--cleanup-timeout", "3m")
		require.Equal(t, want, code, output)
		if killed {
			require.NotEmpty(t, left(), "what the killed check has left")
		} else {
			require.Empty(t, left(), output)
		}
	}
	output, code := runProgram(t, env, config, "", nil, "--timeout", "3m", "--skip-assumptions")
	require.Equal(t, 0, code, output)
	if killed {
		assert.Contains(t, output, "remove what an earlier check has left ... ok")
	}
	assert.Empty(t, left())
}

// TestAWS checks a region whose documented policy is in force.
func TestAWS(t *testing.T) {
	t.Parallel()
	s := ec2test.New()
	s.BootTime, s.StopTime = time.Second, time.Second
	s.AddSubnet(awsSubnet, ec2test.Zone, 20)
	s.AddImage(ec2test.Image{ID: awsImage, Arch: "x86_64"})
	s.AddType("c6i.large", "x86_64")
	s.HarmlessForce = true
	s.Enforce(ec2test.Join(ec2test.ReadPolicies(t, "../../../docs/aws.md", "prod", longestID)...))
	s.Start(t)
	s.AddInterface("eni-0123456789abcdef0", ec2test.Zone, "10.0.0.20")
	balancers := elbtest.Start(t)
	balancers.AddGroup(targetGroup, 80)
	// The second instance is registered.
	balancers.SetInstance("i-00000000000000002", true)
	config := writeCloudConfig(t, longestID, longestID, fmt.Sprintf(
		`{"provider": "aws", "region": "us-test-1", "zone": %q, "options": {"endpoint": %q, "load_balancer_endpoint": %q, "image": %q}}`,
		ec2test.Zone, s.URL, balancers.URL, awsImage),
		awsSubnet, fmt.Sprintf(`{"target_group_arns": [%q]}`, targetGroup), "c6i.large")
	checkCloud(t, []string{
		"AWS_ACCESS_KEY_ID=" + ec2test.AccessKey, "AWS_SECRET_ACCESS_KEY=secret", "AWS_CONFIG_FILE=" + os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull, "AWS_EC2_METADATA_DISABLED=true",
	}, config, func() []string { return slices.Concat(s.Existing(), s.Interfaces()[1:]) })
	assert.Len(t, s.Terminated(), len(s.Made()))
	assert.Empty(t, s.Existing())
	assert.Equal(t, []string{"eni-0123456789abcdef0"}, s.Interfaces(), "the interface of the leader")
	assert.NotContains(t, balancers.States(targetGroup, "i-00000000000000002"), elbtest.Healthy)
}

func TestGoogle(t *testing.T) {
	t.Parallel()
	s := gcetest.New()
	s.OperationTime, s.BootTime, s.DeleteTime = 100*time.Millisecond, time.Second, time.Second
	s.AddEndpointGroup("region-a", "web", "GCE_VM_IP_PORT", 80)
	s.Start(t)
	config := writeCloudConfig(t, longestID, longestID, fmt.Sprintf(
		`{"provider": "google", "region": %q, "zone": "region-a", "options": {
			"project": %q, "endpoint": %q, "machine": {"image": %q}, "subnets": {"subnet": {"subnetwork": "subnet"}},
			"instance_types": {"e2-small": {"cpu": "2", "memory": "2Gi", "arch": "amd64"}},
		}}`, gcetest.Region, gcetest.Project, s.Endpoint(), gcetest.Image),
		"subnet", `{"network_endpoint_groups": ["web"]}`, "e2-small")
	checkCloud(t, []string{"GOOGLE_APPLICATION_CREDENTIALS=" + s.Credentials(t)}, config, s.All)
	assert.Empty(t, s.Machines())
	assert.Empty(t, s.Disks())
	for _, name := range s.Made() {
		assert.Empty(t, s.Endpoints("region-a", "web", name))
	}
}
