// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// watch opens a stream that is closed at the end of the test or after a timeout.
func watch(t *testing.T, operator nstancev1.OperatorServiceClient) grpc.ServerStreamingClient[nstancev1.GroupEvent] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	w, err := operator.WatchGroups(ctx, &emptypb.Empty{})
	require.NoError(t, err)
	return w
}

// next returns the next event as {type} {group} {size}/{actual size}.
func next(t *testing.T, w grpc.ServerStreamingClient[nstancev1.GroupEvent]) string {
	t.Helper()
	event, err := w.Recv()
	require.NoError(t, err)
	return fmt.Sprintf("%s %s %d/%d", strings.TrimPrefix(event.Type.String(), "TYPE_"), event.Group.Key, event.Group.Size, event.Group.ActualSize)
}

// expect reads the events and compares them with want.
func expect(t *testing.T, w grpc.ServerStreamingClient[nstancev1.GroupEvent], want ...string) {
	t.Helper()
	for _, want := range want {
		require.Equal(t, want, next(t, w), "event")
	}
}

// reach reads events of one group until an event equals want.
func reach(t *testing.T, w grpc.ServerStreamingClient[nstancev1.GroupEvent], want string) {
	t.Helper()
	group := strings.Fields(want)[1]
	for {
		got := next(t, w)
		if got == want {
			return
		}
		require.Equal(t, group, strings.Fields(got)[1], "got event %s while waiting for %s", got, want)
	}
}
