// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrUnknownShard is returned by calls to a shard that has no endpoint.
var ErrUnknownShard = errors.New("shard is not configured")

// ErrRemoved is the cause (see context.Cause) with which the work for a shard is
// ended when the shard has left the configuration. Only then may what is known
// of the shard be forgotten: a new address or a shutdown ends the work with
// another cause.
var ErrRemoved = errors.New("shard was removed from the configuration")

// IsUnreachable reports whether err, however it is wrapped, means that the shard
// gave no answer: Unavailable, DeadlineExceeded, or Canceled because the
// connection was closed under the call. The call may have had its effect. A call
// that the caller itself canceled is not counted; it wraps context.Canceled.
func IsUnreachable(err error) bool {
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	case codes.Canceled:
		return !errors.Is(err, context.Canceled)
	}
	return false
}

// IsRejected reports whether err, however it is wrapped, is the server's refusal
// of what was asked: InvalidArgument, FailedPrecondition, or Internal with a
// text. Asking the same again is pointless until the wish or the server's
// configuration changes. Servers answer Internal for broken restrictions of
// static groups and for unknown templates, with the reason in the text.
func IsRejected(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return true
	case codes.Internal:
		return Message(err) != ""
	}
	return false
}

// IsDeclined reports whether err, however it is wrapped, is a rejection that comes
// from the server and from nothing else: InvalidArgument or FailedPrecondition.
// Then nothing was done. Internal, which IsRejected counts too, is also what
// becomes of a connection that breaks under a call, and the call may have had its
// effect.
func IsDeclined(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return true
	}
	return false
}

// IsNotFound reports whether err, however it is wrapped, is the server's word that
// it does not know what was asked about.
func IsNotFound(err error) bool { return code(err) == codes.NotFound }

// Message returns the server's own words in err, without what was wrapped
// around them, fit for the message of a condition. For an error that did not
// come from a server it is the text of err, and for nil it is empty.
func Message(err error) string {
	if err == nil {
		return ""
	}
	if answer, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return answer.GRPCStatus().Message()
	}
	return err.Error()
}

// code is the gRPC code of err; codes.Unknown when err carries none.
func code(err error) codes.Code {
	return status.Code(err)
}
