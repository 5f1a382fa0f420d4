// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestLostGroups starts a server whose storage has lost the object with the groups. It
// does not serve, says why, and deletes nothing.
func TestLostGroups(t *testing.T) {
	for name, repair := range map[string]func(t *testing.T, s *servertest.Server, object []byte){
		"the object is restored": func(t *testing.T, s *servertest.Server, object []byte) {
			require.NoError(t, os.WriteFile(s.GroupsPath(), object, 0o600))
		},
		"an administrator confirms the loss": func(t *testing.T, s *servertest.Server, _ []byte) {
			require.NoError(t, groups.Reset(t.Context(), s.Storage, "us-west-2a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := servertest.Start(t, servertest.Options{Groups: `{"default": {"static": {"template": "worker", "size": 1}}}`})
			upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
			want := untilNodes(t, s, 3)
			s.Stop()
			object := s.ReadFile(storage.GroupsKey("us-west-2a"))
			require.NoError(t, os.Remove(s.GroupsPath()))
			loseCache(t, s)

			o := sameState(s)
			o.Groups = `{"default": {"static": {"template": "worker", "size": 1}}}`
			s = servertest.Prepare(t, o)
			s.Launch()
			s.UntilListening()
			var code int
			var body string
			eventually(t, "there is a reason", func() bool {
				code, body = s.Get("/health")
				return len(body) > len("not ready\n")
			})
			assert.Equal(t, http.StatusServiceUnavailable, code)
			for _, text := range []string{"groups/us-west-2a.jsonc", "default/workers", "nstance-admin shard reset-groups --shard us-west-2a"} {
				assert.Contains(t, body, text)
			}
			assert.NotContains(t, body, "static")
			operator := s.Operator("default")
			_, err := operator.ListGroups(t.Context(), &emptypb.Empty{})
			wantCode(t, "without the groups", err, codes.Unavailable)
			assert.ErrorContains(t, err, "groups/us-west-2a.jsonc")
			assert.True(t, shard.IsNotServing(err))

			repair(t, s, object)
			s.ReadConfig()
			s.UntilHealthy()
			status := statusOf(t, operator, "workers")
			assert.EqualValues(t, 2, status.Size)
			assert.False(t, status.Deleting)
			upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
			watchGroups(t, operator).untilSize("workers", 2)
			assert.Equal(t, want, nodeNames(t, s))
		})
	}
}

// TestStaticGroupsNeedNoObject starts a server whose storage has never had the object.
func TestStaticGroupsNeedNoObject(t *testing.T) {
	o := servertest.Options{Groups: `{"default": {"static": {"template": "worker", "size": 2}}}`}
	s := servertest.Start(t, o)
	want := untilNodes(t, s, 2)
	s.Stop()
	assert.NoFileExists(t, s.GroupsPath())
	loseCache(t, s)
	o.DataDir, o.Kubernetes = s.DataDir, s.Kubernetes
	s = servertest.Start(t, o)
	watchGroups(t, s.Operator("default")).untilSize("static", 2)
	assert.Equal(t, want, nodeNames(t, s))
}

// TestFirstListIsComplete has the provider list many instances that have no record. The
// first list that an operator gets has all of them.
func TestFirstListIsComplete(t *testing.T) {
	const count = 200
	client := kwoktest.NewClientset()
	for range count {
		id, err := puidv7.New("knd")
		require.NoError(t, err)
		_, err = client.CoreV1().Nodes().Create(t.Context(), strayNode(id.String(), instance.GroupKey{Tenant: "default", Group: "static"}), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	o := servertest.Options{Kubernetes: client, Groups: fmt.Sprintf(`{"default": {"static": {"template": "worker", "size": %d}}}`, count)}
	s := servertest.Prepare(t, o)
	s.Launch()
	s.UntilListening()
	operator := s.Operator("default")
	var listed *nstancev1.ListGroupsResponse
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, eventTimeout, true, func(ctx context.Context) (bool, error) {
		var err error
		listed, err = operator.ListGroups(ctx, &emptypb.Empty{})
		return err == nil, nil
	})
	require.NoError(t, err)
	require.Len(t, listed.Groups, 1)
	assert.Len(t, instanceIDs(listed.Groups[0]), count)
	assert.Len(t, listed.Groups[0].ProviderIds, count)
}

// strayNode returns the Node of an instance whose record is lost.
func strayNode(id string, group instance.GroupKey) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: id, Labels: map[string]string{
			kwok.LabelManaged: "true", kwok.LabelClusterID: servertest.ClusterID, kwok.LabelShard: "us-west-2a",
			kwok.LabelTenant: group.Tenant, kwok.LabelGroup: group.Group, kwok.LabelInstanceID: id,
		}},
		Spec: corev1.NodeSpec{ProviderID: "kwok:///us-west-2a/" + id},
	}
}
