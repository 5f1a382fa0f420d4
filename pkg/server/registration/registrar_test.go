// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestRegisterOperator(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	key, publicKeyPEM := newKey(t)
	token := c.nonce("a")
	before := time.Now()
	answer, err := s.register(token, publicKeyPEM)
	require.NoError(t, err)
	certificate := s.wantCertificate(answer.ClientCertificatePem, "a", key)
	if got := answer.ExpiresAt.AsTime(); !got.Equal(certificate.NotAfter) {
		t.Errorf("the response has expiry %s, the certificate %s", got, certificate.NotAfter)
	}
	if lifetime := certificate.NotAfter.Sub(before); lifetime < 24*time.Hour-time.Second || lifetime > 24*time.Hour+time.Minute {
		t.Errorf("it is valid for %s, want 24h", lifetime)
	}

	record := c.record("a")
	want := registration.Record{
		ClientID: clusterID, Tenant: "a", PublicKeyPEM: string(publicKeyPEM), CertSerial: certificate.SerialNumber.Text(16),
		RegisteredAt: record.RegisteredAt, ExpiresAt: certificate.NotAfter,
	}
	assert.Equal(t, want, record)
	if record.RegisteredAt.Before(before) || record.RegisteredAt.After(time.Now()) {
		t.Errorf("it registered at %s", record.RegisteredAt)
	}
	claimed, err := c.storage.Get(t.Context(), storage.OperatorNonceKey(token))
	if err != nil || string(claimed.Data) != string(publicKeyPEM) {
		t.Errorf("the nonce is claimed by %q, %v", claimed.Data, err)
	}

	log := s.log()
	if !strings.Contains(log, "Registered operator") || !strings.Contains(log, record.CertSerial) {
		t.Errorf("the log lacks the registration: %s", log)
	}
	if strings.Contains(log, token) || strings.Contains(log, "BEGIN") {
		t.Errorf("the log contains secrets: %s", log)
	}
}

// The server that leads the cluster may have a configuration without groups of the tenant,
// which another shard has.
func TestTenantNeedsNoGroups(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	key, publicKeyPEM := newKey(t)
	response, err := s.register(c.nonce("without-groups"), publicKeyPEM)
	require.NoError(t, err)
	s.wantCertificate(response.ClientCertificatePem, "without-groups", key)
}

// record returns the registration of a tenant's operator, and checks the names of
// its fields.
func (c *cluster) record(tenant string) registration.Record {
	c.t.Helper()
	object, err := c.storage.Get(c.t.Context(), "operator/"+tenant+"."+clusterID+".json")
	require.NoError(c.t, err)
	var fields map[string]any
	require.NoError(c.t, json.Unmarshal(object.Data, &fields))
	for _, name := range []string{"client_id", "tenant", "public_key_pem", "cert_serial", "registered_at", "expires_at"} {
		if _, ok := fields[name]; !ok {
			c.t.Errorf("the record has no %s: %s", name, object.Data)
		}
	}
	var record registration.Record
	require.NoError(c.t, json.Unmarshal(object.Data, &record))
	return record
}

func TestNonceIsValidForOneKey(t *testing.T) {
	c := newCluster(t)
	elector, resign := c.lead("one")
	first := c.serve(c.registrar(elector, c.storage))
	key, publicKeyPEM := newKey(t)
	_, otherKeyPEM := newKey(t)
	token := c.nonce("default")
	_, err := first.register(token, publicKeyPEM)
	require.NoError(t, err)
	resign()
	// This depends neither on the server nor on the encoding of the key.
	elector, _ = c.lead("two")
	second := c.serve(c.registrar(elector, c.storage))
	again, err := second.register(token, append([]byte("my key\n"), publicKeyPEM...))
	if err != nil {
		t.Fatalf("the same key again: %v", err)
	}
	second.wantCertificate(again.ClientCertificatePem, "default", key)
	_, err = second.register(token, otherKeyPEM)
	wantCode(t, err, codes.Unauthenticated)
	if err != nil && !strings.Contains(err.Error(), "it has been used with another public key") {
		t.Errorf("got %v", err)
	}
	if record := c.record("default"); record.PublicKeyPEM != string(publicKeyPEM) {
		t.Error("the record has the key that was rejected")
	}
	// The next operator replaces the previous operator.
	_, err = second.register(c.nonce("default"), otherKeyPEM)
	require.NoError(t, err)
	if record := c.record("default"); record.PublicKeyPEM != string(otherKeyPEM) {
		t.Error("the record has the key of the previous operator")
	}
}

