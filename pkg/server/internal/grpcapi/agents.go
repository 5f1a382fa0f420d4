// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/agents"
	"nstance.dev/operator/pkg/server/internal/agents/agentfiles"
	"nstance.dev/operator/pkg/server/internal/agents/agenthealth"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// AgentService implements the gRPC service AgentService during one term. Its clients are the
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
	if err := checkPossession(request); err != nil {
		return nil, err
	}
	if len(request.GetExpiredCertificatePem()) > 0 && len(request.GetCertificateRequest()) == 0 {
		// A handshake would prove that the caller has the key.
		return nil, status.Error(codes.InvalidArgument, "certificate_request: is required with expired_certificate_pem")
	}
	certificate, err := s.Registrar.Register(ctx, agents.Request{
		Token:        request.GetRegistrationNonceJwt(),
		PublicKeyPEM: request.GetPublicKeyPem(),
		Expired:      request.GetExpiredCertificatePem(),
		Machine:      agents.Machine{IPv4: request.GetPrivateIpv4(), IPv6: request.GetPrivateIpv6(), Hostname: request.GetHostname()},
		Source:       sourceOf(ctx),
		Trusted:      request.GetTrustedAuthorities(),
		Identity:     request.GetMachineIdentity(),
	})
	if err != nil {
		klog.FromContext(ctx).Info("Rejected the registration of an agent", "reason", err.Error())
		return nil, withCode(err, codes.Unavailable, map[error]codes.Code{
			registration.ErrInvalidNonce: codes.Unauthenticated,
			registration.ErrMismatch:     codes.InvalidArgument,
			registration.ErrPublicKey:    codes.InvalidArgument,
			agents.ErrMachine:            codes.InvalidArgument,
			agents.ErrSource:             codes.PermissionDenied,
			agents.ErrAttestation:        codes.PermissionDenied,
		})
	}
	return &nstancev1.RegisterClientResponse{
		ClientCertificatePem: pki.EncodeCertificate(certificate),
		ExpiresAt:            timestamppb.New(certificate.NotAfter),
		AuthoritiesPem:       s.Registrar.Authority.CertificatePEM(),
	}, nil
}

// sourceOf returns the address that a call comes from, the zero value if it is unknown.
func sourceOf(ctx context.Context) netip.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		if address, err := netip.ParseAddrPort(p.Addr.String()); err == nil {
			return address.Addr().Unmap()
		}
	}
	return netip.Addr{}
}

// RenewCertificate returns the caller's next certificate, for its present key or another.
func (s *AgentService) RenewCertificate(ctx context.Context, request *nstancev1.RenewCertificateRequest) (*nstancev1.RenewCertificateResponse, error) {
	if err := checkPossession(request); err != nil {
		return nil, err
	}
	certificate, err := s.Registrar.Renew(ctx, clientFrom(ctx), certificateFrom(ctx), request.GetPublicKeyPem(), request.GetTrustedAuthorities()...)
	if err != nil {
		klog.FromContext(ctx).Info("Rejected the renewal of a certificate", "reason", err.Error())
		return nil, agentStatus(err)
	}
	return &nstancev1.RenewCertificateResponse{
		ClientCertificatePem: pki.EncodeCertificate(certificate),
		ExpiresAt:            timestamppb.New(certificate.NotAfter),
		AuthoritiesPem:       s.Registrar.Authority.CertificatePEM(),
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

// agentStatus returns the gRPC status for an error of agents.Registrar.
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

// errReplaced is the status of a stream whose agent has opened another stream.
var errReplaced = status.Error(codes.Aborted, "another stream of this instance has replaced this one")

const (
	// reportInterval is how often an agent may report in the long run, and reportBurst how
	// many reports it may send at once. Further reports are read later
	// (docs/server-reference.md#limits).
	reportInterval = 500 * time.Millisecond
	reportBurst    = 10
)

// SubmitHealthReport receives the reports of an agent until the agent closes the stream,
// opens another stream, or the term is over. A report with the id of another instance closes
// the stream with PermissionDenied, as does the deletion of the instance.
func (s *AgentService) SubmitHealthReport(stream grpc.ClientStreamingServer[nstancev1.HealthReportRequest, emptypb.Empty]) error {
	ctx := stream.Context()
	i, err := s.admit(ctx)
	if err != nil {
		return err
	}
	session := s.Health.Connect(&i.Record)
	defer session.Close()
	klog.FromContext(ctx).V(2).Info("An agent has connected", "instance", i.ID)
	limiter := rate.NewLimiter(rate.Every(reportInterval), reportBurst)
	reports := messagesOf(stream)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-session.Replaced():
			return errReplaced
		case report := <-reports:
			if errors.Is(report.err, io.EOF) {
				return stream.SendAndClose(&emptypb.Empty{})
			}
			if report.err != nil {
				return report.err
			}
			if err := checkInstanceID(ctx, report.message.GetInstanceId()); err != nil {
				return err
			}
			if _, err := s.admit(ctx); err != nil {
				return err
			}
			kept := s.Files.Trim(&i, report.message)
			session.Report(kept)
			s.Files.Reported(i.ID, kept)
			if err := limiter.Wait(ctx); err != nil {
				return err
			}
		}
	}
}

