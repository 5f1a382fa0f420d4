// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"crypto/ed25519"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration/nonce"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// withAgents has a static group "main" of the size given.
func withAgents(size string) servertest.Options {
	return servertest.Options{Agents: true, Groups: `{"default": {"main": {"template": "worker", "size": ` + size + `}}}`}
}

// untilInstances waits until the group "main" lists a number of instances, and returns their ids.
func untilInstances(t *testing.T, s *servertest.Server, count int) []string {
	t.Helper()
	status := watchGroups(t, s.Operator("default")).until(func(e *nstancev1.GroupEvent) bool {
		return e.Group.Key == "main" && len(e.Group.GetInstances().GetInstances()) == count
	})
	return instanceIDs(status.Group)
}

// signed returns a nonce of the cluster for an agent.
func signed(t *testing.T, s *servertest.Server, change func(*nonce.Agent), id string) string {
	t.Helper()
	a := nonce.Agent{InstanceID: id, ClusterID: servertest.ClusterID, Tenant: "default", Shard: "us-west-2a", Group: "main"}
	change(&a)
	token, err := nonce.NewSigner(nonceKey(t, s)).Agent(a)
	require.NoError(t, err)
	return token
}

// nonceKey returns the key of the cluster that signs nonces.
func nonceKey(t *testing.T, s *servertest.Server) ed25519.PrivateKey {
	t.Helper()
	loaded, err := clusterkeys.Load(t.Context(), s.Storage, s.Secrets)
	require.NoError(t, err)
	return loaded.Nonce
}

// registerAgent registers an agent with a nonce and a key.
func registerAgent(t *testing.T, s *servertest.Server, token string, keyPEM []byte) (*nstancev1.RegisterClientResponse, error) {
	t.Helper()
	return s.Registration().RegisterAgent(t.Context(), &nstancev1.RegisterClientRequest{RegistrationNonceJwt: token, PublicKeyPem: keyPEM})
}

// recordOf returns the stored record of an instance.
func recordOf(t *testing.T, s *servertest.Server, id string) instance.Record {
	t.Helper()
	parsed, err := puidv7.Parse(id)
	require.NoError(t, err)
	var r instance.Record
	require.NoError(t, json.Unmarshal(s.ReadFile(storage.InstanceKey("us-west-2a", "default", parsed.StorageKey())), &r))
	return r
}

func TestAnAgentRegistersAndReports(t *testing.T) {
	s := servertest.Start(t, withAgents("1"))
	id := untilInstances(t, s, 1)[0]
	operator := s.Operator("default")
	watch := watchGroups(t, operator)
	watch.until(func(e *nstancev1.GroupEvent) bool {
		return e.Group.GetInstances().GetInstances()[0].Status == "pending"
	})

	key, keyPEM := s.AgentKey()
	before := time.Now()
	response, err := s.Registration().RegisterAgent(t.Context(), &nstancev1.RegisterClientRequest{
		RegistrationNonceJwt: s.Nonce(id), PublicKeyPem: keyPEM, PrivateIpv4: "10.0.0.7", PrivateIpv6: "fd00:0::7", Hostname: "machine-7",
	})
	require.NoError(t, err)
	certificate, err := pki.ParseCertificate(response.GetClientCertificatePem())
	require.NoError(t, err)
	client, err := pki.PeerClient(certificate)
	require.NoError(t, err)
	assert.Equal(t, pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}, client)
	assert.Equal(t, certificate.NotAfter, response.GetExpiresAt().AsTime())

	stored := recordOf(t, s, id).Registration
	require.NotNil(t, stored)
	want := &instance.Registration{
		PublicKeyPEM: string(keyPEM), CertSerial: certificate.SerialNumber.Text(16), ExpiresAt: certificate.NotAfter,
		RegisteredAt: stored.RegisteredAt, IPv4: "10.0.0.7", IPv6: "fd00::7", Hostname: "machine-7",
	}
	assert.Equal(t, want, stored)
	assert.False(t, stored.RegisteredAt.Before(before.Truncate(0)), "registered at %s", stored.RegisteredAt)

	// It runs when it has reported.
	reports, err := s.AgentWith(response.GetClientCertificatePem(), key).SubmitHealthReport(t.Context())
	require.NoError(t, err)
	got, err := operator.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: id})
	require.NoError(t, err)
	assert.Equal(t, "pending", got.GetStatus())
	assert.Nil(t, got.GetLastSeen())
	// No part of a report but the id has to be right.
	require.NoError(t, reports.Send(&nstancev1.HealthReportRequest{InstanceId: id, Count: 7, Timestamp: timestamppb.New(before.Add(-time.Hour))}))
	watch.until(func(e *nstancev1.GroupEvent) bool { return e.Group.GetActualSize() == 1 })
	require.NoError(t, reports.Send(&nstancev1.HealthReportRequest{InstanceId: id, Count: 1, Timestamp: timestamppb.New(before.Add(time.Hour))}))
	_, err = reports.CloseAndRecv()
	require.NoError(t, err)
	got, err = operator.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: id})
	require.NoError(t, err)
	assert.Equal(t, "running", got.GetStatus())
	assert.WithinRange(t, got.GetLastSeen().AsTime(), before, time.Now())
}

