// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// eventTimeout is how long a test waits for an expected event.
const eventTimeout = 30 * time.Second

// stream is a WatchGroups call.
type stream struct {
	t *testing.T
	grpc.ServerStreamingClient[nstancev1.GroupEvent]
}

// watchGroups opens a stream that is closed with the test.
func watchGroups(t *testing.T, operator nstancev1.OperatorServiceClient) stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	t.Cleanup(cancel)
	s, err := operator.WatchGroups(ctx, &emptypb.Empty{})
	require.NoError(t, err)
	return stream{t, s}
}

// until reads events up to the first that matches, and returns it.
func (s stream) until(matches func(*nstancev1.GroupEvent) bool) *nstancev1.GroupEvent {
	s.t.Helper()
	for {
		event, err := s.Recv()
		require.NoError(s.t, err, "waiting for an event")
		if matches(event) {
			return event
		}
	}
}

// untilSize waits until a group has a size, exactly as many instances, and all of them run.
func (s stream) untilSize(group string, size int32) *nstancev1.GroupStatus {
	s.t.Helper()
	return s.until(func(e *nstancev1.GroupEvent) bool {
		return e.Group.Key == group && e.Type == nstancev1.GroupEvent_TYPE_UPSERT && e.Group.Size == size && e.Group.ActualSize == size &&
			len(e.Group.Instances.Instances) == int(size)
	}).Group
}

// instanceIDs returns the ids of the instances that a group lists.
func instanceIDs(group *nstancev1.GroupStatus) []string {
	var ids []string
	for _, i := range group.GetInstances().GetInstances() {
		ids = append(ids, i.Id)
	}
	return ids
}

// withoutInstances returns the status of a group without its instances, whose
// states may change at any time.
func withoutInstances(group *nstancev1.GroupStatus) *nstancev1.GroupStatus {
	group = proto.CloneOf(group)
	group.Instances = nil
	return group
}

// untilListed waits until the groups of an operator have exactly these names.
func untilListed(t *testing.T, operator nstancev1.OperatorServiceClient, names ...string) []*nstancev1.GroupStatus {
	t.Helper()
	var groups []*nstancev1.GroupStatus
	// A watch that begins after the last group was deleted has no event.
	runtest.Eventually(t, fmt.Sprintf("the groups are %q", names), func() bool {
		groups = list(t, operator)
		return slices.EqualFunc(groups, names, func(group *nstancev1.GroupStatus, name string) bool { return group.Key == name })
	})
	return groups
}

func upsert(t *testing.T, operator nstancev1.OperatorServiceClient, group string, c *nstancev1.GroupConfig) *nstancev1.GroupStatus {
	t.Helper()
	reply, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: group, Config: c})
	require.NoError(t, err)
	return reply
}

func list(t *testing.T, operator nstancev1.OperatorServiceClient) []*nstancev1.GroupStatus {
	t.Helper()
	reply, err := operator.ListGroups(t.Context(), &emptypb.Empty{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	return reply.Groups
}

// nodes returns how many Nodes there are.
func nodes(t *testing.T, s *servertest.Server) int {
	t.Helper()
	nodes, err := s.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return len(nodes.Items)
}

// within fails the test unless do returns in time.
func within(t *testing.T, limit time.Duration, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		do()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s takes longer than %v", what, limit)
	}
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	assert.Equal(t, want, status.Code(err), "%s: %v", what, err)
}

// occupied returns an address that is in use.
func occupied(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}
