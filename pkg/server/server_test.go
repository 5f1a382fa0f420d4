// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/base/httpserver/httpservertest"
	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/secrets/awssecrets"
	"nstance.dev/operator/pkg/server/secrets/secretstest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/metricstest"
	"nstance.dev/operator/pkg/testing/tier"
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
	// This connection is first, so that it is accepted when the others are served.
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

// run runs the program's server on the storage of a prepared server.
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

// A configuration of an earlier version goes on to work, and its validation prints what to change.
// The server logs the same.
func TestUserdataWithoutProtectionIsReported(t *testing.T) {
	s := servertest.Prepare(t, servertest.Options{})
	data, err := os.ReadFile(s.ConfigPath())
	require.NoError(t, err)
	for userdata, want := range map[string]string{
		`{"url": "http://10.0.0.1/userdata"}`:                                              "warning: defaults.userdata.url begins with http:// and has no sha256 beside it",
		`{"url": "HTTP://10.0.0.1/userdata"}`:                                              "warning: defaults.userdata.url",
		`{"url": "https://10.0.0.1/userdata"}`:                                             "",
		`{"url": "http://10.0.0.1/userdata", "sha256": "` + strings.Repeat("0", 64) + `"}`: "",
	} {
		path := filepath.Join(t.TempDir(), "shard.jsonc")
		changed := strings.Replace(string(data), `"defaults": {}`, `"defaults": {"userdata": `+userdata+`}`, 1)
		require.NoError(t, os.WriteFile(path, []byte(changed), 0o600))
		var said strings.Builder
		require.NoError(t, server.Validate(t.Context(), server.Options{}, path, &said), changed)
		assert.Contains(t, said.String(), want)
		assert.Equal(t, want != "", strings.Contains(said.String(), "warning"), said.String())
	}
}

// TestRegistrationConnections: one address may have 32 connections, and an idle connection is
// closed.
func TestRegistrationConnections(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		call := func(client nstancev1.RegistrationServiceClient) error {
			_, err := client.RegisterOperator(t.Context(), &nstancev1.RegisterClientRequest{})
			return err
		}
		for range 32 {
			wantCode(t, "a call without a nonce", call(s.Registration()), codes.Unauthenticated)
		}
		further := s.Registration()
		wantCode(t, "a call on another connection", call(further), codes.Unavailable)
		<-time.After(time.Minute)
		wantCode(t, "a call after the others were idle", call(further), codes.Unauthenticated)
	})
}

func TestRegistrationRequestIsLimited(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		large := strings.Repeat("x", 64<<10)
		_, err := s.Registration().RegisterOperator(t.Context(), &nstancev1.RegisterClientRequest{RegistrationNonceJwt: large})
		wantCode(t, "a large nonce", err, codes.ResourceExhausted)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "large", large)
		_, err = s.Operator("default").ListGroups(ctx, &emptypb.Empty{})
		if err == nil {
			t.Error("large metadata was accepted")
		}
	})
}

// TestCallsOfOneConnection: a further call waits until another call has returned.
func TestCallsOfOneConnection(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		operator := s.Operator("default")
		list := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := operator.ListGroups(ctx, &emptypb.Empty{})
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 999 {
			_, err := operator.WatchErrors(t.Context(), &emptypb.Empty{})
			require.NoError(t, err)
		}
		require.NoError(t, list())
		_, err := operator.WatchErrors(ctx, &emptypb.Empty{})
		require.NoError(t, err)
		wantCode(t, "a call while a thousand are in progress", list(), codes.DeadlineExceeded)
		cancel()
		require.NoError(t, list())
	})
}

// TestIdle runs a shard with a hundred groups and an operator that watches them for
// an hour: nothing is stored, requested from Kubernetes or reported. Connections are
// in memory so that the server can run in a bubble.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kubernetes := kwoktest.NewClientset()
		s := servertest.Start(t, servertest.Options{InMemory: true, Kubernetes: kubernetes, Groups: `{"default": {"main": {"template": "worker"}, "other": {"template": "worker"}}}`})
		operator := s.Operator("default")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch, err := operator.WatchGroups(ctx, &emptypb.Empty{})
		require.NoError(t, err)
		events := make(chan *nstancev1.GroupEvent, 10_000)
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			for event, err := watch.Recv(); err == nil; event, err = watch.Recv() {
				events <- event
			}
		}()
		for i := range 98 {
			upsert(t, operator, fmt.Sprintf("group-%d", i), &nstancev1.GroupConfig{Template: "worker", Size: 2})
		}
		// Retries, confirmations and waits for events finish.
		<-time.After(2 * time.Minute)
		synctest.Wait()
		for _, group := range list(t, operator) {
			if group.ActualSize != group.Size {
				t.Errorf("after a while %s has %d of %d instances", group.Key, group.ActualSize, group.Size)
			}
		}
		for len(events) > 0 {
			<-events
		}
		kubernetes.ClearActions()
		file := s.GroupsPath()
		before, err := os.Stat(file)
		require.NoError(t, err)

		<-time.After(time.Hour)
		// Repeated requests change nothing either.
		for i := range 98 {
			upsert(t, operator, fmt.Sprintf("group-%d", i), &nstancev1.GroupConfig{Template: "worker", Size: 2})
		}
		synctest.Wait()
		if len(events) != 0 {
			t.Errorf("there were %d events, the first is %v", len(events), <-events)
		}
		if actions := kubernetes.Actions(); len(actions) != 0 {
			t.Errorf("there were %d calls to Kubernetes, the first is %v", len(actions), actions[0])
		}
		if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
			t.Errorf("the groups file was written: %v", err)
		}

		s.Stop()
		<-watching
	})
}

