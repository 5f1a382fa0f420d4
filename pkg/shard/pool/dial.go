// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pool

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

const (
	// keepaliveTime and keepaliveTimeout find a connection whose packets vanish
	// after 30 s. A server with gRPC's default policy counts pings that come more
	// often than every 5 min as strikes and closes the connection at the third, but
	// it forgets the strikes whenever it sends data: the answer to the poll that
	// the groups informer makes about every 30 s leaves room for one ping between
	// two polls. A shorter time or a rarer poll would break that.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second

	// Attempts to connect begin at firstConnectDelay apart and never get further
	// apart than lastConnectDelay (give or take connectJitter), so that a shard is
	// back within 10 s of its recovery. An attempt that gets no answer at all is
	// given up after connectTimeout.
	firstConnectDelay  = 500 * time.Millisecond
	lastConnectDelay   = 4 * time.Second
	connectDelayGrowth = 1.6
	connectJitter      = 0.2
	connectTimeout     = 5 * time.Second

	// maxReceivedBytes is the size of the largest answer. A list of 10,000 groups
	// with their provider ids is larger than gRPC's own limit of 4 MiB.
	maxReceivedBytes = 64 << 20
)

// dialOptions are those of every connection.
func dialOptions(credentials credentials.TransportCredentials) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(credentials),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:    keepaliveTime,
			Timeout: keepaliveTimeout,
			// Without a stream nothing waits for news, and servers count pings on such
			// a connection more strictly.
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
}

// target has the address resolved by the dialer at each attempt. gRPC's own
// resolver looks again at most every 30 s, too slow for a server that returns
// with another address.
func target(address string) string {
	return "passthrough:///" + address
}