func TestConcurrentUseOfNonce(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	race := func(keyOf func(int) []byte) (won int) {
		token := c.nonce("a")
		errs := make([]error, 16)
		var callers sync.WaitGroup
		for i := range errs {
			callers.Go(func() { _, errs[i] = s.register(token, keyOf(i)) })
		}
		callers.Wait()
		for _, err := range errs {
			if err == nil {
				won++
			} else {
				wantCode(t, err, codes.Unauthenticated)
			}
		}
		return won
	}
	keys := make([][]byte, 16)
	for i := range keys {
		_, keys[i] = newKey(t)
	}
	if won := race(func(i int) []byte { return keys[i] }); won != 1 {
		t.Errorf("%d of 16 keys got a certificate for one nonce, want 1", won)
	}
	if won := race(func(int) []byte { return keys[0] }); won != 16 {
		t.Errorf("%d of 16 calls with the same key succeeded", won)
	}
}

func TestRejectedRegistrations(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	_, publicKeyPEM := newKey(t)
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(ecdsaKey.Public())
	require.NoError(t, err)
	ecdsaKeyPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	agent, err := registration.NewNonceSigner(c.keys.Nonce).Agent(registration.AgentNonce{
		InstanceID: "knc06bgm7733st2576nx5jht4ecjw", ClusterID: clusterID, Tenant: "a", Shard: "us-west-2a",
	})
	require.NoError(t, err)
	// sign creates nonces that NonceSigner would reject.
	sign := func(change func(jwt.MapClaims)) string {
		claims := jwt.MapClaims{
			"kind": "operator", "sub": clusterID, "cluster_id": clusterID, "tenant": "a", "exp": time.Now().Add(time.Hour).Unix(),
		}
		change(claims)
		token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims).SignedString(c.keys.Nonce)
		require.NoError(t, err)
		return token
	}
	foreignNonce, err := registration.NewNonceSigner(newCluster(t).keys.Nonce).Operator(registration.OperatorNonce{ClusterID: clusterID, Tenant: "a", Lifetime: time.Hour})
	require.NoError(t, err)
	tests := []struct {
		name  string
		token string
		key   []byte
		code  codes.Code
		want  string
	}{
		{"no nonce", "", publicKeyPEM, codes.Unauthenticated, "registration nonce is not valid"},
		{"of another signer", foreignNonce, publicKeyPEM, codes.Unauthenticated, "signature is invalid"},
		{"of an agent", agent, publicKeyPEM, codes.Unauthenticated, `it is for kind "agent", needs to be for "operator"`},
		{"expired", sign(func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Second).Unix() }), publicKeyPEM, codes.Unauthenticated, "it expired at"},
		{"without expiry", sign(func(c jwt.MapClaims) { delete(c, "exp") }), publicKeyPEM, codes.Unauthenticated, "exp claim is required"},
		{"another cluster", sign(func(c jwt.MapClaims) { c["cluster_id"], c["sub"] = "test", "test" }), publicKeyPEM, codes.InvalidArgument, `it is for cluster "test", this is "prod"`},
		{"another subject", sign(func(c jwt.MapClaims) { c["sub"] = "test" }), publicKeyPEM, codes.InvalidArgument, `its subject is "test", needs to be the cluster id "prod"`},
		{"tenant without a name", c.nonce("B"), publicKeyPEM, codes.InvalidArgument, `its tenant: `},
		{"no key", c.nonce("a"), nil, codes.Internal, "public key is not usable: no PEM block found"},
		{"key of another kind", c.nonce("a"), ecdsaKeyPEM, codes.Internal, "needs to be Ed25519"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := s.register(tc.token, tc.key)
			wantCode(t, err, tc.code)
			if err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if stored := c.objects("operator"); len(stored) > 0 {
				t.Errorf("stored %v", stored)
			}
		})
	}
	log := s.log()
	if strings.Count(log, "Rejected a registration") != len(tests) {
		t.Errorf("the log lacks some rejections: %s", log)
	}
	if strings.Contains(log, agent) || strings.Contains(log, "eyJ") {
		t.Errorf("the log contains nonces: %s", log)
	}
	_, err = nstancev1.NewRegistrationServiceClient(s.dial(s.registrations)).RegisterAgent(t.Context(),
		&nstancev1.RegisterClientRequest{RegistrationNonceJwt: agent, PublicKeyPem: publicKeyPEM})
	wantCode(t, err, codes.Unimplemented)
}

