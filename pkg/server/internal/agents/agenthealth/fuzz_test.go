// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agenthealth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// FuzzNotice reads arbitrary termination notices of a machine. A deadline that is over, or is no
// time, is no deadline.
func FuzzNotice(f *testing.F) {
	f.Add("terminate", int64(1<<31), int32(0))
	f.Add("", int64(1<<62), int32(1<<30))
	f.Add("stop", int64(-1<<62), int32(-1))
	f.Fuzz(func(t *testing.T, action string, seconds int64, nanos int32) {
		now := time.Unix(1_800_000_000, 0)
		notice := newNotice(&nstancev1.TerminationNotice{Action: action, Deadline: &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos}}, now)
		assert.True(t, notice.Deadline.IsZero() || notice.Deadline.After(now))
		_, err := notice.Deadline.MarshalJSON()
		assert.NoError(t, err)
	})
}
