// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestInstanceCallsCheckIDAndTenant(t *testing.T) {
	s := newService(t)
	record := s.add()
	calls := map[string]func(ctx context.Context, id string) error{
		"GetInstanceStatus": func(ctx context.Context, id string) error {
			_, err := s.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
			return err
		},
		"DeleteInstance": func(ctx context.Context, id string) error {
			_, err := s.DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: id})
			return err
		},
		"AcknowledgeDrained": func(ctx context.Context, id string) error {
			_, err := s.AcknowledgeDrained(ctx, &nstancev1.DrainAckRequest{InstanceId: id})
			return err
		},
	}
	for name, call := range calls {
		expectStatus(t, name, call(s.ctx(), ""), codes.InvalidArgument, "instance_id: Required value")
		expectStatus(t, name, call(s.ctx(), newID(t, "knd")), codes.NotFound, "is not known")
		expectStatus(t, name, call(as(t.Context(), "other"), record.ID), codes.PermissionDenied, "another tenant")
	}
	if i, _ := s.Instances.Get(record.ID); i.BeingDeleted() || len(s.takeChanged()) != 0 {
		t.Errorf("the rejected calls left %+v", i)
	}
}

func TestInstanceStatus(t *testing.T) {
	s := newService(t)
	record := s.add()
	var deleteAt *timestamppb.Timestamp
	expect := func(want string) {
		t.Helper()
		got, err := s.GetInstanceStatus(s.ctx(), &nstancev1.GetInstanceStatusRequest{InstanceId: record.ID})
		require.NoError(t, err)
		full := &nstancev1.InstanceStatusResponse{
			InstanceId: record.ID, Tenant: "default", Status: want,
			CreatedAt: timestamppb.New(epoch), ProviderInstanceId: "id-" + record.ID, DeleteAt: deleteAt,
		}
		if !proto.Equal(got, full) {
			t.Errorf("got  %v\nwant %v", got, full)
		}
	}
	for _, tc := range []struct {
		state instance.State
		want  string
	}{
		{instance.Pending, "pending"}, {instance.Running, "running"}, {instance.Impaired, "running"},
		{instance.Stopped, "stopped"}, {instance.Failed, "failed"}, {instance.Terminating, "terminating"},
	} {
		s.show(record.ID, tc.state)
		expect(tc.want)
	}
	s.provider.Remove(record.ID)
	expect("terminating")
	s.show(record.ID, instance.Running)
	require.NoError(s.t, s.Instances.StartDrain(t.Context(), record.ID, instance.Drain{
		Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch.Add(time.Hour),
	}))
	// From now on there is a deadline for its deletion.
	deleteAt = timestamppb.New(epoch.Add(time.Hour))
	expect("running")
	require.NoError(s.t, s.Instances.SetDeleting(t.Context(), record.ID, instance.ReasonExpired))
	expect("terminating")
	s.provider.Remove(record.ID)
	expect("terminating")
	require.NoError(s.t, s.Instances.Remove(t.Context(), record.ID))
	expect("terminated")

	// Without a recorded provider id it cannot be found.
	created, err := s.CreateInstance(s.ctx(), createRequest("plain"))
	require.NoError(s.t, err)
	s.show(created.InstanceId, instance.Running)
	got, err := s.GetInstanceStatus(s.ctx(), &nstancev1.GetInstanceStatusRequest{InstanceId: created.InstanceId})
	if err != nil || got.Status != "pending" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestDeleteInstance(t *testing.T) {
	s := newService(t)
	managed := s.add()
	expect := func(id, want string) {
		t.Helper()
		got, err := s.DeleteInstance(s.ctx(), &nstancev1.DeleteInstanceRequest{InstanceId: id})
		if err != nil || got.Status != want {
			t.Errorf("got %v, %v, want %s", got, err, want)
		}
	}
	created, err := s.CreateInstance(s.ctx(), createRequest("plain"))
	require.NoError(s.t, err)
	s.takeChanged()
	for _, id := range []string{managed.ID, created.InstanceId} {
		expect(id, "deleting")
		if i, _ := s.Instances.Get(id); i.DeleteReason != instance.ReasonRequested || i.Drain != nil {
			t.Errorf("it is left as %+v", i)
		}
		if changed := s.takeChanged(); !slices.Equal(changed, []instance.GroupKey{managed.Key()}) {
			t.Errorf("changed groups are %v", changed)
		}
		// It is already being deleted.
		expect(id, "deleting")
		if changed := s.takeChanged(); len(changed) != 0 {
			t.Errorf("changed again are %v", changed)
		}
		s.provider.Remove(id)
		require.NoError(s.t, s.Instances.Remove(t.Context(), id))
		expect(id, "deleted")
	}

	// A draining instance is deleted at once too.
	draining := s.add()
	require.NoError(s.t, s.Instances.StartDrain(t.Context(), draining.ID, instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch}))
	expect(draining.ID, "deleting")
	if i, _ := s.Instances.Get(draining.ID); i.DeleteReason != instance.ReasonRequested {
		t.Errorf("it is left as %+v", i)
	}
	// The request is recorded also when it is being deleted for another reason.
	deleting := s.add()
	require.NoError(s.t, s.Instances.SetDeleting(t.Context(), deleting.ID, instance.ReasonExpired))
	expect(deleting.ID, "deleting")
	if i, _ := s.Instances.Get(deleting.ID); i.DeleteReason != instance.ReasonExpired || i.DeletionRequestedAt.IsZero() {
		t.Errorf("it is left as %+v", i)
	}
	s.Instances.Purge(t.Context(), epoch.Add(time.Hour))
	_, err = s.DeleteInstance(s.ctx(), &nstancev1.DeleteInstanceRequest{InstanceId: managed.ID})
	expectStatus(t, "an instance whose record was purged", err, codes.NotFound, managed.ID)
}

