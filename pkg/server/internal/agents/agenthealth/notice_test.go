// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agenthealth

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestANoticeIsNotWithdrawn by a report without it, also of an agent that has restarted: a
// failed query of the provider looks like that.
func TestANoticeIsNotWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, "a")
		record := s.instances["a"]
		want := &instance.Notice{Action: "terminate", Deadline: time.Now().Add(2 * time.Minute).UTC()}
		session := s.Connect(&record)
		session.Report(&nstancev1.HealthReportRequest{TerminationNotice: &nstancev1.TerminationNotice{
			Action: want.Action, Deadline: timestamppb.New(want.Deadline),
		}})
		assert.Equal(t, want, s.State(&record).Notice)
		session.Report(&nstancev1.HealthReportRequest{})
		assert.Equal(t, want, s.State(&record).Notice, "after a report without it")
		session.Close()
		session = s.Connect(&record)
		defer session.Close()
		session.Report(&nstancev1.HealthReportRequest{Count: 1})
		assert.Equal(t, want, s.State(&record).Notice, "after the first report of another process")
	})
}
