// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// FuzzMachine renders files with what a machine reports about itself. A value stays one value: it
// adds no line to a file, and no name to a certificate.
func FuzzMachine(f *testing.F) {
	f.Add("machine", "10.0.0.7", "fd00::7")
	f.Add("machine\nADMIN=yes", "10.0.0.7,10.0.0.8", "")
	f.Add(`{{.Vars.role}}", "admin": "`, "::ffff:10.0.0.7", "fe80::1%eth0")
	f.Add("*.example.com", "x", "\x00")
	f.Fuzz(func(t *testing.T, hostname, ip4, ip6 string) {
		s := newShard()
		i := newInstance("a")
		i.Registration.Hostname, i.Registration.IPv4, i.Registration.IPv6 = hostname, ip4, ip6
		facts := s.renderer().Facts(s.groups[workersKey], &i)
		if lines, err := environment(map[string]string{"HOST": "{{.Instance.Hostname}}", "ZONE": "a"}, facts); err == nil {
			assert.Equal(t, "HOST="+hostname+"\nZONE=a\n", string(lines))
			assert.Equal(t, 2, strings.Count(string(lines), "\n"))
		}
		data, err := object(map[string]any{"host": "{{.Instance.Hostname}}"}, facts)
		require.NoError(t, err)
		assert.Equal(t, 3, strings.Count(string(data), "\n"))
		workload, err := workloadOf(s.config.Certificates["kubelet"], facts)
		if err != nil {
			return
		}
		assert.Equal(t, "system:node:a", workload.CommonName)
		assert.Equal(t, []string{"system:nodes"}, workload.Organizations)
		assert.LessOrEqual(t, len(workload.DNS), 1)
		for _, name := range workload.DNS {
			assert.Equal(t, hostname, name)
			assert.Empty(t, validation.IsDNS1123Subdomain(name))
		}
		assert.LessOrEqual(t, len(workload.IP), 2)
	})
}

// FuzzReport reads arbitrary reports of a machine. The reasons that operators get are short, and
// valid text.
func FuzzReport(f *testing.F) {
	for _, reason := range []string{"it is no JSON", strings.Repeat("ä", maxText), "\x1b[2J"} {
		seed, err := proto.Marshal(&nstancev1.HealthReportRequest{InstanceId: "a", ConfigHash: "hash-1", Files: map[string]*nstancev1.FileStatus{
			"token.json": refused(reason), "app.env": refused("x" + reason), "unknown.env": refused(reason),
		}})
		require.NoError(f, err)
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		report := &nstancev1.HealthReportRequest{}
		if proto.Unmarshal(data, report) != nil {
			return
		}
		group, a := newShard().groups[workersKey], &agent{}
		a.report(trim(group.Files, report))
		whole := &agent{}
		whole.report(report)
		assert.Equal(t, whole.errors(group), a.errors(group))
		for name, reason := range a.errors(group) {
			assert.Contains(t, group.Files, name)
			assert.LessOrEqual(t, len(reason), maxText)
			assert.True(t, utf8.ValidString(reason))
		}
		assert.Subset(t, []string{"x"}, a.missing([]string{"x"}))
	})
}