func TestAcknowledgeDrained(t *testing.T) {
	s := newService(t)
	acknowledge := func(id string) {
		t.Helper()
		_, err := s.AcknowledgeDrained(s.ctx(), &nstancev1.DrainAckRequest{InstanceId: id})
		require.NoError(s.t, err)
	}
	record := s.add()
	drain := instance.Drain{Reason: instance.ReasonConfigDrift, StartedAt: epoch, DeleteAt: epoch.Add(time.Hour)}
	require.NoError(s.t, s.Instances.StartDrain(t.Context(), record.ID, drain))
	drain.Acknowledged = true
	for range 2 {
		acknowledge(record.ID)
		if i, _ := s.Instances.Get(record.ID); i.Drain == nil || *i.Drain != drain {
			t.Errorf("the drain is %+v, want %+v", i.Drain, drain)
		}
		if changed := s.takeChanged(); !slices.Equal(changed, []instance.GroupKey{record.Key()}) {
			t.Errorf("changed groups are %v", changed)
		}
	}
	require.NoError(s.t, s.Instances.SetDeleting(t.Context(), record.ID, drain.Reason))
	acknowledge(record.ID)
	s.provider.Remove(record.ID)
	require.NoError(s.t, s.Instances.Remove(t.Context(), record.ID))
	s.takeChanged()
	acknowledge(record.ID)
	if changed := s.takeChanged(); len(changed) != 0 {
		t.Errorf("for a deleted instance, changed groups are %v", changed)
	}

	// A new leader has no record of the drain.
	lost := s.add()
	acknowledge(lost.ID)
	if i, _ := s.Instances.Get(lost.ID); i.Drain == nil || !i.Drain.Acknowledged || i.Drain.Reason != instance.ReasonUnhealthy {
		t.Errorf("without a drain, the drain is %+v", i.Drain)
	}
	if changed := s.takeChanged(); !slices.Equal(changed, []instance.GroupKey{lost.Key()}) {
		t.Errorf("changed groups are %v", changed)
	}
}

// TestDeleteInstanceIsDurable with a next server that has only the storage.
func TestDeleteInstanceIsDurable(t *testing.T) {
	s := newService(t)
	record := s.add()
	_, err := s.DeleteInstance(s.ctx(), &nstancev1.DeleteInstanceRequest{InstanceId: record.ID})
	require.NoError(t, err)
	s.start(filepath.Join(t.TempDir(), "cache"))
	if i, _ := s.Instances.Get(record.ID); i.DeleteReason != instance.ReasonRequested {
		t.Errorf("the next server has %+v", i)
	}
	got, err := s.GetInstanceStatus(s.ctx(), &nstancev1.GetInstanceStatusRequest{InstanceId: record.ID})
	if err != nil || got.Status != "terminating" {
		t.Errorf("the next server returns %v, %v", got, err)
	}
}