func TestTheFirstKeyOfAnInstanceIsTheOnlyOne(t *testing.T) {
	s := servertest.Start(t, withAgents("1"))
	id := untilInstances(t, s, 1)[0]
	_, keyPEM := s.AgentKey()
	_, otherPEM := s.AgentKey()
	_, err := registerAgent(t, s, s.Nonce(id), keyPEM)
	require.NoError(t, err)
	first := recordOf(t, s, id).Registration

	_, err = registerAgent(t, s, s.Nonce(id), otherPEM)
	wantCode(t, "the used nonce with another key", err, codes.Unauthenticated)
	assert.ErrorContains(t, err, "registered with another public key")
	another := signed(t, s, func(*nonce.Agent) {}, id)
	_, err = registerAgent(t, s, another, otherPEM)
	wantCode(t, "another nonce with another key", err, codes.Unauthenticated)
	assert.Equal(t, first, recordOf(t, s, id).Registration)

	// An agent that got no response calls again.
	_, err = registerAgent(t, s, s.Nonce(id), keyPEM)
	require.NoError(t, err, "the same nonce with the same key")
	_, err = registerAgent(t, s, another, keyPEM)
	require.NoError(t, err, "another nonce with the same key")
	again := recordOf(t, s, id).Registration
	assert.Equal(t, first.RegisteredAt, again.RegisteredAt)
	assert.NotEqual(t, first.CertSerial, again.CertSerial)
}

func TestOneOfTwoConcurrentRegistrationsWins(t *testing.T) {
	s := servertest.Start(t, withAgents("1"))
	id := untilInstances(t, s, 1)[0]
	token := s.Nonce(id)
	const agents = 8
	results := make([]error, agents)
	var running sync.WaitGroup
	for n := range agents {
		_, keyPEM := s.AgentKey()
		client := s.Registration()
		running.Go(func() {
			_, results[n] = client.RegisterAgent(t.Context(), &nstancev1.RegisterClientRequest{RegistrationNonceJwt: token, PublicKeyPem: keyPEM})
		})
	}
	running.Wait()
	registered := 0
	for _, err := range results {
		if err == nil {
			registered++
			continue
		}
		wantCode(t, "a registration that came second", err, codes.Unauthenticated)
	}
	assert.Equal(t, 1, registered, "registrations")
}

func TestRegistrationsOfAgentsAreRefusedWithTheReason(t *testing.T) {
	s := servertest.Start(t, withAgents("1"))
	id := untilInstances(t, s, 1)[0]
	_, keyPEM := s.AgentKey()
	unknown, err := puidv7.New("knd")
	require.NoError(t, err)
	for _, tc := range []struct {
		name   string
		change func(*nonce.Agent)
		code   codes.Code
		reason string
	}{
		{"another cluster", func(a *nonce.Agent) { a.ClusterID = "other" }, codes.InvalidArgument, `for cluster "other", this is "test"`},
		{"another shard", func(a *nonce.Agent) { a.Shard = "us-west-2b" }, codes.InvalidArgument, `for shard "us-west-2b", this is "us-west-2a"`},
		{"another tenant", func(a *nonce.Agent) { a.Tenant = "other" }, codes.InvalidArgument, `is not of tenant "other"`},
		{"an unknown instance", func(a *nonce.Agent) { a.InstanceID = unknown.String() }, codes.Unauthenticated, "is not known"},
		{"no instance id", func(a *nonce.Agent) { a.InstanceID = "test" }, codes.Unauthenticated, "is not an instance id"},
		{"another kind", func(a *nonce.Agent) { a.InstanceID = "abc" + id[3:] }, codes.Unauthenticated, "is not known"},
	} {
		_, err := registerAgent(t, s, signed(t, s, tc.change, id), keyPEM)
		wantCode(t, tc.name, err, tc.code)
		assert.ErrorContains(t, err, tc.reason, tc.name)
	}
	ofOperator, err := nonce.NewSigner(nonceKey(t, s)).Operator(nonce.Operator{ClusterID: servertest.ClusterID, Tenant: "default", Lifetime: time.Hour})
	require.NoError(t, err)
	_, err = registerAgent(t, s, ofOperator, keyPEM)
	wantCode(t, "the nonce of an operator", err, codes.Unauthenticated)
	assert.ErrorContains(t, err, `it is for kind "operator", needs to be for "agent"`)
	_, err = registerAgent(t, s, s.Nonce(id), []byte("no key"))
	wantCode(t, "no key", err, codes.InvalidArgument)
	for _, request := range []*nstancev1.RegisterClientRequest{{PrivateIpv4: "::1"}, {PrivateIpv6: "10.0.0.1"}, {PrivateIpv4: "x"}, {Hostname: "a b"}, {Hostname: strings.Repeat("x", 254)}} {
		request.RegistrationNonceJwt, request.PublicKeyPem = s.Nonce(id), keyPEM
		_, err = s.Registration().RegisterAgent(t.Context(), request)
		wantCode(t, request.String(), err, codes.InvalidArgument)
	}
	assert.Nil(t, recordOf(t, s, id).Registration)
}

