// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func upsert(ctx context.Context, operator nstancev1.OperatorServiceClient, group string, c *nstancev1.GroupConfig) (*nstancev1.GroupStatus, error) {
	return operator.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Key: group, Config: c})
}

func TestUpsertGroupReturnsMergedGroup(t *testing.T) {
	operator := servertest.Start(t, servertest.Options{BootDelay: time.Hour}).Operator("default")
	got, err := upsert(t.Context(), operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3, Vars: map[string]string{"a": "b"}})
	require.NoError(t, err)
	// The group's instances are being created, and no instance runs. Another test checks the
	// Node.
	if got.Instances == nil || got.Node == nil {
		t.Errorf("the response lacks instances or Node: %v", got)
	}
	got.Instances, got.Node = nil, nil
	want := &nstancev1.GroupStatus{
		Key: "workers", Tenant: "default", Template: "worker", Size: 3, InstanceType: "m7i.large",
		Subnets: []string{"default"}, Vars: map[string]string{"a": "b"}, Declared: &nstancev1.GroupSettings{}, Etag: got.Etag,
		KnownSettings: 1025, Revision: &nstancev1.Revision{},
		RotationProgress: &nstancev1.RotationProgress{UpToDate: 3, Below: 3, Target: got.GetRotationProgress().GetTarget()},
	}
	if !proto.Equal(got, want) || got.Etag == "" || got.RotationProgress.Target == "" {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	listed, err := operator.ListGroups(t.Context(), &emptypb.Empty{})
	if err != nil || len(listed.Groups) != 1 {
		t.Fatalf("ListGroups gives %v, %v, want one group", listed, err)
	}
	listed.Groups[0].Instances, listed.Groups[0].Node = nil, nil
	if !proto.Equal(listed.Groups[0], want) {
		t.Errorf("ListGroups gives %v, want the same", listed)
	}
}

