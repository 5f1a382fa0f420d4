// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"context"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Call is a call that a server received, even if it rejected the call.
type Call struct {
	// Method is the name of the method, such as UpsertGroup.
	Method string
	// Request is nil for a stream.
	Request proto.Message
	// At is when the call arrived.
	At time.Time
}

// Recorder records the calls that a server received.
type Recorder struct {
	mu    sync.Mutex
	calls []Call
}

// Calls returns the calls of the methods named, or all, in the order of their
// arrival.
func (r *Recorder) Calls(methods ...string) []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var calls []Call
	for _, call := range r.calls {
		if len(methods) == 0 || slices.Contains(methods, call.Method) {
			calls = append(calls, call)
		}
	}
	return calls
}

// Upserts returns the requests to change a group, in the order of their
// arrival.
func (r *Recorder) Upserts(group string) []*nstancev1.UpsertGroupRequest {
	var requests []*nstancev1.UpsertGroupRequest
	for _, call := range r.Calls("UpsertGroup") {
		if request, ok := call.Request.(*nstancev1.UpsertGroupRequest); ok && request.GetKey() == group {
			requests = append(requests, request)
		}
	}
	return requests
}

func (r *Recorder) record(fullMethod string, request proto.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, Call{Method: path.Base(fullMethod), Request: request, At: time.Now()})
}

func (r *Recorder) recordUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	message, _ := request.(proto.Message)
	r.record(info.FullMethod, message)
	return handler(ctx, request)
}

func (r *Recorder) recordStream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	r.record(info.FullMethod, nil)
	return handler(server, stream)
}
