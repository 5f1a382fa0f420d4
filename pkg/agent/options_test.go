// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/flagenv"
)

func parse(t *testing.T, environment map[string]string, args ...string) (*Options, error) {
	t.Helper()
	options := DefaultOptions()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	options.AddFlags(flags)
	require.NoError(t, flags.Parse(args))
	return options, flagenv.Set(flags, func(name string) (string, bool) {
		value, ok := environment[name]
		return value, ok
	})
}

// Other agents have the same variables, so that one userdata works with each agent.
func TestEnvironment(t *testing.T) {
	got, err := parse(t, map[string]string{
		"NSTANCE_SERVER_REGISTRATION_ADDR": "10.0.0.1:8992",
		"NSTANCE_SERVER_AGENT_ADDR":        "10.0.0.1:8994",
		"NSTANCE_SERVER_URI":               "nstance://test/a",
		"NSTANCE_INSTANCE_ID":              "knc06bgm7733st2576nx5jht4ecjw",
		"NSTANCE_DEBUG":                    "true",
		"NSTANCE_ENVIRONMENT":              "production",
		"NSTANCE_IDENTITY_DIR":             "/i",
		"NSTANCE_KEYS_DIR":                 "/k",
		"NSTANCE_RECV_DIR":                 "/r",
		"NSTANCE_IDENTITY_MODE":            "0640",
		"NSTANCE_KEYS_MODE":                "600",
		"NSTANCE_RECV_MODE":                "0644",
		"NSTANCE_INSTANCE_KIND":            "knc",
		"NSTANCE_INSTANCE_HOSTNAME":        "h",
		"NSTANCE_INSTANCE_FQDN":            "h.example.org",
		"NSTANCE_INSTANCE_IPV4":            "10.0.0.2",
		"NSTANCE_INSTANCE_IPV6":            "fd00::2",
		"NSTANCE_REPORT_INTERVAL":          "0s",
		"NSTANCE_METRICS_INTERFACE":        "eth0",
		"NSTANCE_EBPF_COUNTERS_PATH":       "/sys/fs/bpf/counters",
		"NSTANCE_SPOT_POLL_INTERVAL":       "1s",
		"NSTANCE_HEALTH_ADDR":              "127.0.0.1:8080",
		"NSTANCE_PROVIDER":                 "aws",
		"NSTANCE_METADATA_URL":             "http://127.0.0.1:1",
	})
	require.NoError(t, err)
	require.NoError(t, got.Validate())
	want := &Options{
		RegistrationAddress: "10.0.0.1:8992", AgentAddress: "10.0.0.1:8994", ServerURI: "nstance://test/a", InstanceID: "knc06bgm7733st2576nx5jht4ecjw",
		Debug: true, Environment: "production", IdentityFolder: "/i", KeysFolder: "/k", ReceiveFolder: "/r",
		IdentityMode: 0o640, KeysMode: 0o600, ReceiveMode: 0o644, InstanceKind: "knc", InstanceHostname: "h",
		InstanceFQDN: "h.example.org", InstanceIPv4: "10.0.0.2", InstanceIPv6: "fd00::2", MetricsInterface: "eth0",
		EBPFCountersPath: "/sys/fs/bpf/counters", SpotPollInterval: time.Second, HealthAddress: "127.0.0.1:8080",
		Provider: "aws", MetadataURL: "http://127.0.0.1:1",
	}
	assert.Equal(t, want, got)
}

func TestDefaults(t *testing.T) {
	o, err := parse(t, nil, "--server-registration-addr=a:1", "--server-agent-addr=a:2", "--instance-id=i")
	require.NoError(t, err)
	require.NoError(t, o.Validate())
	assert.Equal(t, "/opt/nstance-agent/identity", o.IdentityFolder)
	assert.EqualValues(t, 0o600, o.IdentityMode.FileMode())
	assert.EqualValues(t, 0o640, o.KeysMode.FileMode())
	assert.EqualValues(t, 0o640, o.ReceiveMode.FileMode())
	assert.Equal(t, time.Minute, o.ReportInterval)
	assert.Equal(t, 2*time.Second, o.SpotPollInterval)
	assert.Empty(t, o.HealthAddress)
}

func TestValidateNamesEveryWrongOption(t *testing.T) {
	o := &Options{
		RegistrationAddress: "host", AgentAddress: "host:0", InstanceID: "A", ServerURI: "https://test/a", InstanceIPv4: "fd00::1", InstanceIPv6: "x",
		ReportInterval: -1, MetadataURL: "metadata",
	}
	err := o.Validate()
	for _, flag := range []string{
		"server-registration-addr", "server-agent-addr", "server-uri", "instance-id", "identity-dir", "keys-dir", "recv-dir",
		"instance-ipv4", "instance-ipv6", "report-interval", "spot-poll-interval", "metadata-url",
	} {
		if err == nil || !strings.Contains(err.Error(), "--"+flag+": ") {
			t.Errorf("%s is not in the error %v", flag, err)
		}
	}
	// An address with a zone would be rejected by each registration.
	o.InstanceIPv6 = "fe80::1%eth0"
	assert.ErrorContains(t, o.Validate(), `"fe80::1%eth0" is not such an address, without a zone`)
	for _, mode := range []string{"", "8", "1777", "0440", "-1", "rw"} {
		_, err := parse(t, map[string]string{"NSTANCE_RECV_MODE": mode})
		assert.ErrorContains(t, err, "NSTANCE_RECV_MODE", mode)
	}
}
