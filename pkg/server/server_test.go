// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// configure writes the files of a shard with two static groups, and a client
// certificate of an operator, and returns the path of the configuration.
func configure(t *testing.T, healthAddr, operatorAddr string) string {
	t.Helper()
	dir := t.TempDir()
	authority, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.IssueServer([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	operatorCert, operatorKey, err := authority.IssueClient(pki.Client{ID: "test", Tenant: "default", Role: pki.RoleOperator}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"operator.crt": string(operatorCert), "operator.key": string(operatorKey),
		"ca.crt": string(authority.CertificatePEM()), "tls.crt": string(cert), "tls.key": string(key),
		"shard.jsonc": `{
			"cluster": {"id": "test"},
			"shard": {
				"id": "us-west-2a",
				"infra": {"provider": "kwok", "region": "us-west-2", "zone": "us-west-2a", "options": {"kubeconfig": "kubeconfig"}},
				"bind": {"health_addr": "` + healthAddr + `", "operator_addr": "` + operatorAddr + `"},
				"tls": {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"},
				"subnet_pools": {"default": ["subnet-a"]},
			},
			"templates": {"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}},
			"groups": {"default": {"main": {"template": "worker"}, "other": {"template": "worker"}}},
		}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "shard.jsonc")
}

// newServer returns the server of a configuration file over a clientset in
// memory that knows no Nodes before known is closed.
func newServer(t *testing.T, path string, known <-chan struct{}) (*server.Server, *fake.Clientset) {
	t.Helper()
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	client := servertest.NewClientset()
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-known
		return false, nil, nil
	})
	provider, err := kwok.New(c, client)
	if err != nil {
		t.Fatal(err)
	}
	return &server.Server{
		Config: c, DataDir: t.TempDir(), Provider: provider,
		Listen: func(ctx context.Context, address string) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", address)
		},
	}, client
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// get returns status code and body.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestHealthFollowsServing(t *testing.T) {
	known := make(chan struct{})
	s, _ := newServer(t, configure(t, "127.0.0.1:0", "127.0.0.1:1"), known)
	listening := make(chan net.Listener, 2)
	listen := s.Listen
	s.Listen = func(ctx context.Context, _ string) (net.Listener, error) {
		listener, err := listen(ctx, "127.0.0.1:0")
		if err == nil {
			listening <- listener
		}
		return listener, err
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	health := "http://" + (<-listening).Addr().String()
	for _, path := range []string{"/", "/health"} {
		if code, body := get(t, health+path); code != http.StatusServiceUnavailable {
			t.Errorf("before the instances are known, %s answers %d %q", path, code, body)
		}
	}
	close(known)
	<-listening
	// It listens a moment before it says so.
	within(t, patience, "being ready", func() {
		for {
			if code, _ := get(t, health+"/health"); code == http.StatusOK {
				return
			}
		}
	})
	for _, path := range []string{"/", "/health"} {
		if code, body := get(t, health+path); code != http.StatusOK || body != "ok" {
			t.Errorf("%s answers %d %q, want 200 ok", path, code, body)
		}
	}
	if code, _ := get(t, health+"/else"); code != http.StatusNotFound {
		t.Errorf("/else answers %d", code)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("stopped with %v", err)
	}
}

func TestMetricsCountCallsThatWereRefusedToo(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	operator := s.Operator("default")
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker"})
	_, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: "A"})
	wantCode(t, "an ill-formed key", err, codes.InvalidArgument)
	_, err = s.Dial(pki.Client{ID: "knc06bgm7733st2576nx5jht4ecjw", Tenant: "default", Role: pki.RoleAgent}).ListGroups(t.Context(), &emptypb.Empty{})
	wantCode(t, "an agent", err, codes.PermissionDenied)
	_, body := get(t, "http://"+s.HealthAddr+"/metrics")
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

// TestStoppingDoesNotWaitForClients: neither for open streams, nor for one that
// is not read, nor for a connection that says nothing.
func TestStoppingDoesNotWaitForClients(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 2}}}`})
	// First, so that it is accepted when the others are served.
	silent, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
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
	for name, path := range map[string]string{
		"shard.bind.health_addr":   configure(t, taken, "127.0.0.1:0"),
		"shard.bind.operator_addr": configure(t, "127.0.0.1:0", taken),
	} {
		s, _ := newServer(t, path, closed())
		within(t, patience, "refusing to start", func() {
			err := s.Run(t.Context())
			for _, want := range []string{"shard us-west-2a", name, taken, "address already in use"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
		})
		if instances := s.Provider.List(instance.GroupKey{Tenant: "default", Group: "main"}); len(instances) != 0 {
			t.Errorf("a server that does not serve has made %v", instances)
		}
	}
}

func TestRunRefusesFiles(t *testing.T) {
	tests := []struct {
		name, file, content string
		want                []string
	}{
		{"configuration", "shard.jsonc", `{"shard": {"id": "A"}}`, []string{"shard.jsonc", `cluster.id: Invalid value: ""`, `shard.id: Invalid value: "A"`}},
		{"kubeconfig", "kubeconfig", `clusters: 7`, []string{"shard.infra.options.kubeconfig", "clusters"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			path := configure(t, "127.0.0.1:0", "127.0.0.1:1")
			if err := os.WriteFile(filepath.Join(filepath.Dir(path), tc.file), []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			err := server.Run(t.Context(), server.Options{ConfigPath: path, DataDir: t.TempDir()})
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
		})
	}
	for name, file := range map[string]string{"shard.tls": "ca.crt", "using the TLS files": "tls.key"} {
		t.Run(file, func(t *testing.T) {
			s, _ := newServer(t, configure(t, "127.0.0.1:0", "127.0.0.1:1"), closed())
			if err := os.WriteFile(filepath.Join(filepath.Dir(s.Config.Shard.TLS.CA), file), []byte("no PEM"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v, want an error about %s", err, name)
			}
		})
	}
	t.Run("groups file", func(t *testing.T) {
		s, _ := newServer(t, configure(t, "127.0.0.1:0", "127.0.0.1:1"), closed())
		path := filepath.Join(s.DataDir, "groups", "us-west-2a.jsonc")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(`{"default": {`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, want an error about %s", err, path)
		}
	})
}
