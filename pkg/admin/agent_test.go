// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// The nonce lets an agent register again, with its key only.
func TestAgentNonce(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Agents: true, Groups: `{"default": {"main": {"template": "worker", "size": 1}}}`})
	var id string
	runtest.Eventually(t, "an instance is created", func() bool {
		for created := range s.Created() {
			id = created
		}
		return id != ""
	})
	nonce := append([]string{"agent", "nonce", "--shard", "us-west-2a"}, clusterFlags(s)...)
	other, err := puidv7.New("knd")
	require.NoError(t, err)
	_, err = run(t, append(nonce, "--instance", other.String())...)
	require.ErrorContains(t, err, "--instance: shard us-west-2a has no instance "+other.String()+" of tenant default")
	_, err = run(t, append(nonce, "--instance", "x", "--shard", "A", "--output", "")...)
	for _, flag := range []string{"--instance", "--shard", "--output"} {
		require.ErrorContains(t, err, flag)
	}
	token := strings.TrimSpace(mustRun(t, append(nonce, "--instance", id)...))
	register := func(keyPEM []byte) error {
		_, err := s.Registration().RegisterAgent(t.Context(), &nstancev1.RegisterClientRequest{RegistrationNonceJwt: token, PublicKeyPem: keyPEM})
		return err
	}
	_, keyPEM := s.AgentKey()
	require.NoError(t, register(keyPEM))
	again := strings.TrimSpace(mustRun(t, append(nonce, "--instance", id)...))
	assert.NotEqual(t, token, again)
	token = again
	require.NoError(t, register(keyPEM))
	_, otherPEM := s.AgentKey()
	assert.Equal(t, codes.Unauthenticated, status.Code(register(otherPEM)))
	assert.Contains(t, auditLog(t, s.Storage), `Audit: issue nonce "" of default/: command`)
}

// The server rejects a revoked agent, on the connection that it has and on another one.
func TestRevokeAgent(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Agents: true, Groups: `{"default": {"main": {"template": "worker", "size": 1}}}`})
	var id string
	runtest.Eventually(t, "an instance is created", func() bool {
		for created := range s.Created() {
			id = created
		}
		return id != ""
	})
	agent := s.RegisterAgent(id)
	stream, err := agent.SubmitHealthReport(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&nstancev1.HealthReportRequest{InstanceId: id}))

	revoke := append([]string{"agent", "revoke", "--shard", "us-west-2a"}, storageFlags(s)...)
	other, err := puidv7.New("knd")
	require.NoError(t, err)
	_, err = run(t, append(revoke, "--instance", other.String(), "--all")...)
	require.ErrorContains(t, err, "--instance: shard us-west-2a has no instance "+other.String()+" of tenant default")
	_, err = run(t, append(revoke, "--instance", "x", "--shard", "A")...)
	for _, flag := range []string{"--instance", "--shard", "--all"} {
		require.ErrorContains(t, err, flag)
	}
	assert.Contains(t, mustRun(t, append(revoke, "--instance", id, "--serial", "AB")...), "Revoked certificate ab of the agent of instance "+id)
	assert.Contains(t, mustRun(t, append(revoke, "--instance", id, "--all")...), "Revoked all certificates of the agent of instance "+id)
	err = stream.RecvMsg(&emptypb.Empty{})
	assert.Equal(t, codes.Unauthenticated, status.Code(err), "the stream: %v", err)
	_, err = agent.SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: id})
	assert.Equal(t, codes.Unauthenticated, status.Code(err), "a call: %v", err)
	entries := auditLog(t, s.Storage)
	assert.Contains(t, entries, `Audit: revoke certificates "" of default/: command`)
}