func TestStatusCodes(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 0}}}`})
	operator := server.Operator("default")
	ill := server.Operator("Ill--Formed")
	worker := &nstancev1.GroupConfig{Template: "worker"}
	upsertOf := func(operator nstancev1.OperatorServiceClient, group string, c *nstancev1.GroupConfig) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := upsert(ctx, operator, group, c)
			return err
		}
	}
	deleteOf := func(operator nstancev1.OperatorServiceClient, group string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := operator.DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Key: group})
			return err
		}
	}
	tests := []struct {
		name string
		call func(context.Context) error
		code codes.Code
		want string
	}{
		{"no key", upsertOf(operator, "", worker), codes.InvalidArgument, "key: Invalid value"},
		{"ill-formed key", upsertOf(operator, "a_b", worker), codes.InvalidArgument, `key: Invalid value: "a_b"`},
		{"ill-formed tenant", upsertOf(ill, "a", worker), codes.InvalidArgument, `tenant: Invalid value: "Ill--Formed"`},
		{"no config", upsertOf(operator, "a", nil), codes.InvalidArgument, "config: Required value"},
		{"no template", upsertOf(operator, "a", &nstancev1.GroupConfig{Size: 1}), codes.InvalidArgument, "config.template: Required value"},
		{"unknown template", upsertOf(operator, "a", &nstancev1.GroupConfig{Template: "b"}), codes.InvalidArgument, `unknown template, known are "worker"`},
		{"negative size", upsertOf(operator, "main", &nstancev1.GroupConfig{Size: -1}), codes.InvalidArgument, "config.size: Invalid value: -1"},
		{"template of a static group", upsertOf(operator, "main", &nstancev1.GroupConfig{Template: "b"}), codes.FailedPrecondition, `config.template: Forbidden: "b"`},
		{"args of a static group", upsertOf(operator, "main", &nstancev1.GroupConfig{Args: map[string]string{"a": "b"}}), codes.FailedPrecondition, "config.args: Forbidden"},
		{"settings that a static group already has", upsertOf(operator, "main", &nstancev1.GroupConfig{Template: "worker", Subnets: []string{"default"}}), codes.OK, ""},
		{"deletion without a key", deleteOf(operator, ""), codes.InvalidArgument, "key: Invalid value"},
		{"deletion by an ill-formed tenant", deleteOf(ill, "a"), codes.InvalidArgument, "tenant: Invalid value"},
		{"deletion of a group that does not exist", deleteOf(operator, "nothing"), codes.OK, ""},
		{"deletion of a static group", deleteOf(operator, "main"), codes.OK, ""},
		{"method that is not implemented", func(ctx context.Context) error {
			_, err := operator.SleepTenant(ctx, &nstancev1.SleepTenantRequest{})
			return err
		}, codes.Unimplemented, "SleepTenant"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.call(t.Context())
			wantCode(t, tc.name, err, tc.code)
			if err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// A grant is stored as it was sent, is reported, and is removed by a request without a grant. A
// number that is left out is no zero.
func TestOperatorsSendGrants(t *testing.T) {
	server := servertest.Start(t, servertest.Options{})
	operator := server.Operator("default")
	send := func(grant *nstancev1.RotationGrant) (*nstancev1.GroupStatus, error) {
		return operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
			Key: "workers", Config: &nstancev1.GroupConfig{Template: "worker", Size: 2}, Rotation: grant,
		})
	}
	none, err := send(nil)
	require.NoError(t, err)
	assert.Nil(t, none.GetRotation())
	assert.NotNil(t, none.GetRotationProgress(), "this tells operators that grants are known")
	now := timestamppb.Now()
	full := &nstancev1.RotationGrant{
		MaxSurge: proto.Int32(0), MaxUnavailable: proto.Int32(2), UpToDate: proto.Int32(0), NotAfter: now, After: now, MaxAgeSeconds: 3600, Target: "t",
	}
	got, err := send(full)
	require.NoError(t, err)
	assert.True(t, proto.Equal(full, got.GetRotation()), "got %v", got.GetRotation())
	assert.NotEqual(t, none.GetEtag(), got.GetEtag())
	for _, incomplete := range []*nstancev1.RotationGrant{
		{}, {MaxSurge: proto.Int32(1), MaxUnavailable: proto.Int32(0)}, {MaxSurge: proto.Int32(1), UpToDate: proto.Int32(0)},
		{MaxUnavailable: proto.Int32(1), UpToDate: proto.Int32(0)},
	} {
		_, err = send(incomplete)
		wantCode(t, "an incomplete grant", err, codes.InvalidArgument)
	}
	_, err = send(&nstancev1.RotationGrant{MaxSurge: proto.Int32(-1), MaxUnavailable: proto.Int32(0), UpToDate: proto.Int32(0)})
	wantCode(t, "a negative surge", err, codes.InvalidArgument)
	invalid := proto.CloneOf(full)
	invalid.NotAfter = &timestamppb.Timestamp{Seconds: 1 << 60}
	_, err = send(invalid)
	wantCode(t, "a time that cannot be stored", err, codes.InvalidArgument)
	invalid = proto.CloneOf(full)
	invalid.Target = strings.Repeat("t", 65)
	_, err = send(invalid)
	wantCode(t, "a long target", err, codes.InvalidArgument)
	got, err = send(nil)
	require.NoError(t, err)
	assert.Nil(t, got.GetRotation())
	assert.Equal(t, none.GetEtag(), got.GetEtag())
}

// Instances to replace are stored, reported, and removed by a request without them.
func TestOperatorsNameInstances(t *testing.T) {
	server := servertest.Start(t, servertest.Options{})
	operator := server.Operator("default")
	send := func(ids ...string) (*nstancev1.GroupStatus, error) {
		return operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
			Key: "workers", Config: &nstancev1.GroupConfig{Template: "worker", Size: 2}, Replace: ids,
		})
	}
	none, err := send()
	require.NoError(t, err)
	named, err := send("a", "b")
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b"}, named.GetReplace())
	assert.NotEqual(t, none.GetEtag(), named.GetEtag())
	_, err = send("a", "a")
	wantCode(t, "an instance twice", err, codes.InvalidArgument)
	again, err := send()
	require.NoError(t, err)
	assert.Empty(t, again.GetReplace())
	assert.Equal(t, none.GetEtag(), again.GetEtag())
}

// TestOperatorsSetTheDrainTimeout: instances drain for as long as the operator has set, also those of
// a group that is deleted, and the drain timeout in force is reported.
func TestOperatorsSetTheDrainTimeout(t *testing.T) {
	server := servertest.Start(t, servertest.Options{DrainTimeout: "1h"})
	operator := server.Operator("default")
	groups, instances := watch(t, operator), watchInstances(t, operator)
	got, err := upsert(t.Context(), operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
	require.NoError(t, err)
	assert.EqualValues(t, 3600, got.GetDrainTimeoutSeconds())
	got, err = upsert(t.Context(), operator, "workers", &nstancev1.GroupConfig{Size: 2, DrainTimeoutSeconds: 7200})
	require.NoError(t, err)
	assert.EqualValues(t, 7200, got.GetDrainTimeoutSeconds())
	reach(t, groups, "UPSERT workers 2/2")
	_, err = upsert(t.Context(), operator, "workers", &nstancev1.GroupConfig{Size: 2, DrainTimeoutSeconds: 86401})
	wantCode(t, "a drain timeout above the limit", err, codes.InvalidArgument)

	drains := func(what string) {
		t.Helper()
		notice := until(t, instances, "pending_deletion")
		assert.Equal(t, 2*time.Hour, notice.DeleteAt.AsTime().Sub(notice.UnhealthyAt.AsTime()), what)
	}
	_, err = upsert(t.Context(), operator, "workers", &nstancev1.GroupConfig{Size: 1})
	require.NoError(t, err)
	drains("an instance of the group")
	_, err = operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "workers"})
	require.NoError(t, err)
	drains("an instance of the deleted group")
}

// TestFailedWriteIsUnavailable because an operator would not retry after Internal.
func TestFailedWriteIsUnavailable(t *testing.T) {
	server := servertest.Start(t, servertest.Options{})
	operator := server.Operator("default")
	// A file where a folder is needed makes writes fail.
	obstacle := filepath.Dir(server.GroupsPath())
	require.NoError(t, os.WriteFile(obstacle, nil, 0o600))
	_, err := upsert(t.Context(), operator, "workers", &nstancev1.GroupConfig{Template: "worker"})
	wantCode(t, "UpsertGroup", err, codes.Unavailable)
	if listed, err := operator.ListGroups(t.Context(), &emptypb.Empty{}); err != nil || len(listed.Groups) != 0 {
		t.Errorf("the group is listed although the write failed: %v, %v", listed, err)
	}
	require.NoError(t, os.Remove(obstacle))
	_, err = upsert(t.Context(), operator, "workers", &nstancev1.GroupConfig{Template: "worker"})
	wantCode(t, "UpsertGroup again", err, codes.OK)
}

func TestWatchGroups(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"b": {"template": "worker", "size": 0}, "a": {"template": "worker", "size": 0}}, "other": {"c": {"template": "worker", "size": 0}}}`})
	operator := server.Operator("default")
	// Several watches over two connections.
	watches := []grpc.ServerStreamingClient[nstancev1.GroupEvent]{
		watch(t, operator), watch(t, operator), watch(t, server.Operator("default")),
	}
	for _, w := range watches {
		// The stream begins with an event for each group of the tenant, and no event of other
		// tenants.
		expect(t, w, "UPSERT a 0/0", "UPSERT b 0/0")
	}
	scale := func(size int32) {
		t.Helper()
		_, err := upsert(t.Context(), operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: size})
		require.NoError(t, err)
	}
	scale(2)
	for _, w := range watches {
		reach(t, w, "UPSERT workers 2/2")
	}
	scale(2)
	scale(0)
	for _, w := range watches {
		// The same size again causes no event.
		if event := next(t, w); !strings.HasPrefix(event, "UPSERT workers 0/") {
			t.Errorf("the next event is %s", event)
		} else if event != "UPSERT workers 0/0" {
			reach(t, w, "UPSERT workers 0/0")
		}
	}
	_, err := operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "workers"})
	require.NoError(t, err)
	for _, w := range watches {
		// An event with deleting set may be sent first.
		reach(t, w, "DELETE workers 0/0")
	}
	// A later watch begins with the groups that exist now.
	late := watch(t, operator)
	expect(t, late, "UPSERT a 0/0", "UPSERT b 0/0")
	scale(0)
	for _, w := range append(watches, late) {
		expect(t, w, "UPSERT workers 0/0")
	}
}