// ReceiveKeyRequests sends the names of the keys that the files of the caller's instance
// need, until the term is over or the agent opens another stream.
func (s *AgentService) ReceiveKeyRequests(stream grpc.ServerStreamingServer[nstancev1.KeyGenerationRequest]) error {
	ctx := stream.Context()
	i, err := s.admit(ctx)
	if err != nil {
		return err
	}
	session, end := s.Files.ReceiveKeyRequests(i.ID)
	defer end()
	return sendAll(ctx, session, func(names []string) error {
		if _, err := s.admit(ctx); err != nil {
			return err
		}
		return stream.Send(&nstancev1.KeyGenerationRequest{KeyNames: names})
	})
}

// SubmitPublicKeys receives keys of the caller's instance. Keys that no file needs are
// ignored. A key that cannot be used does not keep the others from being stored.
func (s *AgentService) SubmitPublicKeys(ctx context.Context, request *nstancev1.PublicKeysRequest) (*emptypb.Empty, error) {
	if err := checkInstanceID(ctx, request.GetInstanceId()); err != nil {
		return nil, err
	}
	i, err := s.admit(ctx)
	if err != nil {
		return nil, err
	}
	submitted, problems := map[string]crypto.PublicKey{}, map[string]string{}
	for name, problem := range request.GetErrors() {
		problems[name] = "the agent reports: " + problem
	}
	var errs []error
	for _, k := range request.GetKeys() {
		key, err := keys.ParseWorkload(k.GetPublicKeyPem())
		if err != nil {
			klog.FromContext(ctx).Info("Rejected a public key", "instance", i.ID, "reason", err.Error())
			problems[k.GetFilename()] = err.Error()
			errs = append(errs, fmt.Errorf("keys: %q: %w", k.GetFilename(), err))
			continue
		}
		submitted[k.GetFilename()] = key
	}
	s.Files.SubmitKeys(&i, submitted, problems)
	if err := errors.Join(errs...); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &emptypb.Empty{}, nil
}

// ReceiveFiles sends the files of the caller's instance, until the term is over or the agent
// opens another stream. Each patch has all files that can be made, and ends with a message that has the hash
// of the configuration.
func (s *AgentService) ReceiveFiles(stream grpc.ServerStreamingServer[nstancev1.FileTransfer]) error {
	ctx := stream.Context()
	i, err := s.admit(ctx)
	if err != nil {
		return err
	}
	session, end := s.Files.ReceiveFiles(i.ID)
	defer end()
	return sendAll(ctx, session, func(patch *agentfiles.Patch) error {
		if _, err := s.admit(ctx); err != nil {
			return err
		}
		for _, file := range patch.Files {
			err := stream.Send(&nstancev1.FileTransfer{Filename: file.Name, Content: file.Content, LastModified: timestamppb.New(patch.At)})
			if err != nil {
				return err
			}
		}
		return stream.Send(&nstancev1.FileTransfer{ConfigHash: patch.ConfigHash, Complete: !patch.Partial})
	})
}

// sendAll sends the values of a session until the term is over or the session is replaced.
func sendAll[T any](ctx context.Context, session *agentfiles.Session[T], send func(T) error) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-session.Replaced:
			return errReplaced
		case value := <-session.Next:
			if err := send(value); err != nil {
				return err
			}
		}
	}
}
