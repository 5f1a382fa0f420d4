// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"nstance.dev/operator/pkg/base/identifier"
)

// clusterOptions returns the options that add the Kubernetes cluster to each call, none
// if cluster is empty.
func clusterOptions(cluster string) []grpc.DialOption {
	if cluster == "" {
		return nil
	}
	name := func(ctx context.Context) context.Context {
		return metadata.AppendToOutgoingContext(ctx, identifier.KubernetesClusterKey, cluster)
	}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
		) error {
			return invoke(name(ctx), method, request, reply, cc, options...)
		}),
		grpc.WithChainStreamInterceptor(func(
			ctx context.Context, description *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return open(name(ctx), description, cc, method, options...)
		}),
	}
}
