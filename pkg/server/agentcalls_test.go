// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

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

// TestAnAgentIsItsInstanceOnly: of this instance, with the registered key.
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
	_, otherPEM := s.AgentKey()
	_, err = agent.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: otherPEM})
	wantCode(t, "another key", err, codes.InvalidArgument)
	// Both are accepted: the response may have been lost.
	for _, certificate := range [][]byte{response.GetClientCertificatePem(), renewed.GetClientCertificatePem()} {
		_, err = s.AgentWith(certificate, key).SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: id})
		assert.NoError(t, err)
	}

	operator := s.Operator("default")
	upsert(t, operator, "main", &nstancev1.GroupConfig{Size: 0})
	untilInstances(t, s, 0)
	_, err = agent.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: keyPEM})
	wantCode(t, "a deleted instance", err, codes.PermissionDenied)
	assert.ErrorContains(t, err, "was deleted")
	_, err = registerAgent(t, s, s.Nonce(id), keyPEM)
	wantCode(t, "the registration of a deleted instance", err, codes.Unauthenticated)
}

// TestANewStreamReplacesTheOlderOne: the older one may be of a connection that was lost.
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
