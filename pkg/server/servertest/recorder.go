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
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/server/pki"
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
	// Err is the error that the server has returned. A stream has none.
	Err error
}

// Recorder records the calls that a server received.
type Recorder struct {
	mu      sync.Mutex
	calls   []Call
	streams []*Stream
}

// Stream is a stream that a server has accepted.
type Stream struct {
	// Method is the name of the method, such as WatchGroups.
	Method string
	// Client is the client of the certificate.
	Client pki.Client
	// Begin and End are when the stream was opened and closed. End is zero while it is open.
	Begin, End time.Time
}

// Streams returns the streams of a method that a client has opened and the server accepted, in the
// order in which they were opened.
func (r *Recorder) Streams(client pki.Client, method string) []Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	var streams []Stream
	for _, stream := range r.streams {
		if stream.Client == client && stream.Method == method {
			streams = append(streams, *stream)
		}
	}
	return streams
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

// unrecorded is the metadata of calls that are not recorded.
const unrecorded = "unrecorded"

// record returns the index of the call.
func (r *Recorder) record(fullMethod string, request proto.Message) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, Call{Method: path.Base(fullMethod), Request: request, At: time.Now()})
	return len(r.calls) - 1
}

func (r *Recorder) recordUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if len(metadata.ValueFromIncomingContext(ctx, unrecorded)) > 0 {
		return handler(ctx, request)
	}
	message, _ := request.(proto.Message)
	n := r.record(info.FullMethod, message)
	response, err := handler(ctx, request)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[n].Err = err
	return response, err
}

func (r *Recorder) recordStream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	r.record(info.FullMethod, nil)
	recorded := &recordedStream{ServerStream: stream, recorder: r, method: path.Base(info.FullMethod)}
	defer recorded.close()
	return handler(server, recorded)
}

// recordedStream records itself when its first message is received, which is after the server has
// accepted the client.
type recordedStream struct {
	grpc.ServerStream
	recorder *Recorder
	method   string
	// opened is nil until the first message.
	opened *Stream
}

// RecvMsg receives a message, which every stream has: the request if the client sends only one.
func (s *recordedStream) RecvMsg(message any) error {
	err := s.ServerStream.RecvMsg(message)
	if err == nil && s.opened == nil {
		s.open()
	}
	return err
}

func (s *recordedStream) open() {
	s.opened = &Stream{Method: s.method, Begin: time.Now()}
	if p, ok := peer.FromContext(s.Context()); ok {
		if info, ok := p.AuthInfo.(interface{ TLS() credentials.TLSInfo }); ok {
			// The server has checked that the certificate names a client.
			s.opened.Client, _ = pki.PeerClient(info.TLS().State.PeerCertificates[0])
		}
	}
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	s.recorder.streams = append(s.recorder.streams, s.opened)
}

func (s *recordedStream) close() {
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	if s.opened != nil {
		s.opened.End = time.Now()
	}
}
