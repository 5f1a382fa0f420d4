// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package keyfiles

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/connection"
	"nstance.dev/operator/pkg/agent/retry"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	submitTimeout = 10 * time.Second
	// maxKeys is the maximum number of keys of one request.
	maxKeys = 100
)

// Creator creates the key pairs that the server requests.
type Creator struct {
	Connection *connection.Connection
	Store      *Store
	InstanceID string
}

// Run serves requests until ctx is done.
func (c *Creator) Run(ctx context.Context) {
	retry.Loop(ctx, "creating keys", c.serve)
}

// serve serves the requests of one stream. The server repeats a request whose public keys it
// did not receive.
func (c *Creator) serve(ctx context.Context) error {
	conn := c.Connection.Acquire()
	defer conn.Release()
	ctx, cancel := conn.UntilReplaced(ctx)
	defer cancel()
	stream, err := conn.ReceiveKeyRequests(ctx, &emptypb.Empty{})
	if err != nil {
		return connection.StreamError(ctx, err)
	}
	for {
		request, err := stream.Recv()
		if err != nil {
			return connection.StreamError(ctx, err)
		}
		if err := c.answer(ctx, conn, request); err != nil {
			return connection.StreamError(ctx, err)
		}
	}
}

func (c *Creator) answer(ctx context.Context, conn *connection.Conn, request *nstancev1.KeyGenerationRequest) error {
	logger := klog.FromContext(ctx)
	if count := len(request.GetKeyNames()); count > maxKeys {
		return fmt.Errorf("the server requested %d keys, at most %d are allowed", count, maxKeys)
	}
	submission := &nstancev1.PublicKeysRequest{InstanceId: c.InstanceID}
	for _, name := range request.GetKeyNames() {
		public, err := c.Store.PublicKey(name)
		if err != nil {
			logger.Error(err, "requested key failed")
			continue
		}
		submission.Keys = append(submission.Keys, &nstancev1.PublicKeySubmission{Filename: name, PublicKeyPem: public})
	}
	if len(submission.Keys) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, submitTimeout)
	defer cancel()
	_, err := conn.SubmitPublicKeys(ctx, submission)
	if status.Code(err) == codes.InvalidArgument {
		// It would reject them again, and other requests can be served.
		logger.Error(err, "server rejected public keys", "keys", request.GetKeyNames())
		return nil
	}
	if err != nil {
		return fmt.Errorf("submit %d public keys: %w", len(submission.Keys), err)
	}
	logger.Info("submitted public keys", "keys", request.GetKeyNames())
	return nil
}
