// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/operator/shard"
)

func TestErrorKinds(t *testing.T) {
	tests := []struct {
		name        string
		err         error
		unreachable bool
		rejected    bool
		message     string
	}{
		{"no error", nil, false, false, ""},
		{"unavailable", status.Error(codes.Unavailable, "connection refused"), true, false, "connection refused"},
		{"deadline exceeded", status.Error(codes.DeadlineExceeded, "too late"), true, false, "too late"},
		{"connection closed during the call", status.Error(codes.Canceled, "closing"), true, false, "closing"},
		{"canceled by the caller", context.Canceled, false, false, "context canceled"},
		{"invalid argument", status.Error(codes.InvalidArgument, "bad key"), false, true, "bad key"},
		{"failed precondition", status.Error(codes.FailedPrecondition, "is static"), false, true, "is static"},
		{"internal with the reason", status.Error(codes.Internal, "unknown template"), false, true, "unknown template"},
		{"internal without a reason", status.Error(codes.Internal, ""), false, false, ""},
		{"unauthenticated", status.Error(codes.Unauthenticated, "no certificate"), false, false, "no certificate"},
		{"not from a server", errors.New("other"), false, false, "other"},
		{"unknown shard", shard.ErrUnknownShard, false, false, "shard is not configured"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			check(t, test.err, test.unreachable, test.rejected, test.message)
			if _, ok := status.FromError(test.err); ok && test.err != nil {
				wrapped := fmt.Errorf("sync: %w", fmt.Errorf("upsert group %q: %w", "workers", test.err))
				check(t, wrapped, test.unreachable, test.rejected, test.message)
			}
		})
	}
}

func check(t *testing.T, err error, unreachable, rejected bool, message string) {
	t.Helper()
	assert.Equal(t, unreachable, shard.IsUnreachable(err), "IsUnreachable(%v)", err)
	assert.Equal(t, rejected, shard.IsRejected(err), "IsRejected(%v)", err)
	assert.Equal(t, message, shard.Message(err), "Message(%v)", err)
}

func TestIsUnclear(t *testing.T) {
	for _, err := range []error{
		status.Error(codes.Internal, "unknown template"),
		fmt.Errorf("sync: %w", status.Error(codes.Internal, "stream terminated by RST_STREAM with error code: INTERNAL_ERROR")),
	} {
		assert.True(t, shard.IsUnclear(err), "%v", err)
	}
	for _, err := range []error{nil, status.Error(codes.Internal, ""), status.Error(codes.InvalidArgument, "bad key"), errors.New("other")} {
		assert.False(t, shard.IsUnclear(err), "%v", err)
	}
}

// Only the detail distinguishes a stale request from a rejected configuration.
func TestIsStale(t *testing.T) {
	with := func(code codes.Code, detail *errdetails.ErrorInfo) error {
		detailed, err := status.New(code, "older").WithDetails(&errdetails.RetryInfo{}, detail)
		require.NoError(t, err)
		return fmt.Errorf("upsert group %q: %w", "workers", detailed.Err())
	}
	stale := &errdetails.ErrorInfo{Domain: "nstance.dev", Reason: "STALE_REVISION"}
	for name, test := range map[string]struct {
		err             error
		stale, rejected bool
	}{
		"stale":                   {with(codes.FailedPrecondition, stale), true, false},
		"another reason":          {with(codes.FailedPrecondition, &errdetails.ErrorInfo{Domain: "nstance.dev", Reason: "OTHER"}), false, true},
		"the reason of others":    {with(codes.FailedPrecondition, &errdetails.ErrorInfo{Domain: "example.com", Reason: "STALE_REVISION"}), false, true},
		"another code":            {with(codes.InvalidArgument, stale), false, true},
		"a rejected config":       {status.Error(codes.FailedPrecondition, "is static"), false, true},
		"no error":                {nil, false, false},
		"an error without a code": {errors.New("other"), false, false},
	} {
		assert.Equal(t, test.stale, shard.IsStale(test.err), "%s: IsStale", name)
		assert.Equal(t, test.rejected, shard.IsRejected(test.err), "%s: IsRejected", name)
	}
}

// Servers reject other calls with PermissionDenied too.
func TestIsOtherCluster(t *testing.T) {
	of := func(code codes.Code, domain, reason string) error {
		detailed, err := status.New(code, "no").WithDetails(&errdetails.ErrorInfo{Domain: domain, Reason: reason})
		require.NoError(t, err)
		return detailed.Err()
	}
	other := of(codes.PermissionDenied, "nstance.dev", "OTHER_KUBERNETES_CLUSTER")
	assert.True(t, shard.IsOtherCluster(other))
	assert.True(t, shard.IsOtherCluster(fmt.Errorf("list: %w", other)))
	for _, err := range []error{
		nil,
		status.Error(codes.PermissionDenied, "another role"),
		of(codes.PermissionDenied, "nstance.dev", "OTHER"),
		of(codes.PermissionDenied, "example.org", "OTHER_KUBERNETES_CLUSTER"),
		of(codes.Unavailable, "nstance.dev", "OTHER_KUBERNETES_CLUSTER"),
	} {
		assert.False(t, shard.IsOtherCluster(err), "%v", err)
	}
}

func TestIsNotServing(t *testing.T) {
	of := func(code codes.Code, reason string) error {
		detailed, err := status.New(code, "text").WithDetails(&errdetails.ErrorInfo{Domain: "nstance.dev", Reason: reason})
		require.NoError(t, err)
		return detailed.Err()
	}
	blocked := of(codes.Unavailable, "NOT_SERVING")
	assert.True(t, shard.IsNotServing(fmt.Errorf("list: %w", blocked)))
	assert.True(t, shard.IsUnreachable(blocked))
	for _, err := range []error{nil, status.Error(codes.Unavailable, "no leader"), of(codes.Unavailable, "OTHER"), of(codes.PermissionDenied, "NOT_SERVING")} {
		assert.False(t, shard.IsNotServing(err), "%v", err)
	}
}

// gRPC itself may return ResourceExhausted without the detail.
func TestIsOutOfCapacity(t *testing.T) {
	of := func(code codes.Code, reason string) error {
		detailed, err := status.New(code, "text").WithDetails(&errdetails.ErrorInfo{Domain: "nstance.dev", Reason: reason})
		require.NoError(t, err)
		return fmt.Errorf("create an instance: %w", detailed.Err())
	}
	declined := of(codes.ResourceExhausted, "OUT_OF_CAPACITY")
	assert.True(t, shard.IsOutOfCapacity(declined))
	assert.True(t, shard.IsDeclined(declined))
	assert.False(t, shard.IsRejected(declined))
	for _, err := range []error{nil, status.Error(codes.ResourceExhausted, "message too large"), of(codes.ResourceExhausted, "OTHER"), of(codes.Unavailable, "OUT_OF_CAPACITY")} {
		assert.False(t, shard.IsOutOfCapacity(err), "%v", err)
		assert.False(t, shard.IsDeclined(err), "%v", err)
	}
}

// A broken connection causes Internal, as some rejections do.
func TestIsDeclined(t *testing.T) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		want := code == codes.InvalidArgument || code == codes.FailedPrecondition
		if got := shard.IsDeclined(fmt.Errorf("create an instance: %w", status.Error(code, "text"))); got != want {
			t.Errorf("IsDeclined of %s is %t, want %t", code, got, want)
		}
	}
}
