// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// restartWith starts a server with the state of s, which is stopped, and any content of
// the configuration.
func restartWith(t *testing.T, s *servertest.Server, content string) *servertest.Server {
	t.Helper()
	o := sameState(s)
	o.Authority = s.Authority
	next := servertest.Prepare(t, o)
	require.NoError(t, os.WriteFile(next.ConfigPath(), []byte(content), 0o600))
	next.Launch()
	next.UntilListening()
	next.UntilHealthy()
	return next
}

// TestStaticGroupDroppedWhileStopped removes a group, which no operator has changed, from
// the configuration while no server runs. It becomes dynamic and keeps its instances.
func TestStaticGroupDroppedWhileStopped(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 2, "vars": {"a": "b"}}}}`})
	watchGroups(t, s.Operator("default")).untilSize("main", 2)
	want := nodeNames(t, s)
	s.Stop()
	assert.NoFileExists(t, s.GroupsPath())
	loseCache(t, s)

	o := sameState(s)
	o.Authority = s.Authority
	s = servertest.Start(t, o)
	operator := s.Operator("default")
	group := watchGroups(t, operator).untilSize("main", 2)
	assert.False(t, group.IsStatic)
	assert.Equal(t, "b", group.Vars["a"])
	assert.Equal(t, want, nodeNames(t, s))
	// The group can be scaled without a template, and lost instances are replaced.
	upsert(t, operator, "main", &nstancev1.GroupConfig{Size: 3})
	watchGroups(t, operator).untilSize("main", 3)
	_, err := operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "main"})
	require.NoError(t, err)
	untilNodes(t, s, 0)
	untilListed(t, operator)
	s.Stop()

	// The configuration that had the group is no longer accepted.
	s = restart(t, s)
	assert.Empty(t, list(t, s.Operator("default")))
}

// TestDroppedGroupsDoNotHideALoss removes a static group from the configuration while the
// object with the dynamic groups is missing.
func TestDroppedGroupsDoNotHideALoss(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 1}}}`})
	upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: 1})
	want := untilNodes(t, s, 2)
	s.Stop()
	require.NoError(t, os.Remove(s.GroupsPath()))
	loseCache(t, s)

	s = servertest.Prepare(t, sameState(s))
	s.Launch()
	s.UntilListening()
	var body string
	eventually(t, "there is a reason", func() bool {
		_, body = s.Get("/health")
		return len(body) > len("not ready\n")
	})
	assert.Contains(t, body, "default/workers")
	assert.NotContains(t, body, "default/main")
	assert.NoFileExists(t, s.GroupsPath())
	assert.Equal(t, want, nodeNames(t, s))
}

// TestStartWithARejectedConfiguration starts servers with configurations that the leader
// rejects. They serve with the previous configuration, and report the reason.
func TestStartWithARejectedConfiguration(t *testing.T) {
	tests := []struct {
		name string
		edit func(valid string) string
		want string
	}{
		{"broken", func(string) string { return `{` }, "config/us-west-2a.jsonc"},
		{"a template in use is missing", func(valid string) string { return strings.Replace(valid, `"extra":`, `"other":`, 1) }, `default.workers.template: Invalid value: "extra"`},
		{"and another address", func(valid string) string {
			return strings.Replace(strings.Replace(valid, `"extra":`, `"other":`, 1), `"interval": "`, `"interval": "1`, 1)
		}, `default.workers.template: Invalid value: "extra"`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := servertest.Start(t, servertest.Options{
				Templates: `{` + workerTemplate + `, "extra": {"kind": "ext", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}}`,
			})
			upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "extra", Size: 1})
			watchGroups(t, s.Operator("default")).untilSize("workers", 1)
			valid, err := os.ReadFile(s.ConfigPath())
			require.NoError(t, err)
			want := nodeNames(t, s)
			s.Stop()

			s = restartWith(t, s, tc.edit(string(valid)))
			operator := s.Operator("default")
			upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "extra", Size: 1})
			watchGroups(t, operator).untilSize("workers", 1)
			assert.Equal(t, want, nodeNames(t, s))
			code, body := s.Get("/health")
			assert.Equal(t, http.StatusOK, code)
			assert.Contains(t, body, tc.want)
			_, metrics := s.Get("/metrics")
			assert.Contains(t, metrics, "\nnstance_server_config_rejected 1\n")
			_, err = operator.RefreshConfig(t.Context(), &emptypb.Empty{})
			assert.ErrorContains(t, err, tc.want)

			s.WriteConfig(string(valid))
			_, body = s.Get("/health")
			assert.Equal(t, "ok", body)
			_, metrics = s.Get("/metrics")
			assert.Contains(t, metrics, "\nnstance_server_config_rejected 0\n")
		})
	}
}

