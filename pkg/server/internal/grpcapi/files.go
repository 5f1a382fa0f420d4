// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/internal/agents/agentfiles"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

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
// ignored.
func (s *AgentService) SubmitPublicKeys(ctx context.Context, request *nstancev1.PublicKeysRequest) (*emptypb.Empty, error) {
	if err := checkInstanceID(ctx, request.GetInstanceId()); err != nil {
		return nil, err
	}
	i, err := s.admit(ctx)
	if err != nil {
		return nil, err
	}
	submitted := map[string]ed25519.PublicKey{}
	for _, k := range request.GetKeys() {
		if submitted[k.GetFilename()], err = parseSubmitted(k.GetPublicKeyPem()); err != nil {
			klog.FromContext(ctx).Info("Rejected a public key", "instance", i.ID, "reason", err.Error())
			return nil, status.Errorf(codes.InvalidArgument, "keys: %q: %v", k.GetFilename(), err)
		}
	}
	s.Files.SubmitKeys(&i, submitted)
	return &emptypb.Empty{}, nil
}

// parseSubmitted reads PEM, or the key itself in base64 (docs/protocol.md#agents).
func parseSubmitted(data []byte) (ed25519.PublicKey, error) {
	if bytes.Contains(data, []byte("-----BEGIN")) {
		return keys.ParsePublic(data)
	}
	der, err := base64.StdEncoding.AppendDecode(nil, bytes.TrimSpace(data))
	if err != nil {
		return nil, errors.New("the public key is neither PEM nor base64")
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, errors.New("the public key is not PKIX")
	}
	key, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("the public key is %T, needs to be Ed25519", parsed)
	}
	return key, nil
}

// ReceiveFiles sends the files of the caller's instance, until the term is over or the
// agent opens another stream. Each patch has all files, and ends with a message that has
// the hash of the configuration.
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
		return stream.Send(&nstancev1.FileTransfer{ConfigHash: patch.ConfigHash, Complete: true})
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
