// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shardrelay puts a relay between operators and the server of a shard: it
// forwards every call with its request id, and lets a test see or change the messages.
package shardrelay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/pki"
)

// Relay forwards calls with one request and any number of responses.
type Relay struct {
	// Request is called with each request before it is forwarded. Its error is the response to the
	// caller. Optional.
	Request func(context.Context, proto.Message) error
	// Response is called with each response before it is forwarded. Optional.
	Response func(proto.Message)

	upstream *grpc.ClientConn
}

// Start serves at the returned address what the server of a shard serves.
func (r *Relay) Start(ctx context.Context, n *installation.Installation, shardID string) (address string, err error) {
	if r.upstream, err = n.Dial(shardID); err != nil {
		return "", err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	certificate := pki.NewServing(n.Authority(), pki.Names{
		Hosts: []string{"127.0.0.1"},
		URI:   identifier.ServerURI(installation.ClusterID, shardID),
	})
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(certificate.MutualConfig())),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.UnknownServiceHandler(r.forward))
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), nil
}

func (r *Relay) forward(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	requestType, responseType, err := messageTypes(method)
	if err != nil {
		return status.Error(codes.Unimplemented, err.Error())
	}
	request := requestType.New().Interface()
	if err := down.RecvMsg(request); err != nil {
		return err
	}
	if r.Request != nil {
		if err := r.Request(down.Context(), request); err != nil {
			return err
		}
	}
	ctx := down.Context()
	for _, id := range metadata.ValueFromIncomingContext(ctx, audit.RequestIDKey) {
		ctx = metadata.AppendToOutgoingContext(ctx, audit.RequestIDKey, id)
	}
	up, err := r.upstream.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := errors.Join(up.SendMsg(request), up.CloseSend()); err != nil {
		return err
	}
	// The header shows the client that its watch has begun.
	header, err := up.Header()
	if err != nil {
		return err
	}
	if err := down.SendHeader(header); err != nil {
		return err
	}
	for {
		response := responseType.New().Interface()
		err := up.RecvMsg(response)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if r.Response != nil {
			r.Response(response)
		}
		if err := down.SendMsg(response); err != nil {
			return err
		}
	}
}

// messageTypes returns the types of a method, such as
// "/nstance.v1.OperatorService/ListGroups".
func messageTypes(method string) (request, response protoreflect.MessageType, err error) {
	service, name := path.Split(strings.TrimPrefix(method, "/"))
	descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.TrimSuffix(service, "/")))
	if err != nil {
		return nil, nil, err
	}
	found, ok := descriptor.(protoreflect.ServiceDescriptor)
	if !ok || found.Methods().ByName(protoreflect.Name(name)) == nil {
		return nil, nil, fmt.Errorf("no method %s", method)
	}
	types := found.Methods().ByName(protoreflect.Name(name))
	if request, err = protoregistry.GlobalTypes.FindMessageByName(types.Input().FullName()); err != nil {
		return nil, nil, err
	}
	response, err = protoregistry.GlobalTypes.FindMessageByName(types.Output().FullName())
	return request, response, err
}
