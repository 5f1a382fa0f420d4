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
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// withAgents has a static group "main" of this size.
func withAgents(size string) servertest.Options {
	return servertest.Options{Agents: true, Groups: `{"default": {"main": {"template": "worker", "size": ` + size + `, "limits": {"min_size": 0}}}}`}
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
func signed(t *testing.T, s *servertest.Server, change func(*registration.AgentNonce), id string) string {
	t.Helper()
	a := registration.AgentNonce{InstanceID: id, ClusterID: servertest.ClusterID, Tenant: "default", Shard: "us-west-2a", Group: "main"}
	change(&a)
	token, err := registration.NewNonceSigner(nonceKey(t, s)).Agent(a)
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

	// The instance runs when its agent has reported.
	reports, err := s.AgentWith(response.GetClientCertificatePem(), key).SubmitHealthReport(t.Context())
	require.NoError(t, err)
	got, err := operator.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: id})
	require.NoError(t, err)
	assert.Equal(t, "pending", got.GetStatus())
	assert.Nil(t, got.GetLastSeen())
	// Only the id in a report has to be right.
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
	another := signed(t, s, func(*registration.AgentNonce) {}, id)
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
		change func(*registration.AgentNonce)
		code   codes.Code
		reason string
	}{
		{"another cluster", func(a *registration.AgentNonce) { a.ClusterID = "other" }, codes.InvalidArgument, `for cluster "other", this is "test"`},
		{"another shard", func(a *registration.AgentNonce) { a.Shard = "us-west-2b" }, codes.InvalidArgument, `for shard "us-west-2b", this is "us-west-2a"`},
		{"another tenant", func(a *registration.AgentNonce) { a.Tenant = "other" }, codes.InvalidArgument, `is not of tenant "other"`},
		{"an unknown instance", func(a *registration.AgentNonce) { a.InstanceID = unknown.String() }, codes.Unauthenticated, "is not known"},
		{"no instance id", func(a *registration.AgentNonce) { a.InstanceID = "test" }, codes.Unauthenticated, "is not an instance id"},
		{"another kind", func(a *registration.AgentNonce) { a.InstanceID = "abc" + id[3:] }, codes.Unauthenticated, "is not known"},
	} {
		_, err := registerAgent(t, s, signed(t, s, tc.change, id), keyPEM)
		wantCode(t, tc.name, err, tc.code)
		assert.ErrorContains(t, err, tc.reason, tc.name)
	}
	ofOperator, err := registration.NewNonceSigner(nonceKey(t, s)).Operator(registration.OperatorNonce{ClusterID: servertest.ClusterID, Tenant: "default", Lifetime: time.Hour})
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

// TestNoncesOfOtherAlgorithmsAreRefused: neither a nonce without a signature is accepted, nor
// a nonce that is signed with the public key as a shared secret.
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
	_, err = registerAgent(t, s, signed(t, s, func(*registration.AgentNonce) {}, id), otherPEM)
	wantCode(t, "another key", err, codes.Unauthenticated)
}

func TestRolesHaveTheirOwnListener(t *testing.T) {
	s := servertest.Start(t, withAgents("1"))
	id := untilInstances(t, s, 1)[0]
	_, err := s.RegisterAgent(id).SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: id})
	require.NoError(t, err)
	operator := s.Agent(pki.Client{ID: servertest.ClusterID, Tenant: "default", Role: pki.RoleOperator})
	_, err = operator.SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{})
	assert.ErrorContains(t, err, `has role "operator"`)
	wantCode(t, "an operator at the address of agents", err, codes.PermissionDenied)
	agent := s.Dial(pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent})
	_, err = agent.ListGroups(t.Context(), &emptypb.Empty{})
	wantCode(t, "an agent at the address of operators", err, codes.PermissionDenied)
}

// TestAnAgentIsItsInstanceOnly: a certificate is valid only for its instance, with the
// registered key.
func TestAnAgentIsItsInstanceOnly(t *testing.T) {
	s := servertest.Start(t, withAgents("2"))
	ids := untilInstances(t, s, 2)
	key, keyPEM := s.AgentKey()
	response, err := registerAgent(t, s, s.Nonce(ids[0]), keyPEM)
	require.NoError(t, err)
	agent := s.AgentWith(response.GetClientCertificatePem(), key)
	s.RegisterAgent(ids[1])
	elsewhere, err := s.Authority.SignClient(pki.Client{ID: ids[0], Tenant: "other", Role: pki.RoleAgent}, key.Public().(ed25519.PublicKey), time.Hour)
	require.NoError(t, err)
	_, err = s.AgentWith(pki.EncodeCertificate(elsewhere), key).SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: ids[0]})
	wantCode(t, "the registered key with another tenant", err, codes.PermissionDenied)
	reports, err := agent.SubmitHealthReport(t.Context())
	require.NoError(t, err)
	require.NoError(t, reports.Send(&nstancev1.HealthReportRequest{InstanceId: ids[1]}))
	_, err = reports.CloseAndRecv()
	wantCode(t, "a report of another instance", err, codes.PermissionDenied)
	_, err = agent.SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: ids[1]})
	wantCode(t, "keys of another instance", err, codes.PermissionDenied)
	for name, client := range map[string]pki.Client{
		"another key":         {ID: ids[0], Tenant: "default", Role: pki.RoleAgent},
		"an unknown instance": {ID: "knd06bgm7733st2576nx5jht4ecjw", Tenant: "default", Role: pki.RoleAgent},
	} {
		_, err := s.Agent(client).SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: client.ID})
		wantCode(t, name, err, codes.PermissionDenied)
	}
}

