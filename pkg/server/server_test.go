// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// unlistedNodes returns a clientset that lists no Nodes before listed is closed.
func unlistedNodes(known <-chan struct{}) *fake.Clientset {
	client := kwoktest.NewClientset()
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-known
		return false, nil, nil
	})
	return client
}

func TestHealthFollowsServing(t *testing.T) {
	known := make(chan struct{})
	s := servertest.Prepare(t, servertest.Options{Kubernetes: unlistedNodes(known)})
	s.Launch()
	s.UntilListening()
	for _, path := range []string{"/", "/health"} {
		if code, body := s.Get(path); code != http.StatusServiceUnavailable {
			t.Errorf("before the instances are known, %s answers %d %q", path, code, body)
		}
	}
	_, err := s.Operator("default").ListGroups(t.Context(), &emptypb.Empty{})
	wantCode(t, "before the instances are known", err, codes.Unavailable)
	close(known)
	s.UntilHealthy()
	for _, path := range []string{"/", "/health"} {
		if code, body := s.Get(path); code != http.StatusOK || body != "ok" {
			t.Errorf("%s answers %d %q, want 200 ok", path, code, body)
		}
	}
	if code, _ := s.Get("/else"); code != http.StatusNotFound {
		t.Errorf("/else answers %d", code)
	}
	s.Stop()
	if err := s.Wait(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

func TestMetricsCountRejectedCallsToo(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	operator := s.Operator("default")
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker"})
	_, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: "A"})
	wantCode(t, "an ill-formed key", err, codes.InvalidArgument)
	_, err = s.Dial(pki.Client{ID: "knc06bgm7733st2576nx5jht4ecjw", Tenant: "default", Role: pki.RoleAgent}).ListGroups(t.Context(), &emptypb.Empty{})
	wantCode(t, "an agent", err, codes.PermissionDenied)
	_, body := s.Get("/metrics")
	for _, want := range []string{
		`nstance_server_rpc_total{code="OK",method="UpsertGroup"} 1`,
		`nstance_server_rpc_total{code="InvalidArgument",method="UpsertGroup"} 1`,
		`nstance_server_rpc_total{code="PermissionDenied",method="ListGroups"} 1`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("/metrics has no %s", want)
		}
	}
}

// TestStoppingDoesNotWaitForClients: neither for open streams, nor for a stream that
// is not read, nor for an idle connection.
func TestStoppingDoesNotWaitForClients(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 2}}}`})
	// First, so that it is accepted when the others are served.
	silent, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr)
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	watch := watchGroups(t, s.Operator("default"))
	watch.untilSize("main", 2)
	idle := watchGroups(t, s.Operator("default"))
	idle.untilSize("main", 2)
	watchGroups(t, s.Operator("default"))
	within(t, 15*time.Second, "stopping", s.Stop)
	for _, stream := range []stream{watch, idle} {
		_, err := stream.Recv()
		wantCode(t, "a stream that was open", err, codes.Unavailable)
	}
}

func TestKillDropsStreamsAtOnce(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker"}}}`})
	watch := watchGroups(t, s.Operator("default"))
	watch.untilSize("main", 1)
	s.Kill()
	_, err := watch.Recv()
	wantCode(t, "the stream", err, codes.Unavailable)
}

func TestAnAddressInUse(t *testing.T) {
	taken := occupied(t)
	for name, o := range map[string]servertest.Options{
		"shard.bind.health_addr":   {HealthAddr: taken},
		"shard.bind.operator_addr": {Addr: taken},
	} {
		o.Groups = `{"default": {"main": {"template": "worker"}}}`
		s := servertest.Prepare(t, o)
		s.Launch()
		within(t, eventTimeout, "the failed start", func() {
			err := s.Wait()
			for _, want := range []string{"shard us-west-2a", name, taken, "address already in use"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not contain %q", err, want)
				}
			}
		})
		if made := nodes(t, s); made != 0 {
			t.Errorf("a server that does not serve has created %d Nodes", made)
		}
	}
}