func TestOnlyClusterLeaderRegisters(t *testing.T) {
	c := newCluster(t)
	standby, resign := c.lead("one")
	resign()
	_, _ = c.lead("two")
	_, publicKeyPEM := newKey(t)
	// The lease may expire during a call, so the storage checks it again.
	late := c.registrar(standby, c.storage)
	late.Leading = func() bool { return true }
	for _, registrar := range []*registration.Registrar{c.registrar(standby, c.storage), late} {
		_, err := c.serve(registrar).register(c.nonce("a"), publicKeyPEM)
		wantCode(t, err, codes.FailedPrecondition)
	}
	if stored := c.objects("operator"); len(stored) > 0 {
		t.Errorf("it stored %v", stored)
	}
	// Only the leader checks the nonce: the others send clients to it.
	_, err := c.serve(c.registrar(standby, c.storage)).register("not a nonce", publicKeyPEM)
	wantCode(t, err, codes.FailedPrecondition)
}

// faulty is a storage that fails to create objects below a prefix.
func faulty(store storage.Store, prefix string) storage.Store {
	return storagetest.Intercepted{Store: store, Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
		if call.Operation == "Create" && strings.HasPrefix(call.Key, prefix) {
			return errFaulty
		}
		return do(ctx)
	}}
}

var errFaulty = errors.New("no space left on device")

// TestInterruptedRegistration: a client that got no response gets its certificate
// with the same key, from this server or the next. Another key is rejected.
func TestInterruptedRegistration(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prefix  string
		claimed bool
	}{
		{"before the nonce was claimed", "operator-nonce/", false},
		{"before the record was stored", "operator/", true},
		{"before the audit log had the certificate", "audit-log/", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			elector, _ := c.lead("one")
			token := c.nonce("a")
			key, publicKeyPEM := newKey(t)
			_, otherKeyPEM := newKey(t)
			answer, err := c.serve(c.registrar(elector, faulty(c.storage, tc.prefix))).register(token, publicKeyPEM)
			wantCode(t, err, codes.Internal)
			if answer != nil {
				t.Errorf("the response has a certificate that is not recorded: %v", answer)
			}
			if claimed := slices.Contains(c.objects("operator-nonce/"), storage.OperatorNonceKey(token)); claimed != tc.claimed {
				t.Errorf("the claims are %v", claimed)
			}
			s := c.serve(c.registrar(elector, c.storage))
			if tc.claimed {
				_, err = s.register(token, otherKeyPEM)
				wantCode(t, err, codes.Unauthenticated)
			}
			again, err := s.register(token, publicKeyPEM)
			require.NoError(t, err)
			certificate := s.wantCertificate(again.ClientCertificatePem, "a", key)
			if got := c.record("a").CertSerial; got != certificate.SerialNumber.Text(16) {
				t.Errorf("serial %s is recorded", got)
			}
		})
	}
}

func TestRegistrationsAreEncrypted(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	// The client does not send its nonce to a server of another authority.
	foreign := &server{cluster: newCluster(t), registrations: s.registrations}
	_, publicKeyPEM := newKey(t)
	if _, err := foreign.register(c.nonce("a"), publicKeyPEM); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
}

