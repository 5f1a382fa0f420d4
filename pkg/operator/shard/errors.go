// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/base/identifier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// ErrUnknownShard means that the shard of a call has no endpoint.
var ErrUnknownShard = errors.New("shard is not configured")

// ErrRemoved is the cause (context.Cause) of the end of a shard's context when the shard was
// removed from the configuration. Caches drop the shard only for this cause, and not after a
// change of the address or a shutdown.
var ErrRemoved = errors.New("shard was removed from the configuration")

// WrongServerError means that the server of another shard or cluster listens at the address of a
// shard. The shard counts as unreachable: the call was not sent, or it was a read whose reply is
// ignored.
type WrongServerError struct {
	// Want and Got name the servers (identifier.ServerURI).
	Want, Got string
	// Unverified is set instead of Want and Got for a server that names no shard. It is the
	// reason why the server may not belong to the shard.
	Unverified string
}

func (e *WrongServerError) Error() string {
	if e.Unverified != "" {
		return e.Unverified
	}
	return fmt.Sprintf("the server at the address of the shard is %s, not %s", e.Got, e.Want)
}

// GRPCStatus gives the error the code Unavailable, so that IsUnreachable is true.
func (e *WrongServerError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}

// IsWrongServer reports whether err wraps a WrongServerError.
func IsWrongServer(err error) bool {
	_, ok := errors.AsType[*WrongServerError](err)
	return ok
}

// IsOtherCluster reports whether err, wrapped or not, means that the tenant belongs to another
// Kubernetes cluster than the operator's. The call had no effect.
func IsOtherCluster(err error) bool {
	return code(err) == codes.PermissionDenied && hasReason(err, identifier.OtherClusterReason)
}

// IsUnreachable reports whether err, wrapped or not, means that the shard did not reply:
// Unavailable, DeadlineExceeded, or Canceled because the connection was closed during the
// call. The call may have had an effect. IsUnreachable is false if the caller canceled the
// call; the error then wraps context.Canceled.
func IsUnreachable(err error) bool {
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	case codes.Canceled:
		return !errors.Is(err, context.Canceled)
	}
	return false
}

// IsNotServing reports whether err, wrapped or not, means that the server cannot serve until
// an administrator acts. IsUnreachable is true for such an error too.
func IsNotServing(err error) bool {
	return code(err) == codes.Unavailable && hasReason(err, nstancev1.ReasonNotServing)
}

// hasReason reports whether err has an ErrorInfo of this project with a reason.
func hasReason(err error, reason string) bool {
	for _, detail := range status.Convert(err).Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if ok && info.GetDomain() == nstancev1.ErrorDomain && info.GetReason() == reason {
			return true
		}
	}
	return false
}

// IsRejected reports whether err, wrapped or not, means that the server rejected the request:
// InvalidArgument, FailedPrecondition, or Internal with a text. The same request is rejected
// again until the server's configuration changes. Servers return Internal for violated
// restrictions of static groups and for unknown templates, with the reason in the text
// (docs/protocol.md#errors); see IsUnclear. IsRejected is false for a request that is only
// stale.
func IsRejected(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return !IsStale(err)
	case codes.Internal:
		return IsUnclear(err)
	}
	return false
}

// IsUnclear reports whether err, wrapped or not, is Internal with a text. It is either a
// rejection, or the connection broke, and the call may have had an effect. The texts of
// servers are constant: if the same text is returned again, it is a rejection.
func IsUnclear(err error) bool {
	return code(err) == codes.Internal && Message(err) != ""
}

// IsStale reports whether err, wrapped or not, means that the server has accepted a newer
// revision than the revision of the request. The call had no effect. The configuration in the
// request may be valid.
func IsStale(err error) bool {
	return code(err) == codes.FailedPrecondition && hasReason(err, nstancev1.ReasonStaleRevision)
}

// IsOutOfCapacity reports whether err, wrapped or not, means that the server declines a create
// request because its provider has no capacity. The call had no effect. gRPC itself may return
// ResourceExhausted without the detail.
func IsOutOfCapacity(err error) bool {
	return code(err) == codes.ResourceExhausted && hasReason(err, nstancev1.ReasonOutOfCapacity)
}

// IsDeclined reports whether err, wrapped or not, is certainly a rejection by the server:
// InvalidArgument, FailedPrecondition, or a lack of capacity. The call had no effect.
// IsRejected also accepts Internal, which a broken connection can cause.
func IsDeclined(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return true
	}
	return IsOutOfCapacity(err)
}

// IsUnauthenticated reports whether err, wrapped or not, means that the server does not accept
// the client certificate.
func IsUnauthenticated(err error) bool { return code(err) == codes.Unauthenticated }

// IsNotFound reports whether err, wrapped or not, means that the server does not have the
// requested object.
func IsNotFound(err error) bool { return code(err) == codes.NotFound }

// Message returns the server's text in err without the text of wrapping errors, short enough
// for the message of a condition. If err did not come from a server, it returns the text of
// err; for nil it returns "".
func Message(err error) string {
	if err == nil {
		return ""
	}
	if reply, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return reply.GRPCStatus().Message()
	}
	return err.Error()
}

// code returns the gRPC code of err; codes.Unknown if it is not a gRPC error.
func code(err error) codes.Code {
	return status.Code(err)
}

// ErrorEvent is an error that a shard server reports on its own and not in reply to a call:
// for example, its provider cannot create an instance, or its configuration is invalid.
type ErrorEvent struct {
	// Group is the key of the affected group; empty if the error affects the whole shard.
	Group string
	// InstanceID is the id of the affected instance; empty if no single instance is affected.
	InstanceID string
	// Message is the server's text, cut off at MaxText.
	Message string
	// Time is when the error happened, by the server's clock; zero if the server does not
	// report it.
	Time time.Time
}
