// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/base/identifier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// ErrUnknownShard is returned by calls to a shard that has no endpoint.
var ErrUnknownShard = errors.New("shard is not configured")

// ErrRemoved is the cause (see context.Cause) with which the context of a shard is
// canceled when the shard was removed from the configuration. Only then may caches
// drop the shard: for a new address or a shutdown the cause is another.
var ErrRemoved = errors.New("shard was removed from the configuration")

// WrongServerError is the error of calls to a shard at whose address the server of
// another shard or cluster listens. The shard is unreachable: the call was not made, or
// only read and its reply ignored.
type WrongServerError struct {
	// Want and Got are the names of the servers (identifier.ServerURI).
	Want, Got string
	// Unverified is set instead of both for a server that names no shard: why it is not
	// taken for the server of the shard.
	Unverified string
}

func (e *WrongServerError) Error() string {
	if e.Unverified != "" {
		return e.Unverified
	}
	return fmt.Sprintf("the server at the address of the shard is %s, not %s", e.Got, e.Want)
}

// GRPCStatus makes the error Unavailable.
func (e *WrongServerError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}

// IsWrongServer reports whether err, wrapped or not, is a WrongServerError.
func IsWrongServer(err error) bool {
	_, ok := errors.AsType[*WrongServerError](err)
	return ok
}

// IsOtherCluster reports whether err, wrapped or not, means that the tenant belongs to
// another Kubernetes cluster than the one that the operator runs in. The call had no
// effect.
func IsOtherCluster(err error) bool {
	return code(err) == codes.PermissionDenied && hasReason(err, identifier.OtherClusterReason)
}

// IsUnreachable reports whether err, wrapped or not, means that the shard did not
// reply: Unavailable, DeadlineExceeded, or Canceled because the connection was
// closed during the call. The call may have had its effect. IsUnreachable is false
// for a call that the caller itself canceled; its error wraps context.Canceled.
func IsUnreachable(err error) bool {
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	case codes.Canceled:
		return !errors.Is(err, context.Canceled)
	}
	return false
}

// IsNotServing reports whether err, wrapped or not, means that the server of the shard
// cannot serve before an administrator does something. Such an error is unreachable too.
func IsNotServing(err error) bool {
	return code(err) == codes.Unavailable && hasReason(err, nstancev1.ReasonNotServing)
}

// hasReason reports whether err has the detail of this project with a reason.
func hasReason(err error, reason string) bool {
	for _, detail := range status.Convert(err).Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if ok && info.GetDomain() == nstancev1.ErrorDomain && info.GetReason() == reason {
			return true
		}
	}
	return false
}

// IsRejected reports whether err, wrapped or not, means that the server rejected
// the request: InvalidArgument, FailedPrecondition, or Internal with a text. The
// same request is rejected again until the server's configuration changes. Servers
// return Internal for violated restrictions of static groups and for unknown
// templates, with the reason in the text (docs/protocol.md#errors). See IsUnclear. A
// request that is only stale is not rejected.
func IsRejected(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return !IsStale(err)
	case codes.Internal:
		return IsUnclear(err)
	}
	return false
}

// IsUnclear reports whether err, wrapped or not, is Internal with a text: either a
// rejection, or a call whose connection broke, which may have had its effect. The texts
// of servers are constant, so one that is returned again is a rejection.
func IsUnclear(err error) bool {
	return code(err) == codes.Internal && Message(err) != ""
}

// IsStale reports whether err, wrapped or not, means that the server has accepted a
// newer revision than that of the request. The call had no effect, and the
// configuration in the request is not the reason.
func IsStale(err error) bool {
	return code(err) == codes.FailedPrecondition && hasReason(err, nstancev1.ReasonStaleRevision)
}

// IsOutOfCapacity reports whether err, wrapped or not, means that the server declines a
// create request because its provider has no capacity. The call had no effect.
// ResourceExhausted without the detail may come from the transport.
func IsOutOfCapacity(err error) bool {
	return code(err) == codes.ResourceExhausted && hasReason(err, nstancev1.ReasonOutOfCapacity)
}

// IsDeclined reports whether err, wrapped or not, is a rejection that only the server can
// cause: InvalidArgument, FailedPrecondition, or a lack of capacity. The call had no effect.
// Internal, which IsRejected accepts too, is also the code of a call whose
// connection broke, and such a call may have had its effect.
func IsDeclined(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return true
	}
	return IsOutOfCapacity(err)
}

// IsUnauthenticated reports whether err, wrapped or not, means that the server does not
// accept the client certificate.
func IsUnauthenticated(err error) bool { return code(err) == codes.Unauthenticated }

// IsNotFound reports whether err, wrapped or not, means that the server does not
// have the requested object.
func IsNotFound(err error) bool { return code(err) == codes.NotFound }

// Message returns the server's own text in err, without the text of wrapping
// errors, fit for the message of a condition. For an error that did not come from a
// server it returns the text of err, and for nil an empty string.
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

// code returns the gRPC code of err; codes.Unknown when err has none.
func code(err error) codes.Code {
	return status.Code(err)
}
