// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"nstance.dev/operator/pkg/base/audit"
)

// NameRequest is the interceptor that puts the request id of a call and its client into
// the context: every line that is logged for the call has the id. It must follow that of
// Authorize.
func NameRequest(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(audit.WithRequest(ctx, audit.Request{ID: requestID(ctx), Writer: writer(ctx)}), request)
}

// requestID returns the request id that the client has sent. One that is missing or not
// valid is replaced by a new one, and not logged: it could forge lines of the log.
func requestID(ctx context.Context) string {
	sent := metadata.ValueFromIncomingContext(ctx, audit.RequestIDKey)
	if len(sent) == 1 && audit.ValidRequestID(sent[0]) {
		return sent[0]
	}
	return audit.NewRequestID()
}

// writer returns the client of a call as its certificate names it, with the serial number,
// because several clients can have one id.
func writer(ctx context.Context) string {
	client := clientFrom(ctx)
	certificate := certificateFrom(ctx)
	if certificate == nil || certificate.SerialNumber == nil {
		return client.ID
	}
	return fmt.Sprintf("%s, certificate %s", client.ID, certificate.SerialNumber.Text(16))
}
