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
	"nstance.dev/operator/pkg/server/storage/gcs/gcstest"
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

// checkCloud interrupts the program while the machine starts, runs it to its end, and stops it at
// steps and questions. left returns what exists, and args are more arguments.
func checkCloud(t *testing.T, env []string, config string, left func() []string, args ...string) {
	t.Helper()
	timeouts := append([]string{"--timeout", "3m", "--cleanup-timeout", "3m"}, args...)
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
	stopEverywhere(t, env, config, expectAnswers(t, output), left, args...)
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

// stop is a moment at which a check is stopped.
type stop struct {
	// title is the step, or the question, that has just begun.
	title    string
	question bool
	signal   os.Signal
}

// stops returns when checks are stopped, in turn: in make test at two questions, and at full size at
// each step and each question, once with kill -9 and once as with Ctrl-C.
func stops(asked [][]string) []stop {
	if !tier.Full() {
		return []stop{
			{"ask about " + asked[0][1], true, os.Interrupt},
			{"ask about " + asked[1+len(asked)/2][1], true, os.Kill},
		}
	}
	var all []stop
	// Without the removal of what an earlier check has left, which there need not be.
	for _, step := range slices.Concat(steps[:1], steps[2:]) {
		all = append(all, stop{step, false, os.Kill}, stop{step, false, os.Interrupt})
	}
	for _, question := range asked {
		title := "ask about " + question[1]
		all = append(all, stop{title, true, os.Kill}, stop{title, true, os.Interrupt})
	}
	return all
}

// stopEverywhere stops the program at steps and questions. An interrupted program leaves nothing, and
// removes what a killed one has left before. At last the program runs to its end. left returns what
// exists.
func stopEverywhere(t *testing.T, env []string, config string, asked [][]string, left func() []string, args ...string) {
	t.Helper()
	args = append([]string{"--timeout", "3m", "--cleanup-timeout", "3m"}, args...)
	killed := false
	for _, stop := range stops(asked) {
		output, code := runProgram(t, env, config, stop.title, func(process *os.Process, _ io.Closer) {
			require.NoError(t, process.Signal(stop.signal))
		}, args...)
		killed = stop.signal == os.Kill
		switch {
		case killed:
			require.Equal(t, -1, code, output)
			if stop.question {
				require.NotEmpty(t, left(), "what the check has left that was killed at %q", stop.title)
			}
		case stop.title == steps[len(steps)-1] && code == 0:
			// The last step was faster than the signal.
		default:
			require.Equal(t, 1, code, output)
		}
		// The first step is before the removal of what an earlier check has left.
		if !killed && stop.title != steps[0] {
			require.Empty(t, left(), "what is left after the check was interrupted at %q:\n%s", stop.title, output)
		}
	}
	output, code := runProgram(t, env, config, "", nil, append([]string{"--skip-assumptions"}, args...)...)
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
	objects := gcstest.Start(t, nil, "nstance")
	checkCloud(t, []string{"GOOGLE_APPLICATION_CREDENTIALS=" + s.Credentials(t), "STORAGE_EMULATOR_HOST=" + objects.URL}, config,
		func() []string { return append(s.All(), objects.Keys("nstance")...) },
		"--storage", "gcs", "--storage-bucket", "nstance")
	assert.Empty(t, s.Machines())
	assert.Empty(t, s.Disks())
	for _, name := range s.Made() {
		assert.Empty(t, s.Endpoints("region-a", "web", name))
	}
}
