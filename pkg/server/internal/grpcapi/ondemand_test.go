// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// watchInstances opens a stream and waits for its header. The stream is closed at the end of
// the test or after a timeout.
func watchInstances(t *testing.T, operator nstancev1.OperatorServiceClient) grpc.ServerStreamingClient[nstancev1.InstanceEvent] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	w, err := operator.WatchInstances(ctx, &emptypb.Empty{})
	require.NoError(t, err)
	_, err = w.Header()
	require.NoError(t, err)
	return w
}

// until reads events until an event has a status.
func until(t *testing.T, w grpc.ServerStreamingClient[nstancev1.InstanceEvent], status string) *nstancev1.InstanceEvent {
	t.Helper()
	for {
		event, err := w.Recv()
		require.NoError(t, err, "waiting for %s", status)
		if event.Status == status {
			return event
		}
	}
}

// untilStatus polls until an instance has a status.
func untilStatus(t *testing.T, operator nstancev1.OperatorServiceClient, id, status string) *nstancev1.InstanceStatusResponse {
	t.Helper()
	var last *nstancev1.InstanceStatusResponse
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		last, err = operator.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
		return last.GetStatus() == status, err
	})
	require.NoError(t, err, "waiting for %s, it is %v", status, last)
	return last
}

func TestLifecycleOfOnDemandInstance(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 1}}}`})
	operator := server.Operator("default")
	groups, instances := watch(t, operator), watchInstances(t, operator)
	reach(t, groups, "UPSERT main 1/1")
	request := &nstancev1.CreateInstanceRequest{IdempotencyKey: "a key", Config: &nstancev1.InstanceConfig{Group: "main"}}
	created, err := operator.CreateInstance(t.Context(), request)
	if err != nil || created.Status != "pending" {
		t.Fatalf("got %v, %v", created, err)
	}
	running := untilStatus(t, operator, created.InstanceId, "running")
	node, err := server.Kubernetes.CoreV1().Nodes().Get(t.Context(), created.InstanceId, metav1.GetOptions{})
	if err != nil || node.Spec.ProviderID != running.ProviderInstanceId || node.Labels["nstance.dev/group"] != "main" {
		t.Errorf("the Node is %v, %v", node, err)
	}
	// It does not count in the size of the group.
	listed, err := operator.ListGroups(t.Context(), &emptypb.Empty{})
	if err != nil || listed.Groups[0].ActualSize != 1 {
		t.Errorf("listed are %v, %v", listed, err)
	}

	_, err = server.Operator("other").DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: created.InstanceId})
	wantCode(t, "another tenant's DeleteInstance", err, codes.PermissionDenied)
	deleted, err := operator.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: created.InstanceId})
	if err != nil || deleted.Status != "deleting" {
		t.Errorf("got %v, %v", deleted, err)
	}
	event := until(t, instances, "deleted")
	if event.InstanceId != created.InstanceId || event.Reason != "requested" || event.ProviderInstanceId != running.ProviderInstanceId {
		t.Errorf("got %v", event)
	}
	untilStatus(t, operator, created.InstanceId, "terminated")
	again, err := operator.CreateInstance(t.Context(), request)
	if err != nil || again.InstanceId != created.InstanceId || again.Status != "terminated" {
		t.Errorf("the same request again gives %v, %v", again, err)
	}
	// The group's own instance did not change.
	listed, err = operator.ListGroups(t.Context(), &emptypb.Empty{})
	if err != nil || listed.Groups[0].ActualSize != 1 {
		t.Errorf("listed are %v, %v", listed, err)
	}
}

// TestDeletedManagedInstanceIsReplaced by its group.
func TestDeletedManagedInstanceIsReplaced(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 1}}}`})
	operator := server.Operator("default")
	groups, instances := watch(t, operator), watchInstances(t, operator)
	reach(t, groups, "UPSERT main 1/1")
	nodes, err := server.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("the Nodes are %v, %v", nodes, err)
	}
	id := nodes.Items[0].Name
	_, err = operator.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: id})
	require.NoError(t, err)
	if event := until(t, instances, "deleted"); event.InstanceId != id {
		t.Errorf("got %v", event)
	}
	reach(t, groups, "UPSERT main 1/1")
}

// TestAcknowledgementFinishesDrain that would otherwise last an hour.
func TestAcknowledgementFinishesDrain(t *testing.T) {
	server := servertest.Start(t, servertest.Options{DrainTimeout: "1h"})
	operator := server.Operator("default")
	groups, instances := watch(t, operator), watchInstances(t, operator)
	_, err := upsert(t.Context(), operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
	require.NoError(t, err)
	reach(t, groups, "UPSERT workers 2/2")
	_, err = upsert(t.Context(), operator, "workers", &nstancev1.GroupConfig{Size: 1})
	require.NoError(t, err)
	notice := until(t, instances, "pending_deletion")
	if lasts := notice.DeleteAt.AsTime().Sub(notice.UnhealthyAt.AsTime()); lasts != time.Hour || notice.Reason != "scale-down" {
		t.Errorf("the drain lasts %v: %v", lasts, notice)
	}
	// A later watcher gets it too. The instance still runs.
	late := watchInstances(t, operator)
	if event := until(t, late, "pending_deletion"); event.InstanceId != notice.InstanceId {
		t.Errorf("the later watcher got %v", event)
	}
	untilStatus(t, operator, notice.InstanceId, "running")
	reach(t, groups, "UPSERT workers 1/2")
	_, err = operator.AcknowledgeDrained(t.Context(), &nstancev1.DrainAckRequest{InstanceId: notice.InstanceId})
	require.NoError(t, err)
	for _, w := range []grpc.ServerStreamingClient[nstancev1.InstanceEvent]{instances, late} {
		if event := until(t, w, "deleted"); event.InstanceId != notice.InstanceId || event.Reason != "scale-down" {
			t.Errorf("got %v", event)
		}
	}
	reach(t, groups, "UPSERT workers 1/1")
	if _, err := operator.AcknowledgeDrained(t.Context(), &nstancev1.DrainAckRequest{InstanceId: notice.InstanceId}); err != nil {
		t.Errorf("acknowledged again: %v", err)
	}
}
