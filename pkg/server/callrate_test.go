// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// All operators of a tenant share a number of calls in a second. Further ones are refused with the
// limit, and do nothing, and other tenants make theirs.
func TestCallsOfATenantAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Prepare(t, servertest.Options{InMemory: true, MaxCallsPerSecond: 2})
		s.Launch()
		s.UntilListening()
		s.UntilHealthy()
		operators := []nstancev1.OperatorServiceClient{s.Operator("default"), s.Operator("default")}
		list := func(ctx context.Context, operator nstancev1.OperatorServiceClient) error {
			_, err := operator.ListGroups(ctx, &emptypb.Empty{})
			return err
		}
		// The connections take time.
		for _, operator := range operators {
			require.NoError(t, list(t.Context(), operator))
		}
		<-time.After(time.Minute)
		// accepted returns how many of many calls at one moment are accepted.
		accepted := func() int {
			count := 0
			for i := range 100 {
				err := list(t.Context(), operators[i%len(operators)])
				if err == nil {
					count++
					continue
				}
				assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
				assert.ErrorContains(t, err, "tenant default makes more than 2 calls a second")
				assert.ErrorContains(t, err, "shard.max_calls_per_second")
			}
			return count
		}
		assert.Equal(t, 20, accepted(), "ten times as many at once")

		_, err := operators[0].UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
			Key: "late", Config: &nstancev1.GroupConfig{Template: "worker", Size: 1},
		})
		assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
		watch, err := operators[0].WatchGroups(t.Context(), &emptypb.Empty{})
		if err == nil {
			_, err = watch.Recv()
		}
		assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
		require.NoError(t, list(t.Context(), s.Operator("other")), "another tenant")

		<-time.After(3 * time.Second)
		assert.Equal(t, 6, accepted(), "calls after three seconds")
		<-time.After(time.Second)
		groups, err := operators[0].ListGroups(t.Context(), &emptypb.Empty{})
		require.NoError(t, err)
		assert.Empty(t, groups.GetGroups(), "a call that was refused has done nothing")
		s.Stop()
	})
}
