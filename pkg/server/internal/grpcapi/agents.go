// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/agents"
	"nstance.dev/operator/pkg/server/internal/agents/agentfiles"
	"nstance.dev/operator/pkg/server/internal/agents/agenthealth"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/registration/nonce"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// AgentService is the gRPC service of that name during one term. Its clients are the
// agents of the shard's instances; each call is about the instance of the certificate.
type AgentService struct {
	Registrar *agents.Registrar
	Health    *agenthealth.Tracker
	Files     *agentfiles.Pusher
}

// closeStreams does nothing: the contexts of all streams end with the term.
func (*AgentService) closeStreams() {}

// register returns the first certificate of an agent.
func (s *AgentService) register(ctx context.Context, request *nstancev1.RegisterClientRequest) (*nstancev1.RegisterClientResponse, error) {
	certificate, err := s.Registrar.Register(ctx, agents.Request{
		Token:        request.GetRegistrationNonceJwt(),
		PublicKeyPEM: request.GetPublicKeyPem(),
		Machine:      agents.Machine{IPv4: request.GetPrivateIpv4(), IPv6: request.GetPrivateIpv6(), Hostname: request.GetHostname()},
	})
	if err != nil {
		klog.FromContext(ctx).Info("Rejected the registration of an agent", "reason", err.Error())
		return nil, withCode(err, codes.Unavailable, map[error]codes.Code{
			nonce.ErrInvalid:          codes.Unauthenticated,
			registration.ErrMismatch:  codes.InvalidArgument,
			registration.ErrPublicKey: codes.InvalidArgument,
			agents.ErrMachine:         codes.InvalidArgument,
		})
	}
	return &nstancev1.RegisterClientResponse{
		ClientCertificatePem: pki.EncodeCertificate(certificate),
		ExpiresAt:            timestamppb.New(certificate.NotAfter),
	}, nil
}

// RenewCertificate returns the caller's next certificate, for the key that it has
// registered with.
func (s *AgentService) RenewCertificate(ctx context.Context, request *nstancev1.RenewCertificateRequest) (*nstancev1.RenewCertificateResponse, error) {
	certificate, err := s.Registrar.Renew(ctx, clientFrom(ctx), certificateFrom(ctx), request.GetPublicKeyPem())
	if err != nil {
		klog.FromContext(ctx).Info("Rejected the renewal of a certificate", "reason", err.Error())
		return nil, agentStatus(err)
	}
	return &nstancev1.RenewCertificateResponse{
		ClientCertificatePem: pki.EncodeCertificate(certificate),
		ExpiresAt:            timestamppb.New(certificate.NotAfter),
	}, nil
}

// admit returns the instance of the caller.
func (s *AgentService) admit(ctx context.Context) (instance.Instance, error) {
	i, err := s.Registrar.Admit(ctx, clientFrom(ctx), certificateFrom(ctx))
	if err != nil {
		klog.FromContext(ctx).Info("Rejected a call", "reason", err.Error())
		return i, agentStatus(err)
	}
	return i, nil
}

// agentStatus returns the gRPC status of an error of agents.Registrar.
func agentStatus(err error) error {
	return withCode(err, codes.Unavailable, map[error]codes.Code{
		agents.ErrInstance:        codes.PermissionDenied,
		registration.ErrPublicKey: codes.InvalidArgument,
	})
}

// checkInstanceID returns an error if a request names another instance than the
// certificate of the caller.
func checkInstanceID(ctx context.Context, id string) error {
	if client := clientFrom(ctx); id != client.ID {
		return status.Errorf(codes.PermissionDenied, "instance_id is %q, the certificate is that of instance %q", id, client.ID)
	}
	return nil
}

// received is a message of a stream, or its end.
type received[T any] struct {
	message *T
	err     error
}

// messagesOf returns a channel of the messages of a stream. The goroutine that fills it ends
// when the handler of the stream has returned.
func messagesOf[T, Response any](stream grpc.ClientStreamingServer[T, Response]) <-chan received[T] {
	messages := make(chan received[T])
	ctx := stream.Context()
	go func() {
		for {
			message, err := stream.Recv()
			select {
			case messages <- received[T]{message, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return messages
}

// errReplaced is the status of a stream whose agent has opened another one.
var errReplaced = status.Error(codes.Aborted, "another stream of this instance has replaced this one")
