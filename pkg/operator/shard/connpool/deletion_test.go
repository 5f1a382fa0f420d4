// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// statusServer replies to the deletion of an instance with the id as its status.
type statusServer struct {
	nstancev1.UnimplementedOperatorServiceServer
}

func (statusServer) DeleteInstance(_ context.Context, request *nstancev1.DeleteInstanceRequest) (*nstancev1.DeleteInstanceResponse, error) {
	return &nstancev1.DeleteInstanceResponse{Status: request.GetInstanceId()}, nil
}

// An instance counts as deleted only if the server says so: the objects of the instance go
// away then, and nothing would delete it any more.
func TestOnlyADeletedInstanceIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		server := grpc.NewServer()
		nstancev1.RegisterOperatorServiceServer(server, statusServer{})
		go func() { _ = server.Serve(n.listen("a:1")) }()
		t.Cleanup(server.Stop)
		p := New(insecureOptions)
		p.options = append(p.options, grpc.WithContextDialer(n.dial))
		p.Set(map[string]shard.Endpoint{"a": endpoint("a:1")})
		runtest.Start(t, func(ctx context.Context) {
			p.Run(ctx, func(ctx context.Context, _ string, _ nstancev1.OperatorServiceClient) { <-ctx.Done() })
		})
		synctest.Wait()
		for status, want := range map[string]bool{
			"deleted": true, "deleting": false, "pending_deletion": false, "unknown": false, "a status of a later version": false, "": false,
		} {
			deleted, err := p.DeleteInstance(t.Context(), "a", status)
			require.NoError(t, err, "status %q", status)
			assert.Equal(t, want, deleted, "status %q", status)
		}
	})
}
