// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/aws/elbtest"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
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

// checkCloud interrupts the program while the machine starts, and then runs it to its end.
func checkCloud(t *testing.T, env []string, config string) {
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
}

// TestAWS checks a region whose documented policy is in force.
func TestAWS(t *testing.T) {
	t.Parallel()
	s := ec2test.New()
	s.BootTime, s.StopTime = time.Second, time.Second
	s.AddSubnet(awsSubnet, ec2test.Zone, 20)
	s.AddImage(ec2test.Image{ID: awsImage, Arch: "x86_64"})
	s.AddType("c6i.large", "x86_64")
	s.Enforce(ec2test.ReadPolicy(t, "../../../docs/aws.md", "prod", longestID))
	s.Start(t)
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
	}, config)
	assert.Len(t, s.Made(), 2)
	assert.Len(t, s.Terminated(), 2)
	assert.Empty(t, s.Existing())
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
	checkCloud(t, []string{"GOOGLE_APPLICATION_CREDENTIALS=" + s.Credentials(t)}, config)
	assert.Len(t, s.Made(), 2)
	assert.Empty(t, s.Machines())
	assert.Empty(t, s.Disks())
	for _, name := range s.Made() {
		assert.Empty(t, s.Endpoints("region-a", "web", name))
	}
}