// auditLog returns the entries of the audit log without their times, in order.
func (c *cluster) auditLog() []auditlog.Entry {
	c.t.Helper()
	var entries []auditlog.Entry
	for _, key := range c.objects("audit-log/cluster/") {
		object, err := c.storage.Get(c.t.Context(), key)
		require.NoError(c.t, err)
		var entry auditlog.Entry
		require.NoError(c.t, json.Unmarshal(object.Data, &entry))
		assert.WithinDuration(c.t, time.Now(), entry.At, time.Minute)
		entry.At = time.Time{}
		entries = append(entries, entry)
	}
	return entries
}

// A reader of the storage finds each certificate of an operator, and the nonce that the first
// one was issued for.
func TestEachCertificateIsInTheAuditLog(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	registrar := c.registrar(elector, c.storage)
	s := c.serve(registrar)
	_, publicKeyPEM := newKey(t)
	token := c.nonce("a")
	registered, err := s.register(token, publicKeyPEM)
	require.NoError(t, err)
	ctx := audit.WithRequest(t.Context(), audit.Request{ID: "id", Writer: "the caller"})
	renewed, err := registrar.Renew(ctx, pki.Client{ID: clusterID, Tenant: "a", Role: pki.RoleOperator}, parseCertificate(t, registered.ClientCertificatePem), publicKeyPEM)
	require.NoError(t, err)
	_, otherKeyPEM := newKey(t)
	_, err = s.register(token, otherKeyPEM)
	require.Error(t, err)
	entry := func(certificate *x509.Certificate, reason string) auditlog.Entry {
		return auditlog.Entry{
			Action: audit.IssueCertificate, Name: certificate.SerialNumber.Text(16), Tenant: "a", Client: clusterID,
			ExpiresAt: certificate.NotAfter, Reason: reason,
		}
	}
	first, second := entry(parseCertificate(t, registered.ClientCertificatePem), "registration"), entry(renewed, "renewal")
	first.Nonce = storage.OperatorNonceKey(token)
	second.Writer, second.RequestID = "the caller", "id"
	assert.Equal(t, []auditlog.Entry{first, second}, c.auditLog())
}

// A client that gets many certificates waits: the storage has an object for each.
func TestManyCertificatesOfAClient(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	key, publicKeyPEM := newKey(t)
	registered, err := s.register(c.nonce("a"), publicKeyPEM)
	require.NoError(t, err)
	current := identity{registered.ClientCertificatePem, key}
	for err == nil {
		require.LessOrEqual(t, len(c.objects("audit-log/")), 1000, "there is no limit")
		var renewed *nstancev1.RenewCertificateResponse
		if renewed, err = s.renew(current, publicKeyPEM); err == nil {
			current = identity{renewed.ClientCertificatePem, key}
		}
	}
	wantCode(t, err, codes.Unavailable)
	require.ErrorContains(t, err, auditlog.ErrTooMany.Error())
	_, err = s.register(c.nonce("a"), publicKeyPEM)
	wantCode(t, err, codes.Unavailable)
	_, err = s.register(c.nonce("b"), publicKeyPEM)
	require.NoError(t, err, "another tenant")
}

func TestRenewCertificate(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	key, publicKeyPEM := newKey(t)
	registered, err := s.register(c.nonce("a"), publicKeyPEM)
	require.NoError(t, err)
	before := c.record("a")

	same, err := s.renew(identity{registered.ClientCertificatePem, key}, publicKeyPEM)
	if err != nil {
		t.Fatalf("with the same key: %v", err)
	}
	certificate := s.wantCertificate(same.ClientCertificatePem, "a", key)
	if !same.ExpiresAt.AsTime().Equal(certificate.NotAfter) {
		t.Errorf("the response has expiry %s, the certificate %s", same.ExpiresAt.AsTime(), certificate.NotAfter)
	}
	if serial := certificate.SerialNumber.Text(16); serial == before.CertSerial || c.record("a").CertSerial != serial {
		t.Error("the renewal is not recorded")
	}

	// Renew with another key, then with the renewed certificate.
	nextKey, nextKeyPEM := newKey(t)
	next, err := s.renew(identity{same.ClientCertificatePem, key}, nextKeyPEM)
	if err != nil {
		t.Fatalf("with another key: %v", err)
	}
	s.wantCertificate(next.ClientCertificatePem, "a", nextKey)
	if _, err := s.renew(identity{next.ClientCertificatePem, nextKey}, nextKeyPEM); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
	after := c.record("a")
	if !after.RegisteredAt.Equal(before.RegisteredAt) || after.PublicKeyPEM != string(nextKeyPEM) {
		t.Errorf("the record is %+v, before it was %+v", after, before)
	}
	if log := s.log(); strings.Count(log, "Renewed the certificate") != 3 || !strings.Contains(log, `tenant="a"`) || strings.Contains(log, "BEGIN") {
		t.Errorf("the log is: %s", log)
	}
}

