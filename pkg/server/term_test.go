// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const workerTemplate = `"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}`

// anotherTerm makes a server start another term: another writer changes the groups of the
// shard, so that the server's groups are outdated.
func anotherTerm(t *testing.T, s *servertest.Server, operator nstancev1.OperatorServiceClient) {
	t.Helper()
	upsert(t, operator, "other", &nstancev1.GroupConfig{Template: "worker", Vars: map[string]string{"a": "b"}})
	data, err := os.ReadFile(s.GroupsPath())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.GroupsPath(), append(data, '\n'), 0o600))
	watch := watchErrors(t, operator)
	_, err = operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: "other", Config: &nstancev1.GroupConfig{Vars: map[string]string{"a": "c"}}})
	wantCode(t, "a change of a group that another writer has changed", err, codes.Unavailable)
	for err = nil; err == nil; {
		_, err = watch.Recv()
	}
	wantCode(t, "a stream of the term", err, codes.Unavailable)
	s.UntilHealthy()
}

// TestTheNextTermRejectsAnInvalidConfiguration that the last term has rejected.
func TestTheNextTermRejectsAnInvalidConfiguration(t *testing.T) {
	s := servertest.Start(t, servertest.Options{
		Templates: `{` + workerTemplate + `, "extra": {"kind": "ext", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}}`,
	})
	operator := s.Operator("default")
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "extra", Size: 1})
	before := watchGroups(t, operator).untilSize("workers", 1)
	s.SetConfig(func(o *servertest.Options) { o.Templates = `{` + workerTemplate + `}` })
	anotherTerm(t, s, operator)
	after := watchGroups(t, operator).untilSize("workers", 1)
	if after.Template != "extra" || after.ProviderIds[0] != before.ProviderIds[0] {
		t.Errorf("the group was %v, is %v", before, after)
	}
}

// TestTheNextTermKeepsTheConfigurationInForce, not the configuration that the server started
// with.
func TestTheNextTermKeepsTheConfigurationInForce(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 3}}}`})
	operator := s.Operator("default")
	watchGroups(t, operator).untilSize("main", 3)
	s.SetConfig(func(o *servertest.Options) { o.Groups = `{"default": {"main": {"template": "worker", "size": 1}}}` })
	watchGroups(t, operator).untilSize("main", 1)
	s.WriteConfig(`{`)
	anotherTerm(t, s, operator)
	if group := watchGroups(t, operator).until(func(e *nstancev1.GroupEvent) bool { return e.Group.Key == "main" }).Group; group.Size != 1 || group.ActualSize != 1 {
		t.Errorf("the group is %v", group)
	}
}

// TestRecordOfAnotherWriter begins a new term, which uses the stored record.
func TestRecordOfAnotherWriter(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	operator := s.Operator("default")
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 1})
	id := instanceIDs(watchGroups(t, operator).untilSize("workers", 1))[0]
	eventually(t, "the record has the provider's id", func() bool { return strings.Contains(readRecord(t, s, id), `"provider_id"`) })
	path := recordPath(t, s, id)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	changed := strings.Replace(string(data), `"infra_config_hash":"`, `"vars":{"a":"b"},"infra_config_hash":"`, 1)
	require.NotEqual(t, string(data), changed)
	require.NoError(t, os.WriteFile(path, []byte(changed), 0o600))
	watch := watchErrors(t, operator)
	_, err = operator.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: id})
	wantCode(t, "a change of a record that another writer has changed", err, codes.Unavailable)
	for err = nil; err == nil; {
		_, err = watch.Recv()
	}
	wantCode(t, "a stream of the term", err, codes.Unavailable)
	s.UntilHealthy()
	_, err = operator.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: id})
	require.NoError(t, err)
}

// recordPath is the file of the record of an instance.
func recordPath(t *testing.T, s *servertest.Server, id string) string {
	t.Helper()
	infos, err := s.Storage.List(t.Context(), storage.InstancePrefix("us-west-2a"))
	require.NoError(t, err)
	for _, info := range infos {
		path := filepath.Join(s.Bucket(), filepath.FromSlash(info.Key))
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), id) {
			return path
		}
	}
	t.Fatalf("instance %s has no record", id)
	return ""
}

func readRecord(t *testing.T, s *servertest.Server, id string) string {
	t.Helper()
	data, err := os.ReadFile(recordPath(t, s, id))
	require.NoError(t, err)
	return string(data)
}
