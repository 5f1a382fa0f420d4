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

func TestErrorEvent(t *testing.T) {
	happened := time.Date(2030, time.May, 1, 12, 0, 0, 5, time.UTC)
	got := ErrorEvent(&nstancev1.ErrorEvent{
		Group: "workers", InstanceId: "knd1", Error: "out of capacity", Timestamp: timestamppb.New(happened),
	})
	want := shard.ErrorEvent{Group: "workers", InstanceID: "knd1", Message: "out of capacity", Time: happened}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	noZeroField(t, got)

	for name, event := range map[string]*nstancev1.ErrorEvent{
		"no event":             nil,
		"no timestamp":         {},
		"an invalid timestamp": {Timestamp: &timestamppb.Timestamp{Seconds: math.MaxInt64}},
		"a negative timestamp": {Timestamp: &timestamppb.Timestamp{Nanos: -1}},
	} {
		if got := ErrorEvent(event); got != (shard.ErrorEvent{}) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