// TestStartWithAnElectionThatTheStorageForbids: it is rejected like every other mistake, so that a server
// that starts serves with the previous configuration.
func TestStartWithAnElectionThatTheStorageForbids(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	valid, err := os.ReadFile(s.ConfigPath())
	require.NoError(t, err)
	s.Stop()

	o := sameState(s)
	o.Authority, o.MinWriteInterval = s.Authority, time.Second
	s = servertest.Prepare(t, o)
	const interval = `"shard": {"leader_election": {"interval": "900ms"},`
	require.NoError(t, os.WriteFile(s.ConfigPath(), []byte(strings.Replace(string(valid), `"shard": {`, interval, 1)), 0o600))
	s.Launch()
	s.UntilListening()
	s.UntilHealthy()
	_, body := s.Get("/health")
	const want = `shard.leader_election.interval: Invalid value: "900ms": must be at least 1s`
	assert.Contains(t, body, want)
	_, err = s.Operator("default").RefreshConfig(t.Context(), &emptypb.Empty{})
	assert.ErrorContains(t, err, want)
	s.WriteConfig(string(valid))
	_, body = s.Get("/health")
	assert.Equal(t, "ok", body)
}

// TestGroupsOfANewerVersion: a server that does not understand the groups does not serve, and
// reports their version and its own.
func TestGroupsOfANewerVersion(t *testing.T) {
	s := servertest.Prepare(t, servertest.Options{})
	require.NoError(t, os.MkdirAll(filepath.Dir(s.GroupsPath()), 0o700))
	require.NoError(t, os.WriteFile(s.GroupsPath(), []byte(`{"format_version": 2, "default": {"workers": {"template": "worker", "size": 1}}}`), 0o600))
	s.Launch()
	s.UntilListening()
	const want = "has format version 2, and this server reads versions up to 1"
	eventually(t, "the versions are named", func() bool {
		code, body := s.Get("/health")
		return code == http.StatusServiceUnavailable && strings.Contains(body, want) && strings.Contains(body, "groups/us-west-2a.jsonc")
	})
	require.ErrorContains(t, s.Wait(), want)
}