// TestNoncesOfOtherAlgorithmsAreRefused: neither a nonce without a signature is accepted, nor one
// that is signed with the public key as a shared secret.
func TestNoncesOfOtherAlgorithmsAreRefused(t *testing.T) {
	s := servertest.Start(t, withAgents("1"))
	id := untilInstances(t, s, 1)[0]
	_, keyPEM := s.AgentKey()
	claims := func(expiry time.Duration) jwt.MapClaims {
		return jwt.MapClaims{
			"kind": "agent", "sub": id, "cluster_id": "test", "tenant": "default", "shard": "us-west-2a",
			"exp": time.Now().Add(expiry).Unix(),
		}
	}
	private := nonceKey(t, s)
	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, claims(time.Minute)).SignedString(jwt.UnsafeAllowNoneSignatureType)
	require.NoError(t, err)
	symmetric, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims(time.Minute)).SignedString([]byte(private.Public().(ed25519.PublicKey)))
	require.NoError(t, err)
	expired, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims(-time.Second)).SignedString(private)
	require.NoError(t, err)
	for name, token := range map[string]string{"none": none, "HS256": symmetric, "expired": expired, "empty": ""} {
		_, err := registerAgent(t, s, token, keyPEM)
		wantCode(t, name, err, codes.Unauthenticated)
	}
	_, err = registerAgent(t, s, s.Nonce(id), keyPEM)
	assert.NoError(t, err)
}

// TestARegistrationSurvivesRestarts: with the cache and without it.
func TestARegistrationSurvivesRestarts(t *testing.T) {
	o := withAgents("1")
	s := servertest.Start(t, o)
	id := untilInstances(t, s, 1)[0]
	key, keyPEM := s.AgentKey()
	token := s.Nonce(id)
	response, err := registerAgent(t, s, token, keyPEM)
	require.NoError(t, err)
	o.DataDir, o.Kubernetes = s.DataDir, s.Kubernetes
	for _, loseCache := range []bool{false, true} {
		s.Stop()
		if loseCache {
			require.NoError(t, os.RemoveAll(filepath.Join(s.DataDir, "cache")))
		}
		s = servertest.Start(t, o)
		_, otherPEM := s.AgentKey()
		_, err = registerAgent(t, s, token, otherPEM)
		wantCode(t, "another key", err, codes.Unauthenticated)
		reports, err := s.AgentWith(response.GetClientCertificatePem(), key).SubmitHealthReport(t.Context())
		require.NoError(t, err)
		require.NoError(t, reports.Send(&nstancev1.HealthReportRequest{InstanceId: id}))
		_, err = reports.CloseAndRecv()
		require.NoError(t, err)
	}
}

// TestALostRecordGetsItsRegistrationFromTheCertificate: an agent whose nonce has expired
// cannot register again.
func TestALostRecordGetsItsRegistrationFromTheCertificate(t *testing.T) {
	o := withAgents("1")
	s := servertest.Start(t, o)
	id := untilInstances(t, s, 1)[0]
	key, keyPEM := s.AgentKey()
	response, err := registerAgent(t, s, s.Nonce(id), keyPEM)
	require.NoError(t, err)
	before := recordOf(t, s, id).Registration
	s.Stop()
	parsed, err := puidv7.Parse(id)
	require.NoError(t, err)
	require.NoError(t, s.Storage.Delete(t.Context(), storage.InstanceKey("us-west-2a", "default", parsed.StorageKey())))
	o.DataDir, o.Kubernetes = s.DataDir, s.Kubernetes
	s = servertest.Start(t, o)
	assert.Nil(t, recordOf(t, s, id).Registration, "the adopted record")
	// Its Node stays listed.
	got, err := s.Operator("default").GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: id})
	require.NoError(t, err)
	assert.Equal(t, "running", got.GetStatus())
	reports, err := s.AgentWith(response.GetClientCertificatePem(), key).SubmitHealthReport(t.Context())
	require.NoError(t, err)
	_, err = reports.CloseAndRecv()
	require.NoError(t, err)
	after := recordOf(t, s, id).Registration
	require.NotNil(t, after)
	assert.Equal(t, before.PublicKeyPEM, after.PublicKeyPEM)
	assert.Equal(t, before.CertSerial, after.CertSerial)
	_, otherPEM := s.AgentKey()
	_, err = registerAgent(t, s, signed(t, s, func(*nonce.Agent) {}, id), otherPEM)
	wantCode(t, "another key", err, codes.Unauthenticated)
}
