// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/sets"

	"nstance.dev/operator/pkg/operator/shard/internal/conninfo"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// errNotVerified is the error of a call to a server that names no shard, before it is
// known whether it is that of the shard.
var errNotVerified = status.Error(codes.Unavailable, "the server names no shard, and its groups have not been compared with the shard's yet")

// beforeVerification are the methods that change nothing. The informers ignore the
// replies of a server that is not verified.
var beforeVerification = sets.New(
	nstancev1.OperatorService_ListGroups_FullMethodName,
	nstancev1.OperatorService_WatchGroups_FullMethodName,
	nstancev1.OperatorService_WatchInstances_FullMethodName,
	nstancev1.OperatorService_WatchErrors_FullMethodName,
	nstancev1.OperatorService_GetConfigStatus_FullMethodName,
)

// verifiedOnly refuses all other calls on connections whose server is not verified. It
// is per-RPC credentials, because gRPC calls those after it has selected the connection
// of a call and before it sends anything: a server that another one replaces at the same
// address has another connection.
type verifiedOnly struct{}

func (verifiedOnly) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	request, _ := credentials.RequestInfoFromContext(ctx)
	info, _ := request.AuthInfo.(*conninfo.Info)
	if info.Verified() || beforeVerification.Has(request.Method) || conninfo.IsVerifying(ctx) {
		return nil, nil
	}
	return nil, errNotVerified
}

func (verifiedOnly) RequireTransportSecurity() bool { return false }
