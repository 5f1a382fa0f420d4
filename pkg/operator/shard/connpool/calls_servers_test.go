// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/identity"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// timeout is how long a condition may take on a busy machine.
const timeout = time.Minute

// startServer starts a server with group workers of two tenants, and a pool for the operator
// of each tenant, over TCP and mutual TLS. Shard "a" uses that server. Shard "down" has no
// server.
func startServer(t *testing.T) (server *servertest.Server, ours, theirs *connpool.Pool) {
	t.Helper()
	server = servertest.Start(t, servertest.Options{
		Shard:  "a",
		Groups: `{"default": {"workers": {"template": "worker", "size": 0}}, "other": {"workers": {"template": "worker", "size": 0}}}`,
	})
	return server, startPool(t, server, "default"), startPool(t, server, "other")
}

func startPool(t *testing.T, server *servertest.Server, tenant string) *connpool.Pool {
	t.Helper()
	certPEM, keyPEM := pkitest.Operator(t, server.Authority, tenant, tenant)
	var id identity.Identity
	require.NoError(t, id.Set(certPEM, keyPEM, server.Authority.CertificatePEM()))
	p := connpool.New(connpool.Options{Credentials: id.Credentials(servertest.ClusterID)})
	p.Set(map[string]shard.Endpoint{"a": {Operator: server.Addr}, "down": {Operator: "127.0.0.1:1"}})
	serving := make(chan struct{}, 2)
	runtest.Start(t, func(ctx context.Context) {
		p.Run(ctx, func(context.Context, string, nstancev1.OperatorServiceClient) { serving <- struct{}{} })
	})
	for range cap(serving) {
		<-serving
	}
	return p
}

// eventually polls condition until it is true.
func eventually(t *testing.T, what string, condition func(ctx context.Context) (bool, error)) {
	t.Helper()
	require.NoError(t, wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, timeout, true, condition), "waiting until %s", what)
}

func create(t *testing.T, p *connpool.Pool, requestID string, spec shard.InstanceSpec) shard.Instance {
	t.Helper()
	instance, err := p.CreateInstance(t.Context(), "a", requestID, spec)
	require.NoError(t, err)
	return instance
}