// A host without a certificate must not take the file descriptors of a server.
func TestHealthAndElectionPortsLimitConnections(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	httpservertest.Connections(t, func() (net.Conn, error) { return s.DialAddress(t.Context(), s.HealthAddr) })
	httpservertest.Connections(t, func() (net.Conn, error) {
		conn, err := s.DialAddress(t.Context(), s.ElectionAddr)
		if err != nil {
			return nil, err
		}
		peer := tls.Client(conn, &tls.Config{ServerName: "localhost", RootCAs: pkitest.Roots(s.Authority)})
		return peer, peer.HandshakeContext(t.Context())
	})
}

// A host that has no certificate, and sends nothing, keeps no operator out. In a bubble, no
// silent connection times out before the call of the operator.
func TestSilentConnectionsKeepNoOperatorOut(t *testing.T) {
	if tier.Race {
		t.Skip("the race detector crashes with a thousand connections in a bubble (Go 1.26.8)")
	}
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Start(t, servertest.Options{InMemory: true})
		ctx, cancel := context.WithCancel(t.Context())
		var silent sync.WaitGroup
		// More than the port accepts in all.
		for range 5000 {
			silent.Go(func() {
				if conn, err := s.DialAddress(ctx, s.Addr); err == nil {
					_, _ = io.Copy(io.Discard, conn)
				}
			})
		}
		synctest.Wait()
		begin := time.Now()
		list(t, s.Operator("default"))
		assert.Less(t, time.Since(begin), time.Second)
		cancel()
		s.Stop()
		silent.Wait()
	})
}

// A server exports only documented metrics. Calls, storage and groups have series when a
// group runs.
func TestServersExportDocumentedMetrics(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 1}}}`})
	watchGroups(t, s.Operator("default")).untilSize("main", 1)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.HealthAddr+"/metrics", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	require.NoError(t, err)
	foreign := regexp.MustCompile("^(go|process|promhttp)_")
	documented := metricstest.Documented(t, filepath.Join("..", "..", "docs", "server-reference.md"))
	for name := range families {
		if !foreign.MatchString(name) {
			assert.Contains(t, documented, name)
		}
	}
	for _, name := range strings.Fields("nstance_server_streams nstance_server_storage_call_duration_seconds nstance_server_group_size") {
		assert.Contains(t, families, name)
	}
	assert.InDelta(t, 1, families["nstance_server_leader"].GetMetric()[0].GetGauge().GetValue(), 0, "the only server leads")
	assert.InDelta(t, servedCertificate(t, s).NotAfter.Unix(),
		families["nstance_server_certificate_expiration_timestamp_seconds"].GetMetric()[0].GetGauge().GetValue(), 0, "the end of its certificate")
	info, err := os.Stat(s.ConfigPath())
	require.NoError(t, err)
	assert.InDelta(t, info.ModTime().Unix(),
		families["nstance_server_config_modified_timestamp_seconds"].GetMetric()[0].GetGauge().GetValue(), 0, "the time of its configuration")
}

// servedCertificate returns the certificate that clients of the server see.
func servedCertificate(t *testing.T, s *servertest.Server) *x509.Certificate {
	t.Helper()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: pkitest.Roots(s.Authority), ServerName: "localhost", MinVersion: tls.VersionTLS13}}
	connection, err := dialer.DialContext(t.Context(), "tcp", s.RegistrationAddr)
	require.NoError(t, err)
	defer connection.Close()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

// TestSecretsInAService: the leader creates the keys of the cluster in AWS Secrets Manager,
// and no key in the storage.
func TestSecretsInAService(t *testing.T) {
	url, _ := secretstest.StartSecretsManager(t)
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_SECRETS_MANAGER": url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret",
	} {
		t.Setenv(name, value)
	}
	s := servertest.Prepare(t, servertest.Options{})
	require.NoError(t, os.RemoveAll(filepath.Join(s.Bucket(), "secret")))
	require.NoError(t, s.Storage.Delete(t.Context(), storage.AuthorityKey))
	data, err := os.ReadFile(s.ConfigPath())
	require.NoError(t, err)
	inStorage := regexp.MustCompile(`"provider": "object-storage", "encryption_key": \{[^}]*\}`)
	require.Regexp(t, inStorage, string(data))
	require.NoError(t, os.WriteFile(s.ConfigPath(), inStorage.ReplaceAll(data, []byte(`"provider": "aws-secrets-manager"`)), 0o600))

	s.Launch()
	s.UntilListening()
	s.UntilHealthy()
	store := awssecrets.NewSecretsManager(secretstest.AWSConfig(url), "nstance/"+servertest.ClusterID+"/")
	list, err := store.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{storage.AuthoritySecret, storage.NonceSecret}, list)
	_, err = clusterkeys.Load(t.Context(), s.Storage, store)
	require.NoError(t, err)
	objects, err := s.Storage.List(t.Context(), storage.SecretPrefix)
	require.NoError(t, err)
	assert.Empty(t, objects)
}

// TestNoCredentials: a server without a cloud in its configuration looks up no credentials of
// a cloud.
func TestNoCredentials(t *testing.T) {
	connections := secretstest.WatchCredentials(t)
	s := servertest.Start(t, servertest.Options{})
	s.Stop()
	assert.Zero(t, connections.Load(), "connections of a server")
	require.NoError(t, server.Validate(t.Context(), server.Options{}, filepath.Join("..", "..", "docs", "shard.jsonc"), io.Discard))
	assert.Zero(t, connections.Load(), "connections while a configuration is validated")
}
