// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/servertest"
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
	// It can be scaled without a template, and instances that are lost are replaced.
	upsert(t, operator, "main", &nstancev1.GroupConfig{Size: 3})
	watchGroups(t, operator).untilSize("main", 3)
	_, err := operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "main"})
	require.NoError(t, err)
	untilNodes(t, s, 0)
	untilListed(t, operator)
	s.Stop()

	// The configuration that had the group is not accepted any more.
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
// rejects. They serve with the one that was in force last, and report why.
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
