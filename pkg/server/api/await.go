// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// await waits until take has an event for a stream: it returns nil until then,
// and wake tells that it is worth another try. When ctx ends or closed is
// closed, the error is a gRPC status.
func await[Event any](ctx context.Context, closed, wake <-chan struct{}, take func() *Event) (*Event, error) {
	for {
		// A stream that always has something to send must end too.
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-closed:
			return nil, status.Error(codes.Unavailable, "the server stops serving this shard")
		default:
		}
		if event := take(); event != nil {
			return event, nil
		}
		select {
		case <-ctx.Done():
		case <-closed:
		case <-wake:
		}
	}
}
