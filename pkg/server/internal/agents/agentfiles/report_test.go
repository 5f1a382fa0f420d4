// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestOnlyWhatIsUsedOfAReportIsKept of a report that has as much as a message may have.
func TestOnlyWhatIsUsedOfAReportIsKept(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	at := timestamppb.New(time.Unix(1700000000, 5))
	report := &nstancev1.HealthReportRequest{
		Version: long, InstanceId: "a", Timestamp: at, Count: 3, Uptime: long, ConfigHash: "hash-1", NotReady: long,
		Metrics:           &nstancev1.Metrics{CpuCoreUsage: make([]float64, 1024), EbpfError: &long},
		TerminationNotice: &nstancev1.TerminationNotice{Action: "stop", Deadline: at},
		Files: map[string]*nstancev1.FileStatus{
			"app.env":  {Status: &nstancev1.FileStatus_LastModified{LastModified: at}},
			"app.json": refused(long), "text.json": {},
		},
	}
	unknown := []byte("\x82\xf1\x04\x05hello") // field 10000
	report.ProtoReflect().SetUnknown(unknown)
	report.GetFiles()["text.json"].ProtoReflect().SetUnknown(unknown)
	for n := range 1000 {
		report.Files[fmt.Sprintf("%d.json", n)] = refused(long[:100])
	}
	inBubble(t, func(t *testing.T, w *world) {
		i := w.instances["a"]
		kept := w.Trim(&i, report)
		want := &nstancev1.HealthReportRequest{
			InstanceId: "a", ConfigHash: "hash-1", NotReady: long[:maxText],
			TerminationNotice: &nstancev1.TerminationNotice{Action: "stop", Deadline: at},
			Files: map[string]*nstancev1.FileStatus{
				"app.env":  {Status: &nstancev1.FileStatus_LastModified{LastModified: at}},
				"app.json": refused(long[:maxText]), "text.json": {},
			},
		}
		assert.True(t, proto.Equal(want, kept), "kept %v", kept)
		i.Group = "missing"
		assert.Empty(t, w.Trim(&i, report).GetFiles(), "of a group that is not there")
	})
}
