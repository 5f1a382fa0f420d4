// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestNotice(t *testing.T) {
	since := time.Date(2030, time.May, 1, 12, 0, 0, 5, time.UTC)
	got := Notice(&nstancev1.InstanceEvent{
		InstanceId: "knd1", Tenant: "default", ProviderInstanceId: "kwok://a/1", Group: "workers",
		Status: "pending_deletion", Reason: "expired",
		UnhealthyAt: timestamppb.New(since), DeleteAt: timestamppb.New(since.Add(time.Hour)),
	})
	// Events do not contain Announced and Deadline.
	got.Announced, got.Deadline = 1, since
	want := shard.DeletionNotice{
		InstanceID: "knd1", ProviderID: "kwok://a/1", Group: "workers",
		State: shard.Draining, Reason: "expired", Since: since, DeleteAt: since.Add(time.Hour), Deadline: since, Announced: 1,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	noZeroField(t, got)

	for name, event := range map[string]*nstancev1.InstanceEvent{
		"no event":                    nil,
		"no timestamps":               {},
		"invalid timestamps":          {UnhealthyAt: &timestamppb.Timestamp{Seconds: math.MaxInt64}, DeleteAt: &timestamppb.Timestamp{Nanos: -1}},
		"timestamps of the zero time": {UnhealthyAt: timestamppb.New(time.Time{}), DeleteAt: timestamppb.New(time.Time{})},
	} {
		if got := Notice(event); got != (shard.DeletionNotice{}) || !got.DeleteAt.IsZero() {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