func TestTenantsDoNotSeeEachOther(t *testing.T) {
	server := servertest.Start(t, servertest.Options{})
	first, second := server.Operator("first"), server.Operator("second")
	watching := watch(t, second)
	for _, group := range []string{"workers", "more"} {
		_, err := upsert(t.Context(), first, group, &nstancev1.GroupConfig{Template: "worker", Size: 1})
		require.NoError(t, err)
	}
	// The same name may be used by another tenant, and each deletes only its own.
	_, err := upsert(t.Context(), second, "workers", &nstancev1.GroupConfig{Template: "worker"})
	require.NoError(t, err)
	expect(t, watching, "UPSERT workers 0/0")
	_, err = second.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "workers"})
	require.NoError(t, err)
	_, err = second.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "more"})
	require.NoError(t, err)
	expect(t, watching, "DELETE workers 0/0")
	for operator, want := range map[nstancev1.OperatorServiceClient][]string{first: {"more", "workers"}, second: nil} {
		listed, err := operator.ListGroups(t.Context(), &emptypb.Empty{})
		require.NoError(t, err)
		var keys []string
		for _, group := range listed.Groups {
			keys = append(keys, group.Key)
		}
		if !slices.Equal(keys, want) {
			t.Errorf("there are %q, want %q", keys, want)
		}
	}
}

func TestCancelledWatchReturns(t *testing.T) {
	operator := servertest.Start(t, servertest.Options{}).Operator("default")
	ctx, cancel := context.WithCancel(t.Context())
	w, err := operator.WatchGroups(ctx, &emptypb.Empty{})
	require.NoError(t, err)
	cancel()
	if _, err := w.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("the watch returned %v", err)
	}
}
