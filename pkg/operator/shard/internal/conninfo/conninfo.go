// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package conninfo describes the server of a connection, and whether the server is verified to
// belong to the shard.
package conninfo

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
)

// Info is the AuthInfo of a connection. A server whose certificate names the shard is verified
// by the handshake, any other server by Verify. A nil Info, which a connection without TLS
// has, counts as verified.
type Info struct {
	credentials.TLSInfo
	// Address is the address that was dialed.
	Address string

	verify   sync.Once
	verified chan struct{}
	rejected atomic.Pointer[shard.WrongServerError]
}

// New returns the Info of a connection after its handshake.
func New(info credentials.TLSInfo, address string) *Info {
	i := &Info{TLSInfo: info, Address: address, verified: make(chan struct{})}
	if certificates := info.State.PeerCertificates; len(certificates) > 0 && len(identifier.ServerNames(certificates[0].URIs)) > 0 {
		i.Verify()
	}
	return i
}

// Of returns the Info of the connection of a call, nil if it has no Info.
func Of(p *peer.Peer) *Info {
	if p == nil {
		return nil
	}
	info, _ := p.AuthInfo.(*Info)
	return info
}

// OfStream returns the Info of the connection of an open stream.
func OfStream(stream grpc.ClientStream) *Info {
	p, _ := peer.FromContext(stream.Context())
	return Of(p)
}

// Verify records that the server belongs to the shard.
func (i *Info) Verify() {
	i.rejected.Store(nil)
	i.verify.Do(func() { close(i.verified) })
}

// Verified reports whether the server is verified to belong to the shard.
func (i *Info) Verified() bool {
	if i == nil {
		return true
	}
	select {
	case <-i.verified:
		return true
	default:
		return false
	}
}

// UntilVerified returns a channel that is closed when the server is verified. i must not
// be nil.
func (i *Info) UntilVerified() <-chan struct{} { return i.verified }

// Reject records why the server may not belong to the shard.
func (i *Info) Reject(err *shard.WrongServerError) { i.rejected.Store(err) }

// Rejected returns the error of the last Reject before Verify, nil if Reject was not called.
func (i *Info) Rejected() *shard.WrongServerError {
	if i == nil {
		return nil
	}
	return i.rejected.Load()
}

type verifying struct{}

// WithVerifying returns a context for the calls that verify the server, which are allowed
// before it is verified.
func WithVerifying(ctx context.Context) context.Context {
	return context.WithValue(ctx, verifying{}, true)
}

// IsVerifying reports whether ctx is from WithVerifying.
func IsVerifying(ctx context.Context) bool { return ctx.Value(verifying{}) != nil }
