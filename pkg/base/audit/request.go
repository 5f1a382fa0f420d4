// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package audit

import (
	"context"

	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/klog/v2"
)

const (
	// RequestIDKey is the key of the gRPC metadata with the request id of a call
	// (docs/protocol.md#request-ids).
	RequestIDKey = "nstance-request-id"
	// maxRequestID is the maximum length of a request id in bytes.
	maxRequestID = 64
)

// Request is a call as far as later lines name it.
type Request struct {
	// ID is the request id.
	ID string
	// Writer is who has made the request.
	Writer string
	// Generation is that of the object that the request comes from, 0 if it is not known.
	Generation int64
}

// NewRequestID returns a new request id.
func NewRequestID() string { return string(uuid.NewUUID()) }

// ValidRequestID reports whether id can be logged and sent: it has 1 to 64 letters,
// digits, hyphens, underscores and dots. Anything else could look like another line or
// value of a log.
func ValidRequestID(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// requestKey is the context key of the Request.
type requestKey struct{}

// WithRequest returns the context of a call: the logger has the request id.
func WithRequest(ctx context.Context, request Request) context.Context {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), KeyRequestID, request.ID)
	return klog.NewContext(context.WithValue(ctx, requestKey{}, request), logger)
}

// WithNewRequest returns the context of a call with a new request id, and the id.
func WithNewRequest(ctx context.Context) (call context.Context, id string) {
	id = NewRequestID()
	return WithRequest(ctx, Request{ID: id}), id
}

// Outgoing returns ctx with the request id as metadata of outgoing calls: that of ctx, or a
// new one.
func Outgoing(ctx context.Context) context.Context {
	id := RequestFrom(ctx).ID
	if id == "" {
		id = NewRequestID()
	}
	return metadata.AppendToOutgoingContext(ctx, RequestIDKey, id)
}

// RequestFrom returns the Request of the call that ctx belongs to, the zero value if ctx
// belongs to none.
func RequestFrom(ctx context.Context) Request {
	request, _ := ctx.Value(requestKey{}).(Request)
	return request
}
