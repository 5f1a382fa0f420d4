// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"crypto/ed25519"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/agents"
	"nstance.dev/operator/pkg/server/internal/agents/agentfiles"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// admittedOnce has one instance, whose registration has another key after the first call of Get.
type admittedOnce struct {
	agents.Instances
	instance instance.Instance
	admitted bool
}

func (a *admittedOnce) Get(string) (instance.Instance, bool) {
	i := a.instance
	if a.admitted {
		i.Registration = &instance.Registration{PublicKeyPEM: "another key"}
	}
	a.admitted = true
	return i, true
}

// knownInstance is an instance that the pusher of files knows.
type knownInstance struct{ instance.Instance }

func (k knownInstance) Get(string) (instance.Instance, bool) { return k.Instance, true }

// fileStream records the first transfer and ends with it.
type fileStream struct {
	grpc.ServerStreamingServer[nstancev1.FileTransfer]
	ctx  context.Context
	end  context.CancelFunc
	sent []*nstancev1.FileTransfer
}

func (s *fileStream) Context() context.Context { return s.ctx }

func (s *fileStream) Send(transfer *nstancev1.FileTransfer) error {
	s.sent = append(s.sent, transfer)
	s.end()
	return nil
}

// Files have secrets: each patch is for the agent that is registered when it is sent.
func TestFilesAreNotSentOnTheStreamOfAFormerAgent(t *testing.T) {
	store := newService(t).Store
	authority := pkitest.NewAuthority(t)
	i := instance.Instance{Record: instance.Record{ID: newID(t, "knd"), Tenant: "default", Group: "plain", CreatedAt: epoch}}
	client := pki.Client{ID: i.ID, Tenant: i.Tenant, Role: pki.RoleAgent}
	certPEM, _, err := authority.IssueClient(client, time.Hour)
	require.NoError(t, err)
	certificate, err := pki.ParseCertificate(certPEM)
	require.NoError(t, err)
	keyPEM, err := keys.EncodePublic(certificate.PublicKey.(ed25519.PublicKey))
	require.NoError(t, err)
	i.Registration = &instance.Registration{PublicKeyPEM: string(keyPEM)}

	synctest.Test(t, func(t *testing.T) {
		pusher := agentfiles.New(agentfiles.Options{
			Groups: store, Instances: knownInstance{i},
			Renderer: &agentfiles.Renderer{
				Config: store.Config,
				Facts:  func(*groups.Group, *instance.Instance) provision.FileFacts { return provision.FileFacts{} },
			},
			LastReport: func(string) *nstancev1.HealthReportRequest { return &nstancev1.HealthReportRequest{} },
			Failed:     func(_ instance.GroupKey, _ string, err error) { t.Error(err) },
		})
		runtest.Start(t, pusher.Run)
		service := &AgentService{Registrar: &agents.Registrar{Instances: &admittedOnce{instance: i}}, Files: pusher}
		ctx, end := context.WithCancel(context.WithValue(context.WithValue(t.Context(), clientKey{}, client), certificateKey{}, certificate))
		defer end()
		stream := &fileStream{ctx: ctx, end: end}
		expectStatus(t, "the stream", service.ReceiveFiles(stream), codes.PermissionDenied, "another public key")
		assert.Empty(t, stream.sent)
	})
}
