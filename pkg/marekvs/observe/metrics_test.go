// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/marekvs/scale"
)

const page = `# HELP marekvs_commands_total commands
# TYPE marekvs_commands_total counter
marekvs_commands_total{cmd="get"} 10
marekvs_commands_total{cmd="set",other="1"} 5 1700000000000
marekvs_commands_total_other 7
# TYPE marekvs_cluster_underreplicated_partitions gauge
marekvs_cluster_underreplicated_partitions 0
marekvs_cluster_members 3
marekvs_cluster_effective_rf_min 2
marekvs_join_gate_pending_pids 0
marekvs_rejoin_active 1
marekvs_ae_rounds_total 12
marekvs_disk_total_bytes 1e10
marekvs_disk_avail_bytes 4e9
marekvs_disk_write_stopped 0
another{le="+Inf"} NaN
`

func TestParse(t *testing.T) {
	got, err := Parse(strings.NewReader(page))
	require.NoError(t, err)
	assert.Equal(t, &Metrics{
		Sample: scale.Sample{
			Underreplicated: ptr.To[int64](0), Members: ptr.To[int64](3), EffectiveReplicas: ptr.To[int64](2), Joining: ptr.To[int64](1),
			DiskTotal: ptr.To(1e10), DiskAvailable: ptr.To(4e9), WriteStopped: ptr.To[int64](0),
		},
		Commands: ptr.To(15.0), Rounds: ptr.To[int64](12),
	}, got)
}

// Names of commands that clients send become values of labels.
func TestLabelsAreNoSamples(t *testing.T) {
	for _, text := range []string{
		`marekvs_commands_total{cmd="x} 1e18 "} 1`,
		`marekvs_commands_total{cmd="x\nmarekvs_commands_total 1e18"} 1`,
		`marekvs_commands_total{cmd="\"} 1e18 #"} 1`,
		`marekvs_commands_total{cmd="\\"} 1`,
		`marekvs_commands_total { cmd = "}" , } 1`,
	} {
		got, err := Parse(strings.NewReader(text + "\n"))
		require.NoError(t, err, text)
		assert.Equal(t, ptr.To(1.0), got.Commands, text)
	}
}

func TestInvalidValuesAreNoSignal(t *testing.T) {
	for _, value := range []string{"NaN", "+Inf", "-Inf", "-1", "0.5", "1e300"} {
		text := "marekvs_commands_total{cmd=\"a\"} 1\nmarekvs_commands_total{cmd=\"b\"} " + value +
			"\nmarekvs_cluster_underreplicated_partitions " + value + "\nmarekvs_disk_total_bytes " + value + "\n"
		got, err := Parse(strings.NewReader(text))
		require.NoError(t, err, value)
		assert.Equal(t, &Metrics{}, got, value)
	}
	got, err := Parse(strings.NewReader(""))
	require.NoError(t, err)
	assert.Equal(t, &Metrics{}, got)
}

func TestOtherMetricsAreNotParsed(t *testing.T) {
	got, err := Parse(strings.NewReader("this is { no metric\n  marekvs_cluster_members 2\n"))
	require.NoError(t, err)
	assert.Equal(t, ptr.To[int64](2), got.Members)
	_, err = Parse(strings.NewReader("marekvs_cluster_members {\n"))
	require.Error(t, err)
}

func FuzzParse(f *testing.F) {
	f.Add(page)
	f.Add(`marekvs_commands_total{cmd="x} 1e18 "} 1`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		if got.Commands != nil && (*got.Commands < 0 || *got.Commands > largest) {
			t.Errorf("%q has %v commands", text, *got.Commands)
		}
		if got.Underreplicated != nil && *got.Underreplicated < 0 {
			t.Errorf("%q has %d partitions", text, *got.Underreplicated)
		}
	})
}
