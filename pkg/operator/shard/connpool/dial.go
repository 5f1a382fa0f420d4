// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/sets"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/conninfo"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// With keepaliveTime and keepaliveTimeout the client detects a connection whose packets
	// are lost after 30 s. A server with gRPC's default policy counts pings that are less than
	// 5 min apart as strikes and closes the connection at the third strike
	// (https://github.com/grpc/grpc/blob/master/doc/keepalive.md). It resets the strikes
	// whenever it sends data, such as the reply to the list of informer.Groups about every 30
	// s, so that at most one ping is sent between two lists. A shorter time or rarer lists
	// would exceed the limit.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second

	// The delay between attempts to connect grows from firstConnectDelay to lastConnectDelay,
	// plus or minus connectJitter
	// (https://github.com/grpc/grpc/blob/master/doc/connection-backoff.md), so that a shard is
	// connected within 10 s after its recovery. An attempt times out after connectTimeout.
	firstConnectDelay  = 500 * time.Millisecond
	lastConnectDelay   = 4 * time.Second
	connectDelayGrowth = 1.6
	connectJitter      = 0.2
	connectTimeout     = 5 * time.Second

	// maxReceivedBytes is the maximum size of a reply. A list of 20,000 instances with their
	// provider ids is larger than gRPC's default of 4 MiB
	// (https://pkg.go.dev/google.golang.org/grpc#MaxCallRecvMsgSize).
	maxReceivedBytes = shard.MaxBytes
)

// dialOptions returns the options of a connection to an address, followed by more.
func dialOptions(address string, credentials credentials.TransportCredentials, more ...grpc.DialOption) []grpc.DialOption {
	handshakes := &handshakes{TransportCredentials: credentials, address: address}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(handshakes),
		grpc.WithPerRPCCredentials(verifiedOnly{}),
		grpc.WithChainUnaryInterceptor(handshakes.explain, sendRequestID),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:    keepaliveTime,
			Timeout: keepaliveTimeout,
			// Without a stream no events can be lost, and servers limit pings on such a
			// connection more strictly.
			PermitWithoutStream: false,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  firstConnectDelay,
				Multiplier: connectDelayGrowth,
				Jitter:     connectJitter,
				MaxDelay:   lastConnectDelay,
			},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceivedBytes)),
	}
	return slices.Concat(options, more, limitMessages())
}

// target returns a target whose address the dialer resolves at each attempt. gRPC's own
// resolver resolves a name at most every 30 s
// (https://github.com/grpc/grpc-go/blob/master/internal/resolver/dns/dns_resolver.go), which
// delays a connection to a changed address.
func target(address string) string {
	return "passthrough:///" + address
}

// handshakes wraps the credentials of a connection. It keeps the result of the last handshake,
// because gRPC passes only the text of its error to callers.
type handshakes struct {
	credentials.TransportCredentials
	// address is the dialed address.
	address     string
	wrongServer atomic.Pointer[shard.WrongServerError]
	// current is the server of the last handshake, nil if the handshake failed.
	current atomic.Pointer[conninfo.Info]
}

func (h *handshakes) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ClientHandshake(ctx, authority, conn)
	wrongServer, _ := errors.AsType[*shard.WrongServerError](err)
	h.wrongServer.Store(wrongServer)
	var current *conninfo.Info
	if tls, ok := info.(credentials.TLSInfo); ok && err == nil {
		current = conninfo.New(tls, h.address)
		info = current
	}
	h.current.Store(current)
	return secured, info, err
}

// Clone returns h itself, because the credentials are used by one connection only.
func (h *handshakes) Clone() credentials.TransportCredentials { return h }

// explain replaces the error of a call that was not sent, because the last handshake failed
// with a wrong server, or because the server was rejected after it.
func (h *handshakes) explain(
	ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	err := invoke(ctx, method, request, reply, cc, options...)
	if !shard.IsUnreachable(err) {
		return err
	}
	if wrongServer := h.wrongServer.Load(); wrongServer != nil {
		return wrongServer
	}
	if rejected := h.current.Load().Rejected(); rejected != nil {
		return rejected
	}
	return err
}

// errNotVerified: the server names no shard in its certificate, and was not verified yet.
var errNotVerified = status.Error(codes.Unavailable, "the server names no shard, and its groups have not been compared with the shard's yet")

// beforeVerification are methods that change nothing, and are allowed before the server is
// verified. The informers ignore their replies.
var beforeVerification = sets.New(
	nstancev1.OperatorService_ListGroups_FullMethodName,
	nstancev1.OperatorService_WatchGroups_FullMethodName,
	nstancev1.OperatorService_WatchInstances_FullMethodName,
	nstancev1.OperatorService_WatchErrors_FullMethodName,
	nstancev1.OperatorService_GetConfigStatus_FullMethodName,
)

// verifiedOnly rejects all other calls on connections whose server is not verified. It
// implements per-RPC credentials, because gRPC calls them after it has selected the connection
// of a call and before it sends data: if another server replaces the server at the same
// address, it has another connection.
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

// sendRequestID is the interceptor that adds a request id to each call: the id in its context,
// or a new id. A repeated call has a new id, because the server logs each call that it accepts
// (docs/protocol.md#request-ids).
func sendRequestID(
	ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	return invoke(audit.Outgoing(ctx), method, request, reply, cc, options...)
}

// clusterOptions returns options that add the UID of the Kubernetes cluster to each call, nil
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
