// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func configStatus(t *testing.T, operator nstancev1.OperatorServiceClient) *nstancev1.ConfigStatusResponse {
	t.Helper()
	status, err := operator.GetConfigStatus(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	return status
}

func refreshConfig(t *testing.T, operator nstancev1.OperatorServiceClient) *nstancev1.RefreshConfigResponse {
	t.Helper()
	reply, err := operator.RefreshConfig(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	return reply
}

func TestRefreshConfig(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 0}}}`})
	operator := server.Operator("default")
	write := func(content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(server.ConfigPath(), []byte(content), 0o600))
	}
	data, err := os.ReadFile(server.ConfigPath())
	require.NoError(t, err)
	first := string(data)
	status := configStatus(t, operator)
	if status.Etag == "" || status.Size != int64(len(first)) || time.Since(status.LastModified.AsTime()) > time.Hour {
		t.Errorf("the status is %v", status)
	}
	if got, want := refreshConfig(t, operator), (&nstancev1.RefreshConfigResponse{PrevEtag: status.Etag, Etag: status.Etag}); !proto.Equal(got, want) {
		t.Errorf("nothing new gives %v, want %v", got, want)
	}

	second := strings.Replace(first, `"size": 0`, `"size": 2`, 1)
	write(second)
	got := refreshConfig(t, operator)
	after := configStatus(t, operator)
	if want := (&nstancev1.RefreshConfigResponse{Updated: true, PrevEtag: status.Etag, Etag: after.Etag}); !proto.Equal(got, want) || after.Etag == status.Etag {
		t.Errorf("another file gives %v, want %v", got, want)
	}
	// The configuration is in force when the call returns.
	if group := find(t, list(t, operator), "main"); group.Size != 2 {
		t.Errorf("the group is %v", group)
	}

	for _, wrong := range []struct{ content, want string }{
		{strings.Replace(second, `"size": 2`, `"size": -2`, 1), `groups.default.main.size: Invalid value: -2: must not be negative`},
		{strings.Replace(second, `"id": "test"`, `"id": "other"`, 1), `cluster.id: Invalid value: "other": needs a restart`},
		{second[:len(second)/2], `hujson`},
	} {
		write(wrong.content)
		_, err := operator.RefreshConfig(t.Context(), &emptypb.Empty{})
		wantCode(t, wrong.want, err, codes.FailedPrecondition)
		if err != nil && (!strings.Contains(err.Error(), wrong.want) || !strings.Contains(err.Error(), storage.ConfigKey("us-west-2a"))) {
			t.Errorf("got %v, want %s", err, wrong.want)
		}
	}
	require.NoError(t, os.Remove(server.ConfigPath()))
	_, err = operator.RefreshConfig(t.Context(), &emptypb.Empty{})
	wantCode(t, "no file", err, codes.Unavailable)
	if now := configStatus(t, operator); !proto.Equal(now, after) {
		t.Errorf("the status is %v, want that of the last file that was right: %v", now, after)
	}
	write(first)
	if got := refreshConfig(t, operator); !got.Updated || got.PrevEtag != after.Etag || got.Etag != status.Etag {
		t.Errorf("back to the first file: %v", got)
	}
}

// TestAnInvalidFile is reported once, with all its mistakes, and changes nothing. It
// is put in force when it becomes valid because groups were deleted.
func TestAnInvalidFile(t *testing.T) {
	server := servertest.Start(t, servertest.Options{
		Templates: `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}, "extra": {"kind": "ext", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}}`,
		Groups:    `{"default": {"main": {"template": "worker", "size": 1}}}`,
	})
	operator, otherTenant := server.Operator("default"), server.Operator("other")
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "extra"})
	upsert(t, otherTenant, "workers", &nstancev1.GroupConfig{Template: "extra"})
	watchGroups(t, operator).untilSize("main", 1)
	before, status := list(t, operator), configStatus(t, operator)
	watches := []errorStream{watchErrors(t, operator), watchErrors(t, otherTenant)}

	// Two templates that are in use are removed.
	server.SetConfig(func(o *servertest.Options) {
		o.Templates, o.Groups = `{"other": {"kind": "oth", "arch": "amd64"}}`, `{}`
	})
	for range 5 {
		server.ReadConfig()
	}
	_, err := operator.RefreshConfig(t.Context(), &emptypb.Empty{})
	wantCode(t, "the same file", err, codes.FailedPrecondition)
	require.ErrorContains(t, err, `default.main.template: Invalid value: "worker": unknown template, known are "other"`)
	require.NotContains(t, err.Error(), "other.workers")
	for n, watch := range watches {
		own, other := `default.workers.template: Invalid value: "extra"`, "other.workers"
		if n == 1 {
			own, other = `other.workers.template: Invalid value: "extra"`, "default."
		}
		event := watch.next()
		if strings.Contains(event.Error, other) {
			t.Errorf("the event has %s of another tenant: %s", other, event.Error)
		}
		if event.Group != "" || event.InstanceId != "" || event.Timestamp == nil {
			t.Errorf("the event is %v", event)
		}
		for _, want := range []string{
			storage.ConfigKey("us-west-2a"),
			own, "mistakes of other tenants",
		} {
			if !strings.Contains(event.Error, want) {
				t.Errorf("the event does not say %s: %s", want, event.Error)
			}
		}
	}
	if after := list(t, operator); !slices.EqualFunc(before, after, func(a, b *nstancev1.GroupStatus) bool { return proto.Equal(a, b) }) {
		t.Errorf("from %v to %v", before, after)
	}
	if now := configStatus(t, operator); !proto.Equal(now, status) {
		t.Errorf("the status is %v, was %v", now, status)
	}

	// The next mistake is the next event: there was no other.
	server.WriteConfig(`{`)
	for _, watch := range watches {
		if event := watch.next(); !strings.Contains(event.Error, "hujson") {
			t.Errorf("the event is %v", event)
		}
	}

	// When the groups that use missing templates are deleted, the file becomes valid.
	server.SetConfig(func(o *servertest.Options) {
		o.Templates = `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}}`
	})
	for _, watch := range watches {
		if event := watch.next(); !strings.Contains(event.Error, `"extra"`) || strings.Contains(event.Error, `"worker":`) {
			t.Errorf("the event is %v", event)
		}
	}
	for _, operator := range []nstancev1.OperatorServiceClient{operator, otherTenant} {
		_, err = operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "workers"})
		require.NoError(t, err)
	}
	server.ReadConfig()
	if group := find(t, list(t, operator), "main"); group.IsStatic || len(group.ProviderIds) != 1 {
		t.Errorf("the group is %v, want it to be dynamic", group)
	}
}
