// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

const (
	// With keepaliveTime and keepaliveTimeout the client detects a connection whose
	// packets are lost after 30 s. A server with gRPC's default policy counts pings
	// that are less than 5 min apart as strikes and closes the connection at the
	// third. It resets the strikes whenever it sends data: with its reply to the list
	// that informer.Groups requests about every 30 s or more often, at most one ping
	// comes between two lists. A shorter time or rarer lists would exceed the limit.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second

	// The delay between attempts to connect grows from firstConnectDelay to
	// lastConnectDelay (plus or minus connectJitter), so that a shard is connected
	// within 10 s of its recovery. An attempt times out after connectTimeout.
	firstConnectDelay  = 500 * time.Millisecond
	lastConnectDelay   = 4 * time.Second
	connectDelayGrowth = 1.6
	connectJitter      = 0.2
	connectTimeout     = 5 * time.Second

	// maxReceivedBytes is the maximum size of a reply. A list of 10,000 groups
	// with their provider ids is larger than gRPC's own limit of 4 MiB.
	maxReceivedBytes = 64 << 20
)

// dialOptions returns the options of a connection to an address, and more.
func dialOptions(address string, credentials credentials.TransportCredentials, more ...grpc.DialOption) []grpc.DialOption {
	handshakes := &handshakes{TransportCredentials: credentials, address: address}
	return append([]grpc.DialOption{
		grpc.WithTransportCredentials(handshakes),
		grpc.WithPerRPCCredentials(verifiedOnly{}),
		grpc.WithChainUnaryInterceptor(handshakes.explain, sendRequestID),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:    keepaliveTime,
			Timeout: keepaliveTimeout,
			// Without a stream no events are lost, and servers limit pings on such a
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
	}, more...)
}

// target returns a target whose address the dialer resolves at each attempt. gRPC's
// own resolver resolves at most every 30 s, too slowly for a server whose address
// changed.
func target(address string) string {
	return "passthrough:///" + address
}
