// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"nstance.dev/operator/pkg/server/pki"
)

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
// connection was closed, so this one reads.
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
