// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
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
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"nstance.dev/operator/pkg/server/pki"
)

// firstExtension is the least number of a field that is an extension (wire
// contract).
const firstExtension = 1000

// startOldServer serves at the address it returns what the server of a shard
// serves, as if neither side knew extensions of the wire.
func startOldServer(shardID string) (address string, err error) {
	upstream, err := env.Nstance.Dial(shardID)
	if err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	certificate := pki.NewServing(env.Nstance.Authority(), []string{"127.0.0.1"})
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(certificate.MutualConfig())),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.UnknownServiceHandler(oldServer{upstream}.serve))
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), nil
}

// oldServer passes on calls to a server without what is an extension.
type oldServer struct{ upstream *grpc.ClientConn }

// serve passes on one call: one request, and all answers there are.
func (s oldServer) serve(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	request, answer, err := messagesOf(method)
	if err != nil {
		return status.Error(codes.Unimplemented, err.Error())
	}
	message := request.New().Interface()
	if err := down.RecvMsg(message); err != nil {
		return err
	}
	up, err := s.upstream.NewStream(down.Context(), &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	dropExtensions(message.ProtoReflect())
	if err := errors.Join(up.SendMsg(message), up.CloseSend()); err != nil {
		return err
	}
	// By the header a client learns that it is watching.
	header, err := up.Header()
	if err != nil {
		return err
	}
	if err := down.SendHeader(header); err != nil {
		return err
	}
	for {
		message := answer.New().Interface()
		err := up.RecvMsg(message)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		dropExtensions(message.ProtoReflect())
		if err := down.SendMsg(message); err != nil {
			return err
		}
	}
}

// messagesOf returns the types of a method, such as
// "/nstance.v1.OperatorService/ListGroups".
func messagesOf(method string) (request, answer protoreflect.MessageType, err error) {
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
	answer, err = protoregistry.GlobalTypes.FindMessageByName(types.Output().FullName())
	return request, answer, err
}

// dropExtensions leaves of a message what a peer knows that has no extensions.
func dropExtensions(message protoreflect.Message) {
	message.SetUnknown(nil)
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Number() >= firstExtension:
			message.Clear(field)
		case field.Message() == nil || field.IsMap():
			// Nothing that could have extensions is in a map.
		case field.IsList():
			for i := range value.List().Len() {
				dropExtensions(value.List().Get(i).Message())
			}
		default:
			dropExtensions(value.Message())
		}
		return true
	})
}
