// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pool_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/identity"
	"nstance.dev/operator/pkg/shard/pool"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// patience is how long a condition may take on a busy machine.
const patience = time.Minute

// startServer starts a server with group workers of two tenants, and a pool of the
// operator of each, over TCP and mutual TLS. Shard "a" is that server, and at
// shard "down" nobody listens.
func startServer(t *testing.T) (server *servertest.Server, ours, theirs *pool.Pool) {
	t.Helper()
	server = servertest.Start(t, servertest.Options{
		Groups: `{"default": {"workers": {"template": "worker", "size": 0}}, "other": {"workers": {"template": "worker", "size": 0}}}`,
	})
	return server, startPool(t, server, "default"), startPool(t, server, "other")
}

func startPool(t *testing.T, server *servertest.Server, tenant string) *pool.Pool {
	t.Helper()
	certPEM, keyPEM, err := server.Authority.IssueClient(pki.Client{ID: tenant, Tenant: tenant, Role: pki.RoleOperator}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var id identity.Identity
	if err := id.Set(certPEM, keyPEM, server.Authority.CertificatePEM()); err != nil {
		t.Fatal(err)
	}
	p := pool.New(pool.Options{Credentials: id.TransportCredentials()})
	p.Set(map[string]shard.Endpoint{"a": {Operator: server.Addr}, "down": {Operator: "127.0.0.1:1"}})
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	serving, done := make(chan struct{}, 2), make(chan struct{})
	go func() {
		p.Run(ctx, func(_ context.Context, _ string, _ nstancev1.OperatorServiceClient) { serving <- struct{}{} })
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	for range cap(serving) {
		<-serving
	}
	return p
}

// until polls a call until what it says is wanted.
func until(t *testing.T, what string, condition func(ctx context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, patience, true, condition); err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

func create(t *testing.T, p *pool.Pool, requestID string, order shard.InstanceOrder) shard.Instance {
	t.Helper()
	instance, err := p.CreateInstance(t.Context(), "a", requestID, order)
	if err != nil {
		t.Fatal(err)
	}
	return instance
}

// nodes are the names of the instances that the server's provider has.
func nodes(t *testing.T, server *servertest.Server) []string {
	t.Helper()
	list, err := server.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, node := range list.Items {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	return names
}

func TestLifeOfAnInstance(t *testing.T) {
	server, ours, _ := startServer(t)
	order := shard.InstanceOrder{Group: "workers", InstanceType: "m7i.xlarge", Vars: map[string]string{"pod": "web-0"}}
	created := create(t, ours, "uid-1", order)
	if created.ID == "" || created.State != shard.InstancePending {
		t.Errorf("created %+v", created)
	}
	if again := create(t, ours, "uid-1", order); again.ID != created.ID {
		t.Errorf("the same request gave %s, then %s", created.ID, again.ID)
	}
	other := create(t, ours, "uid-2", order)
	if other.ID == created.ID {
		t.Errorf("another request gave the same instance %s", other.ID)
	}

	var running shard.Instance
	until(t, "both run", func(ctx context.Context) (bool, error) {
		for _, id := range []string{other.ID, created.ID} {
			var err error
			if running, err = ours.Instance(ctx, "a", id); err != nil || running.State != shard.InstanceRunning {
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

	until(t, "it is deleted", func(ctx context.Context) (bool, error) { return ours.DeleteInstance(ctx, "a", created.ID) })
	if got := nodes(t, server); !slices.Equal(got, []string{other.ID}) {
		t.Errorf("when it is deleted the provider has %v, want %v", got, []string{other.ID})
	}
	ended, err := ours.Instance(t.Context(), "a", created.ID)
	if err != nil || ended.State != shard.InstanceTerminated {
		t.Errorf("when it is deleted it is %+v, %v", ended, err)
	}
	if gone, err := ours.DeleteInstance(t.Context(), "a", created.ID); !gone || err != nil {
		t.Errorf("deleted again: gone %t, %v", gone, err)
	}

	// Whoever says that a Node is drained is believed, drain or not.
	if err := ours.AcknowledgeDrained(t.Context(), "a", other.ID); err != nil {
		t.Error(err)
	}
	until(t, "the acknowledged one is gone", func(ctx context.Context) (bool, error) {
		instance, err := ours.Instance(ctx, "a", other.ID)
		return instance.State == shard.InstanceTerminated, err
	})
	if err := ours.AcknowledgeDrained(t.Context(), "a", other.ID); err != nil {
		t.Errorf("acknowledged again: %v", err)
	}
}

func TestWhatServersRefuse(t *testing.T) {
	_, ours, theirs := startServer(t)
	const unknown = "knd00000000000000000000000000"
	foreign := create(t, theirs, "uid-1", shard.InstanceOrder{Group: "workers"})
	own := create(t, ours, "uid-1", shard.InstanceOrder{Group: "workers"})
	if own.ID == foreign.ID {
		t.Errorf("two tenants share instance %s", own.ID)
	}
	order := func(shardID, requestID string, order shard.InstanceOrder) error {
		instance, err := ours.CreateInstance(t.Context(), shardID, requestID, order)
		if err != nil && instance != (shard.Instance{}) {
			t.Errorf("an error and instance %+v", instance)
		}
		return err
	}
	ask := func(shardID, id string) error {
		instance, err := ours.Instance(t.Context(), shardID, id)
		if err != nil && instance != (shard.Instance{}) {
			t.Errorf("an error and instance %+v", instance)
		}
		return err
	}
	remove := func(shardID, id string) error {
		gone, err := ours.DeleteInstance(t.Context(), shardID, id)
		if err == nil && !gone {
			t.Errorf("%s is not gone", id)
		}
		if err != nil && gone {
			t.Errorf("an error, and %s is gone", id)
		}
		return err
	}
	acknowledge := func(shardID, id string) error { return ours.AcknowledgeDrained(t.Context(), shardID, id) }
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
		{"order of a group that is unknown", order("a", "uid-2", shard.InstanceOrder{Group: "missing"}), shard.IsRejected, []string{"ordering", `"missing"`, `"a"`, "does not exist"}},
		{"order of a type that is unknown", order("a", "uid-3", shard.InstanceOrder{Group: "workers", InstanceType: "huge"}), shard.IsRejected, []string{"ordering", `"workers"`, "huge"}},
		{"another order of the same request", order("a", "uid-1", shard.InstanceOrder{Group: "workers", Vars: map[string]string{"a": "1"}}), shard.IsRejected, []string{"uid-1", own.ID}},
		{"order on a shard that is unknown", order("z", "uid-4", shard.InstanceOrder{Group: "workers"}), isUnknownShard, []string{"ordering", `"z"`}},
		{"order on a shard that is down", order("down", "uid-4", shard.InstanceOrder{Group: "workers"}), shard.IsUnreachable, []string{"ordering", `"down"`, "refused"}},

		{"status of an unknown one", ask("a", unknown), shard.IsNotFound, []string{"asking", `"a"`, unknown}},
		{"status of another tenant's", ask("a", foreign.ID), isForeign, []string{"asking", `"a"`, foreign.ID}},
		{"status on a shard that is unknown", ask("z", unknown), isUnknownShard, []string{"asking", `"z"`, unknown}},
		{"status on a shard that is down", ask("down", unknown), shard.IsUnreachable, []string{"asking", `"down"`, unknown}},

		{"deletion of an unknown one", remove("a", unknown), isNil, nil},
		{"deletion of another tenant's", remove("a", foreign.ID), isForeign, []string{"deleting", `"a"`, foreign.ID}},
		{"deletion on a shard that is unknown", remove("z", unknown), isUnknownShard, []string{"deleting", `"z"`, unknown}},
		{"deletion on a shard that is down", remove("down", unknown), shard.IsUnreachable, []string{"deleting", `"down"`, unknown}},

		{"acknowledgement of an unknown one", acknowledge("a", unknown), isNil, nil},
		{"acknowledgement of another tenant's", acknowledge("a", foreign.ID), isForeign, []string{"acknowledging", `"a"`, foreign.ID}},
		{"acknowledgement on a shard that is unknown", acknowledge("z", unknown), isUnknownShard, []string{"acknowledging", `"z"`, unknown}},
		{"acknowledgement on a shard that is down", acknowledge("down", unknown), shard.IsUnreachable, []string{"acknowledging", `"down"`, unknown}},
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
		p  *pool.Pool
		id string
	}{{ours, own.ID}, {theirs, foreign.ID}} {
		if instance, err := test.p.Instance(t.Context(), "a", test.id); err != nil || instance.State == shard.InstanceTerminating {
			t.Errorf("after what was refused it is %+v, %v", instance, err)
		}
	}
}