// run runs the program's server on the storage of a prepared one.
func run(t *testing.T, s *servertest.Server, change func(*server.Options)) error {
	t.Helper()
	o := server.Options{Shard: "us-west-2a", ID: "1", Storage: "file", Bucket: s.Bucket(), CacheDir: t.TempDir()}
	change(&o)
	return server.Run(t.Context(), o)
}

func TestRunRejects(t *testing.T) {
	write := func(path, content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	edit := func(s *servertest.Server, old, next string) {
		t.Helper()
		data, err := os.ReadFile(s.ConfigPath())
		require.NoError(t, err)
		write(s.ConfigPath(), strings.Replace(string(data), old, next, 1))
	}
	tests := []struct {
		name   string
		change func(*servertest.Server, *server.Options)
		want   []string
	}{
		{"configuration", func(s *servertest.Server, _ *server.Options) { write(s.ConfigPath(), `{"shard": {"id": "A"}}`) },
			[]string{"config/us-west-2a.jsonc", `cluster.id: Invalid value: ""`, `shard.id: Invalid value: "A"`}},
		{"configuration of another shard", func(s *servertest.Server, _ *server.Options) { edit(s, `"id": "us-west-2a"`, `"id": "us-west-2b"`) },
			[]string{"config/us-west-2a.jsonc", `shard.id: Invalid value: "us-west-2b": must be "us-west-2a"`}},
		{"no configuration", func(_ *servertest.Server, o *server.Options) { o.Shard = "us-west-2z" }, []string{"config/us-west-2z.jsonc"}},
		{"shard id", func(_ *servertest.Server, o *server.Options) { o.Shard = "A" }, []string{"--shard", `"A"`}},
		{"server id", func(_ *servertest.Server, o *server.Options) { o.ID = "A" }, []string{"--id", `"A"`}},
		{"storage", func(_ *servertest.Server, o *server.Options) { o.Storage = "ftp" }, []string{"--storage", "ftp", "file", "s3"}},
		{"kubeconfig", func(*servertest.Server, *server.Options) {}, []string{"shard.infra.options.kubeconfig", "/kubeconfig"}},
		{"encryption key", func(s *servertest.Server, _ *server.Options) {
			write(filepath.Join(s.DataDir, "encryption.key"), "short")
		}, []string{"cluster.secrets.encryption_key", "5"}},
		{"groups", func(s *servertest.Server, _ *server.Options) {
			require.NoError(t, os.MkdirAll(filepath.Dir(s.GroupsPath()), 0o700))
			write(s.GroupsPath(), `{"default": {`)
		}, []string{"groups/us-west-2a.jsonc"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel() // Each retries for seconds.
			s := servertest.Prepare(t, servertest.Options{})
			err := run(t, s, func(o *server.Options) { tc.change(s, o) })
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not contain %q", err, want)
				}
			}
		})
	}
}

func TestACacheFolderInUse(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	err := run(t, s, func(o *server.Options) { o.CacheDir = filepath.Join(s.DataDir, "cache") })
	if err == nil || !strings.Contains(err.Error(), "in use by another server") {
		t.Errorf("got %v", err)
	}
}

func TestValidate(t *testing.T) {
	var said strings.Builder
	if err := server.Validate(t.Context(), server.Options{}, filepath.Join("..", "..", "docs", "shard.jsonc"), &said); err != nil {
		t.Errorf("the example is invalid: %v", err)
	}
	s := servertest.Prepare(t, servertest.Options{Groups: `{"default": {"main": {"template": "knz"}, "other": {"template": "worker", "size": -1}}}`})
	o := server.Options{Shard: "us-west-2a", Storage: "file", Bucket: s.Bucket()}
	for _, path := range []string{"", s.ConfigPath()} {
		err := server.Validate(t.Context(), o, path, &said)
		for _, want := range []string{`groups.default.main.template: Invalid value: "knz": unknown template, known are "worker"`, `groups.default.other.size: Invalid value: -1`} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not contain %s", err, want)
			}
		}
	}
	if got := strings.Count(said.String(), "\n"); got != 1 {
		t.Errorf("said %q", said.String())
	}
}