// nodes returns the names of the instances of the server's provider.
func nodes(t *testing.T, server *servertest.Server) []string {
	t.Helper()
	list, err := server.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, node := range list.Items {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	return names
}

func TestInstanceLifecycle(t *testing.T) {
	server, ours, _ := startServer(t)
	spec := shard.InstanceSpec{Group: "workers", InstanceType: "m7i.xlarge", Vars: map[string]string{"pod": "web-0"}}
	created := create(t, ours, "uid-1", spec)
	if created.ID == "" || created.State != shard.InstancePending {
		t.Errorf("created %+v", created)
	}
	if again := create(t, ours, "uid-1", spec); again.ID != created.ID {
		t.Errorf("the same request gave %s, then %s", created.ID, again.ID)
	}
	other := create(t, ours, "uid-2", spec)
	if other.ID == created.ID {
		t.Errorf("another request gave the same instance %s", other.ID)
	}

	var running shard.Instance
	eventually(t, "both run", func(ctx context.Context) (bool, error) {
		for _, id := range []string{other.ID, created.ID} {
			var err error
			if running, err = ours.GetInstance(ctx, "a", id); err != nil || running.State != shard.InstanceRunning {
				return false, err
			}
		}
		return true, nil
	})
	if running.ID != created.ID || running.ProviderID == "" || !running.DeleteAt.IsZero() {
		t.Errorf("it runs as %+v", running)
	}
	want := []string{created.ID, other.ID}
	slices.Sort(want)
	if got := nodes(t, server); !slices.Equal(got, want) {
		t.Errorf("the provider has %v, want %v", got, want)
	}

	eventually(t, "it is deleted", func(ctx context.Context) (bool, error) { return ours.DeleteInstance(ctx, "a", created.ID) })
	if got := nodes(t, server); !slices.Equal(got, []string{other.ID}) {
		t.Errorf("when it is deleted the provider has %v, want %v", got, []string{other.ID})
	}
	terminated, err := ours.GetInstance(t.Context(), "a", created.ID)
	if err != nil || terminated.State != shard.InstanceTerminated {
		t.Errorf("when it is deleted it is %+v, %v", terminated, err)
	}
	if deleted, err := ours.DeleteInstance(t.Context(), "a", created.ID); !deleted || err != nil {
		t.Errorf("deleted again: deleted %t, %v", deleted, err)
	}

	// The server accepts an acknowledgement without a drain.
	if err := ours.AcknowledgeDrained(t.Context(), "a", other.ID); err != nil {
		t.Error(err)
	}
	eventually(t, "the acknowledged one is terminated", func(ctx context.Context) (bool, error) {
		instance, err := ours.GetInstance(ctx, "a", other.ID)
		return instance.State == shard.InstanceTerminated, err
	})
	if err := ours.AcknowledgeDrained(t.Context(), "a", other.ID); err != nil {
		t.Errorf("acknowledged again: %v", err)
	}
}

func TestInstanceErrors(t *testing.T) {
	_, ours, theirs := startServer(t)
	const unknown = "knd00000000000000000000000000"
	foreign := create(t, theirs, "uid-1", shard.InstanceSpec{Group: "workers"})
	own := create(t, ours, "uid-1", shard.InstanceSpec{Group: "workers"})
	if own.ID == foreign.ID {
		t.Errorf("two tenants share instance %s", own.ID)
	}
	createError := func(shardID, requestID string, spec shard.InstanceSpec) error {
		instance, err := ours.CreateInstance(t.Context(), shardID, requestID, spec)
		if err != nil && instance != (shard.Instance{}) {
			t.Errorf("an error and instance %+v", instance)
		}
		return err
	}
	getError := func(shardID, id string) error {
		instance, err := ours.GetInstance(t.Context(), shardID, id)
		if err != nil && instance != (shard.Instance{}) {
			t.Errorf("an error and instance %+v", instance)
		}
		return err
	}
	deleteError := func(shardID, id string) error {
		deleted, err := ours.DeleteInstance(t.Context(), shardID, id)
		if err == nil && !deleted {
			t.Errorf("%s is not deleted", id)
		}
		if err != nil && deleted {
			t.Errorf("an error, and %s is deleted", id)
		}
		return err
	}
	acknowledgeError := func(shardID, id string) error { return ours.AcknowledgeDrained(t.Context(), shardID, id) }
	isUnknownShard := func(err error) bool { return errors.Is(err, shard.ErrUnknownShard) }
	isForeign := func(err error) bool { return status.Code(err) == codes.PermissionDenied }
	isNil := func(err error) bool { return err == nil }

	for _, test := range []struct {
		name string
		err  error
		is   func(error) bool
		// text are parts of the error.
		text []string
	}{
		{"creation in an unknown group", createError("a", "uid-2", shard.InstanceSpec{Group: "missing"}), shard.IsRejected, []string{"create an instance", `"missing"`, `"a"`, "does not exist"}},
		{"creation with an unknown instance type", createError("a", "uid-3", shard.InstanceSpec{Group: "workers", InstanceType: "huge"}), shard.IsRejected, []string{"create an instance", `"workers"`, "huge"}},
		{"another spec with the same request id", createError("a", "uid-1", shard.InstanceSpec{Group: "workers", Vars: map[string]string{"a": "1"}}), shard.IsRejected, []string{"uid-1", own.ID}},
		{"creation on an unknown shard", createError("z", "uid-4", shard.InstanceSpec{Group: "workers"}), isUnknownShard, []string{"create an instance", `"z"`}},
		{"creation on a shard that is down", createError("down", "uid-4", shard.InstanceSpec{Group: "workers"}), shard.IsUnreachable, []string{"create an instance", `"down"`, "refused"}},

		{"state of an unknown instance", getError("a", unknown), shard.IsNotFound, []string{"get instance", `"a"`, unknown}},
		{"state of another tenant's instance", getError("a", foreign.ID), isForeign, []string{"get instance", `"a"`, foreign.ID}},
		{"state on an unknown shard", getError("z", unknown), isUnknownShard, []string{"get instance", `"z"`, unknown}},
		{"state on a shard that is down", getError("down", unknown), shard.IsUnreachable, []string{"get instance", `"down"`, unknown}},

		{"deletion of an unknown instance", deleteError("a", unknown), isNil, nil},
		{"deletion of another tenant's instance", deleteError("a", foreign.ID), isForeign, []string{"delete instance", `"a"`, foreign.ID}},
		{"deletion on an unknown shard", deleteError("z", unknown), isUnknownShard, []string{"delete instance", `"z"`, unknown}},
		{"deletion on a shard that is down", deleteError("down", unknown), shard.IsUnreachable, []string{"delete instance", `"down"`, unknown}},

		{"acknowledgement of an unknown instance", acknowledgeError("a", unknown), isNil, nil},
		{"acknowledgement of another tenant's instance", acknowledgeError("a", foreign.ID), isForeign, []string{"acknowledge the drain", `"a"`, foreign.ID}},
		{"acknowledgement on an unknown shard", acknowledgeError("z", unknown), isUnknownShard, []string{"acknowledge the drain", `"z"`, unknown}},
		{"acknowledgement on a shard that is down", acknowledgeError("down", unknown), shard.IsUnreachable, []string{"acknowledge the drain", `"down"`, unknown}},
	} {
		if !test.is(test.err) {
			t.Errorf("%s: got %v", test.name, test.err)
			continue
		}
		for _, part := range test.text {
			if !strings.Contains(test.err.Error(), part) {
				t.Errorf("%s: %q is not in the error: %v", test.name, part, test.err)
			}
		}
	}
	for _, test := range []struct {
		p  *connpool.Pool
		id string
	}{{ours, own.ID}, {theirs, foreign.ID}} {
		if instance, err := test.p.GetInstance(t.Context(), "a", test.id); err != nil || instance.State == shard.InstanceTerminating {
			t.Errorf("after the rejected requests it is %+v, %v", instance, err)
		}
	}
}

// Requests of a former leader that arrive after requests of the next leader neither shrink a
// group nor create it again.
func TestLateRequestsOfAFormerLeader(t *testing.T) {
	server, former, _ := startServer(t)
	next := startPool(t, server, "default")
	config := func(generation int64, size int32) shard.GroupConfig {
		return shard.GroupConfig{
			GroupSettings: shard.GroupSettings{Template: "worker"}, Size: size,
			Revision: &shard.Revision{UID: "u", Generation: generation},
		}
	}
	wantStale := func(err error) {
		t.Helper()
		if !shard.IsStale(err) || shard.IsRejected(err) || shard.IsUnreachable(err) {
			t.Errorf("got error %v, want one that says that the request is stale", err)
		}
	}
	_, err := former.UpsertGroup(t.Context(), "a", "pool", config(1, 1))
	require.NoError(t, err)
	grown, err := next.UpsertGroup(t.Context(), "a", "pool", config(2, 3))
	require.NoError(t, err)
	assert.Equal(t, &shard.Revision{UID: "u", Generation: 2}, grown.Revision)

	_, err = former.UpsertGroup(t.Context(), "a", "pool", config(1, 1))
	wantStale(err)
	assert.Equal(t, `group default/pool: the request has generation 1 of object u, but the group has the newer generation 2`, shard.Message(err))
	wantStale(former.DeleteGroup(t.Context(), "a", "pool", &shard.Revision{UID: "u", Generation: 1}))
	same, err := next.UpsertGroup(t.Context(), "a", "pool", config(2, 3))
	require.NoError(t, err)
	assert.Equal(t, grown.ETag, same.ETag, "the etag after refused requests")

	require.NoError(t, next.DeleteGroup(t.Context(), "a", "pool", &shard.Revision{UID: "u", Generation: 3}))
	_, err = former.UpsertGroup(t.Context(), "a", "pool", config(2, 3))
	wantStale(err)

	// The pool is created again, and the deletion of the first pool arrives again.
	created := config(1, 2)
	created.Revision.UID = "v"
	_, err = next.UpsertGroup(t.Context(), "a", "pool", created)
	require.NoError(t, err)
	require.NoError(t, former.DeleteGroup(t.Context(), "a", "pool", &shard.Revision{UID: "u", Generation: 3}))
	reply, err := next.UpsertGroup(t.Context(), "a", "pool", created)
	require.NoError(t, err)
	assert.Equal(t, int32(2), reply.Size)
	assert.Equal(t, created.Revision, reply.Revision)
}

// An administrator replaces a newer revision by an older revision.
func TestReplaces(t *testing.T) {
	_, operator, _ := startServer(t)
	config := shard.GroupConfig{Size: 3, Revision: &shard.Revision{UID: "u", Generation: 9}}
	_, err := operator.UpsertGroup(t.Context(), "a", "workers", config)
	require.NoError(t, err)
	config = shard.GroupConfig{Size: 2, Revision: &shard.Revision{UID: "u", Generation: 5}, Replaces: &shard.Revision{UID: "u", Generation: 8}}
	_, err = operator.UpsertGroup(t.Context(), "a", "workers", config)
	assert.True(t, shard.IsStale(err), "the revision that was replaced before: %v", err)
	config.Replaces.Generation = 9
	reply, err := operator.UpsertGroup(t.Context(), "a", "workers", config)
	require.NoError(t, err)
	assert.Equal(t, int32(2), reply.Size)
	assert.Equal(t, config.Revision, reply.Revision)
}

// Each list of deletion candidates replaces the previous list, even if it is empty.
func TestUpsertGroupReplacesRemoveFirst(t *testing.T) {
	server, ours, _ := startServer(t)
	for n, removeFirst := range [][]string{nil, {"knd2", "knd1"}, {"knd3"}, nil} {
		reply, err := ours.UpsertGroup(t.Context(), "a", "workers", shard.GroupConfig{Size: 0, RemoveFirst: removeFirst})
		require.NoError(t, err)
		if !reply.ListsInstances || !slices.Equal(reply.RemoveFirst, removeFirst) {
			t.Errorf("after %q the server replies %+v", removeFirst, reply)
		}
		if got := server.Upserts("workers")[n].GetRemoveFirst(); !slices.Equal(got, removeFirst) {
			t.Errorf("the server received %q, want %q", got, removeFirst)
		}
	}
}
