// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"

	"google.golang.org/grpc"

	"nstance.dev/operator/pkg/base/audit"
)

// sendRequestID is the interceptor that adds the request id to each call: that of its
// context, or a new one. A caller that repeats a call has a new id each time, because the
// server logs each call that it accepts (docs/protocol.md#request-ids).
func sendRequestID(
	ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	return invoke(audit.Outgoing(ctx), method, request, reply, cc, options...)
}