func TestRejectedRenewals(t *testing.T) {
	c := newCluster(t)
	standby, resign := c.lead("one")
	resign()
	elector, _ := c.lead("two")
	leading := c.serve(c.registrar(elector, c.storage))
	operator := pki.Client{ID: clusterID, Tenant: "a", Role: pki.RoleOperator}
	good := c.issue(operator, time.Hour)
	_, publicKeyPEM := newKey(t)
	late := c.registrar(standby, c.storage)
	late.Leading = func() bool { return true }
	tests := []struct {
		name   string
		server *server
		caller identity
		key    []byte
		code   codes.Code
		want   string
	}{
		{"an agent", leading, c.issue(pki.Client{ID: "knc06bgm7733st2576nx5jht4ecjw", Tenant: "a", Role: pki.RoleAgent}, time.Hour), publicKeyPEM, codes.PermissionDenied, `role "agent"`},
		{"an ill-formed tenant", leading, c.issue(pki.Client{ID: clusterID, Tenant: "../a", Role: pki.RoleOperator}, time.Hour), publicKeyPEM, codes.InvalidArgument, `tenant: "../a"`},
		{"no key", leading, good, nil, codes.InvalidArgument, "public key is not usable"},
		{"a certificate for a key", leading, good, good.certPEM, codes.InvalidArgument, `needs to be "PUBLIC KEY"`},
		{"not the leader of the cluster", c.serve(c.registrar(standby, c.storage)), good, publicKeyPEM, codes.FailedPrecondition, "only the leader of the cluster issues certificates"},
		{"no longer the leader of the cluster", c.serve(late), good, publicKeyPEM, codes.FailedPrecondition, "does not lead"},
		{"storage that fails", c.serve(c.registrar(elector, faulty(c.storage, "operator/"))), good, publicKeyPEM, codes.Unavailable, "no space left"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := tc.server.renew(tc.caller, tc.key)
			wantCode(t, err, tc.code)
			if err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if stored := c.objects("operator"); len(stored) > 0 {
				t.Errorf("stored %v", stored)
			}
		})
	}
}

// The server ends the handshake. A client that sends a request may see only that the
// connection was closed, so this client reads.
func TestHandshakesThatAreRejected(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	operator := pki.Client{ID: clusterID, Tenant: "a", Role: pki.RoleOperator}
	tests := []struct {
		name         string
		certificates []tls.Certificate
		want         string
	}{
		{"no certificate", nil, "tls: certificate required"},
		{"an expired certificate", []tls.Certificate{c.issue(operator, -time.Minute).certificate(t)}, "tls: expired certificate"},
		{"a certificate of another cluster", []tls.Certificate{newCluster(t).issue(operator, time.Hour).certificate(t)}, "tls: unknown certificate authority"},
		{"a valid certificate", []tls.Certificate{c.issue(operator, time.Hour).certificate(t)}, ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			connection, err := tls.Dial("tcp", s.operators, c.clientConfig(tc.certificates...))
			require.NoError(t, err)
			defer connection.Close()
			_, err = connection.Read(make([]byte, 1))
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// TestUnconfiguredTenantRenews because its dynamic groups need their operator.
func TestUnconfiguredTenantRenews(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	caller := c.issue(pki.Client{ID: clusterID, Tenant: "removed", Role: pki.RoleOperator}, time.Hour)
	_, publicKeyPEM := newKey(t)
	_, err := s.renew(caller, publicKeyPEM)
	require.NoError(t, err)
	if record := c.record("removed"); record.RegisteredAt.IsZero() || record.PublicKeyPEM != string(publicKeyPEM) {
		t.Errorf("the record is %+v", record)
	}
}