// TestTheSameFileAgain: neither another modification time nor another file of the
// same content changes anything.
func TestTheSameFileAgain(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 0}}}`})
	operator := server.Operator("default")
	status := configStatus(t, operator)
	later := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(server.ConfigPath(), later, later))
	server.ReadConfig()
	server.SetConfig(func(*servertest.Options) {})
	if now := configStatus(t, operator); !proto.Equal(now, status) {
		t.Errorf("the status is %v, was %v", now, status)
	}
	if _, err := os.Stat(server.GroupsPath()); !os.IsNotExist(err) {
		t.Errorf("groups were stored: %v", err)
	}
}

// TestAnEditorAtWork: a file that is incomplete or missing for a moment is not reported. How
// the next file replaces it does not matter.
func TestAnEditorAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Start(t, servertest.Options{InMemory: true, Groups: `{"default": {"main": {"template": "worker"}}}`})
		operator, path := s.Operator("default"), s.ConfigPath()
		events := make(chan *nstancev1.ErrorEvent, 10)
		watch := watchErrors(t, operator)
		go func() {
			for event, err := watch.Recv(); err == nil; event, err = watch.Recv() {
				events <- event
			}
		}()
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		sized := func(size int) []byte {
			return []byte(strings.Replace(string(content), `"main": {`, fmt.Sprintf(`"main": {"size": %d, `, size), 1))
		}
		do := func(err error) {
			t.Helper()
			require.NoError(t, err)
		}
		// tick makes the server read the configuration once.
		tick := func() {
			<-time.After(2 * time.Second)
			synctest.Wait()
		}
		expectSize := func(size int32) {
			t.Helper()
			tick()
			if group := find(t, list(t, operator), "main"); group.Size != size {
				t.Errorf("the size is %d, want %d", group.Size, size)
			}
		}

		do(os.WriteFile(path, sized(2)[:200], 0o600))
		tick()
		do(os.WriteFile(path, sized(2)[:300], 0o600))
		tick()
		do(os.WriteFile(path, sized(2), 0o600))
		expectSize(2)
		do(os.Rename(path, path+"~"))
		tick()
		do(os.WriteFile(path, sized(3), 0o600))
		expectSize(3)
		// Kubernetes updates a mounted volume like this: with a link to a link to a folder
		// (https://kubernetes.io/docs/concepts/configuration/configmap/#mounted-configmaps-are-updated-automatically).
		for size := range 3 {
			folder := fmt.Sprint(path, ".", size)
			do(os.Mkdir(folder, 0o700))
			do(os.WriteFile(filepath.Join(folder, "shard.jsonc"), sized(size), 0o600))
			do(os.Symlink(folder, path+".next"))
			do(os.Rename(path+".next", path+".data"))
			do(os.Symlink(filepath.Join(path+".data", "shard.jsonc"), path+".next"))
			do(os.Rename(path+".next", path))
			expectSize(int32(size))
		}
		if len(events) != 0 {
			t.Errorf("there were %d errors, the first is %v", len(events), <-events)
		}

		// A lasting problem is reported after two reads, and once.
		do(os.Remove(path))
		tick()
		if len(events) != 0 {
			t.Error("was reported at once")
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if len(events) != 1 {
			t.Errorf("was reported %d times", len(events))
		}
	})
}

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

	// The next mistake is the next event: there was no other event.
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

// TestARejectedInstanceIsCreatedOnceTheConfigurationIsCorrected, however late, and is not
// requested all the time until then.
func TestARejectedInstanceIsCreatedOnceTheConfigurationIsCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		rejected := 0
		client.PrependReactor("create", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			node := action.(clienttesting.CreateAction).GetObject().(*corev1.Node)
			if node.Labels[kwok.LabelSubnet] != "rejected" {
				return false, nil, nil
			}
			rejected++
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), node.Name, nil)
		})
		s := servertest.Start(t, servertest.Options{
			InMemory: true, Kubernetes: client,
			SubnetPools: `{"default": ["rejected"]}`,
			Groups:      `{"default": {"main": {"template": "worker", "size": 1}}}`,
		})
		operator := s.Operator("default")
		const minutes = 20
		<-time.After(minutes * time.Minute)
		synctest.Wait()
		if rejected == 0 || rejected > 2*minutes+1 {
			t.Errorf("in %d minutes %d requests were rejected", minutes, rejected)
		}

		text, err := os.ReadFile(s.ConfigPath())
		require.NoError(t, err)
		corrected := strings.Replace(string(text), `"rejected"`, `"subnet-a"`, 1)
		require.NoError(t, os.WriteFile(s.ConfigPath(), []byte(corrected), 0o600))
		<-time.After(time.Minute)
		synctest.Wait()
		if main := find(t, list(t, operator), "main"); main.ActualSize != 1 {
			t.Errorf("a minute after the configuration was corrected the group is %v", main)
		}
	})
}