func TestAnAgentRenewsItsCertificate(t *testing.T) {
	s := servertest.Start(t, withAgents("1"))
	id := untilInstances(t, s, 1)[0]
	key, keyPEM := s.AgentKey()
	response, err := registerAgent(t, s, s.Nonce(id), keyPEM)
	require.NoError(t, err)
	agent := s.AgentWith(response.GetClientCertificatePem(), key)
	renewed, err := agent.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: keyPEM})
	require.NoError(t, err)
	first, err := pki.ParseCertificate(response.GetClientCertificatePem())
	require.NoError(t, err)
	second, err := pki.ParseCertificate(renewed.GetClientCertificatePem())
	require.NoError(t, err)
	assert.Equal(t, first.Subject.String(), second.Subject.String())
	assert.Equal(t, second.SerialNumber.Text(16), recordOf(t, s, id).Registration.CertSerial)
	_, err = agent.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: []byte("x")})
	wantCode(t, "no key", err, codes.InvalidArgument)
	_, otherPublicPEM := s.AgentKey()
	proof, err := keys.NewRequest(key)
	require.NoError(t, err)
	_, err = agent.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: otherPublicPEM, CertificateRequest: proof.CertificateRequest})
	wantCode(t, "a key that the agent does not have", err, codes.InvalidArgument)
	_, err = s.Registration().RegisterAgent(t.Context(), &nstancev1.RegisterClientRequest{
		RegistrationNonceJwt: s.Nonce(id), PublicKeyPem: otherPublicPEM, CertificateRequest: proof.CertificateRequest,
	})
	wantCode(t, "a registration with it", err, codes.InvalidArgument)
	_, err = s.Operator("default").RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: otherPublicPEM, CertificateRequest: proof.CertificateRequest})
	wantCode(t, "a renewal of the operator with it", err, codes.InvalidArgument)
	_, err = s.Registration().RegisterOperator(t.Context(), &nstancev1.RegisterClientRequest{PublicKeyPem: otherPublicPEM, CertificateRequest: proof.CertificateRequest})
	wantCode(t, "a registration of the operator with it", err, codes.InvalidArgument)
	// Both certificates are accepted: the response may have been lost.
	for _, certificate := range [][]byte{response.GetClientCertificatePem(), renewed.GetClientCertificatePem()} {
		_, err = s.AgentWith(certificate, key).SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: id})
		assert.NoError(t, err)
	}

	// The next certificate is for another key. It replaces the present key, which does not get
	// another certificate.
	otherKey, otherPEM := s.AgentKey()
	replaced, err := agent.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: otherPEM})
	require.NoError(t, err)
	assert.Equal(t, string(keyPEM), recordOf(t, s, id).Registration.PublicKeyPEM)
	before := agent
	agent, keyPEM = s.AgentWith(replaced.GetClientCertificatePem(), otherKey), otherPEM
	_, err = agent.SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: id})
	require.NoError(t, err)
	assert.Equal(t, string(otherPEM), recordOf(t, s, id).Registration.PublicKeyPEM)
	_, err = before.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: otherPEM})
	wantCode(t, "a replaced key", err, codes.PermissionDenied)

	operator := s.Operator("default")
	upsert(t, operator, "main", &nstancev1.GroupConfig{Size: 0})
	untilInstances(t, s, 0)
	_, err = agent.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: keyPEM})
	wantCode(t, "a deleted instance", err, codes.PermissionDenied)
	assert.ErrorContains(t, err, "was deleted")
	_, err = registerAgent(t, s, s.Nonce(id), keyPEM)
	wantCode(t, "the registration of a deleted instance", err, codes.Unauthenticated)
}

// The address of a request is the address of its connection.
func TestAnAgentRegistersFromItsMachine(t *testing.T) {
	o := withAgents("1")
	o.CheckSource = true
	s := servertest.Start(t, o)
	id := untilInstances(t, s, 1)[0]
	_, keyPEM := s.AgentKey()
	_, err := registerAgent(t, s, s.Nonce(id), keyPEM)
	wantCode(t, "another machine", err, codes.PermissionDenied)
	assert.ErrorContains(t, err, "it comes from 127.0.0.1, must come from an address that the provider reports: [10.0.0.7 fd00::7]")
	assert.Nil(t, recordOf(t, s, id).Registration)
}

// TestANewStreamReplacesTheOlderOne: the connection of the older stream may have been lost.
func TestANewStreamReplacesTheOlderOne(t *testing.T) {
	s := servertest.Start(t, withAgents("1"))
	agent := s.RegisterAgent(untilInstances(t, s, 1)[0])
	older, err := agent.SubmitHealthReport(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(s.Calls("SubmitHealthReport")) == 1 }, eventTimeout, time.Millisecond)
	newer, err := agent.SubmitHealthReport(t.Context())
	require.NoError(t, err)
	wantCode(t, "the older stream", older.RecvMsg(&emptypb.Empty{}), codes.Aborted)
	_, err = newer.CloseAndRecv()
	assert.NoError(t, err)
}

func TestAServerWithoutAgentsServesNone(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	_, err := s.Registration().RegisterAgent(t.Context(), &nstancev1.RegisterClientRequest{})
	wantCode(t, "a registration", err, codes.Unimplemented)
	assert.Empty(t, s.AgentAddr)
}
