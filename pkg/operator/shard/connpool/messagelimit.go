// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"nstance.dev/operator/pkg/operator/shard"
)

// maxDecoded is the maximum memory that a message may take when it is decoded, in bytes. A small
// message can take much: an empty group has two bytes on the wire, and hundreds in memory.
const maxDecoded = 96 << 20

// Estimates of the memory of a field beside its bytes.
const (
	messageCost  = 512
	mapEntryCost = 128
	valueCost    = 48
)

// limitMessages returns options that measure each message before it is decoded. A call that
// receives a message that is too large returns a *shard.LimitError.
func limitMessages() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
		) error {
			codec := newLimitedCodec()
			return codec.explain(invoke(ctx, method, request, reply, cc, append(slices.Clone(options), grpc.ForceCodecV2(codec))...))
		}),
		grpc.WithChainStreamInterceptor(func(
			ctx context.Context, description *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			codec := newLimitedCodec()
			stream, err := open(ctx, description, cc, method, append(slices.Clone(options), grpc.ForceCodecV2(codec))...)
			if err != nil {
				return nil, err
			}
			return &limitedStream{stream, codec}, nil
		}),
	}
}

type limitedStream struct {
	grpc.ClientStream
	codec *limitedCodec
}

func (s *limitedStream) RecvMsg(message any) error {
	return s.codec.explain(s.ClientStream.RecvMsg(message))
}

// limitedCodec is the codec of a call.
type limitedCodec struct {
	encoding.CodecV2
	// exceeded is set by Unmarshal, because gRPC returns only the text of its error.
	exceeded *shard.LimitError
}

func newLimitedCodec() *limitedCodec {
	return &limitedCodec{CodecV2: encoding.GetCodecV2(grpcproto.Name)}
}

// Unmarshal implements encoding.CodecV2.
func (c *limitedCodec) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	if cost := decodedSize(buffer.ReadOnlyData(), message.ProtoReflect().Descriptor(), maxDecoded); cost > maxDecoded {
		c.exceeded = &shard.LimitError{Limit: shard.LimitMessage, Message: fmt.Sprintf(
			"a message of the shard with %d bytes takes more than %d bytes of memory", len(buffer.ReadOnlyData()), maxDecoded)}
		return c.exceeded
	}
	return proto.Unmarshal(buffer.ReadOnlyData(), message)
}

func (c *limitedCodec) explain(err error) error {
	if err != nil && c.exceeded != nil {
		return c.exceeded
	}
	return err
}

// decodedSize estimates the memory of a message. It stops when the estimate exceeds limit. Data
// that is no message has the size of what comes before the mistake: its decoding fails.
func decodedSize(data []byte, descriptor protoreflect.MessageDescriptor, limit int) (size int) {
	for len(data) > 0 && size <= limit {
		number, kind, tag := protowire.ConsumeTag(data)
		if tag < 0 {
			return size
		}
		length := protowire.ConsumeFieldValue(number, kind, data[tag:])
		if length < 0 {
			return size
		}
		value := data[tag : tag+length]
		data = data[tag+length:]
		size += valueCost + length
		field := descriptor.Fields().ByNumber(number)
		if field == nil || field.Message() == nil || kind != protowire.BytesType {
			continue
		}
		if field.IsMap() {
			size += mapEntryCost
		} else {
			size += messageCost
		}
		nested, _ := protowire.ConsumeBytes(value)
		size += decodedSize(nested, field.Message(), limit-size)
	}
	return size
}
