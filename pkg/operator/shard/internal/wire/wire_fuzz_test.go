// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// FuzzEvents converts arbitrary events and replies of a shard server. Texts for people are cut off,
// and an invalid time is no time.
func FuzzEvents(f *testing.F) {
	for _, message := range []proto.Message{
		&nstancev1.InstanceEvent{InstanceId: "knd1", Status: "pending_deletion", Reason: "unhealthy", Addresses: []string{"10.0.0.7", "x"}, UnhealthyAt: timestamppb.New(time.Unix(1, 0))},
		&nstancev1.ErrorEvent{Group: "workers", Error: strings.Repeat("no capacity ä", 400), Timestamp: &timestamppb.Timestamp{Seconds: 1 << 62, Nanos: -1}},
		&nstancev1.InstanceStatusResponse{InstanceId: "knd1", Status: "running", DeleteAt: &timestamppb.Timestamp{Nanos: 1 << 30}},
	} {
		seed, err := proto.Marshal(message)
		require.NoError(f, err)
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		event, failure, status := &nstancev1.InstanceEvent{}, &nstancev1.ErrorEvent{}, &nstancev1.InstanceStatusResponse{}
		if proto.Unmarshal(data, event) == nil {
			notice := Notice(event)
			checkText(t, notice.Reason)
			checkTimes(t, notice.Since, notice.DeleteAt)
		}
		if proto.Unmarshal(data, failure) == nil {
			converted := ErrorEvent(failure)
			checkText(t, converted.Message)
			checkTimes(t, converted.Time)
		}
		if proto.Unmarshal(data, status) == nil {
			checkTimes(t, Instance(status).DeleteAt)
		}
	})
}

func checkText(t *testing.T, text string) {
	t.Helper()
	assert.LessOrEqual(t, len(text), shard.MaxText)
	assert.True(t, utf8.ValidString(text))
}

// checkTimes expects times that can be written to an object of Kubernetes.
func checkTimes(t *testing.T, times ...time.Time) {
	t.Helper()
	for _, at := range times {
		_, err := at.MarshalJSON()
		assert.NoError(t, err)
	}
}
