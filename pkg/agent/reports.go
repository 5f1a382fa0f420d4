// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/version"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/files"
	"nstance.dev/operator/pkg/agent/identity"
	"nstance.dev/operator/pkg/agent/metrics"
	"nstance.dev/operator/pkg/agent/notice"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// reports creates the health reports of one process. Only one goroutine creates them.
type reports struct {
	instanceID string
	identity   *identity.Identity
	files      *files.Store
	metrics    *metrics.Collector
	// notice returns the latest termination notice, nil if there is none.
	notice func() *notice.Notice
	begin  time.Time
	count  atomic.Int64
}

// create creates the next report. What cannot be read is missing in it: a report that says
// little is better than none.
func (r *reports) create(ctx context.Context) *nstancev1.HealthReportRequest {
	logger := klog.FromContext(ctx)
	now := time.Now()
	report := &nstancev1.HealthReportRequest{
		Version:    version.Version,
		InstanceId: r.instanceID,
		Timestamp:  timestamppb.New(now),
		Count:      r.count.Add(1),
		Uptime:     now.Sub(r.begin).Round(time.Second).String(),
		Metrics:    r.metrics.Collect(),
	}
	var err error
	if report.Files, err = r.files.Status(); err != nil {
		logger.Error(err, "state of the files is missing in a report")
	}
	if report.ConfigHash, err = r.identity.ConfigHash(); err != nil {
		logger.Error(err, "hash of the configuration is missing in a report")
	}
	if n := r.notice(); n != nil {
		report.TerminationNotice = &nstancev1.TerminationNotice{Action: n.Action}
		if !n.Deadline.IsZero() {
			report.TerminationNotice.Deadline = timestamppb.New(n.Deadline)
		}
	}
	return report
}

// hostname returns the configured name, or that of the machine.
func hostname(configured string) string {
	if configured != "" {
		return configured
	}
	name, _ := os.Hostname()
	return name
}
