// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// relay stands between the operators and the server of a shard. It notes which
// drains the server tells of, and looks at the Node before it lets an
// acknowledgement pass.
type relay struct {
	nstancev1.UnimplementedOperatorServiceServer
	upstream nstancev1.OperatorServiceClient
	address  string

	mu sync.Mutex
	// drains are by instance id.
	drains map[string]*drain
}

// drain is what is known of the drain of one instance.
type drain struct {
	Instance, Group string
	// Noticed is when the server first told an operator of it, and DeleteAt when
	// it says that the instance goes at the latest.
	Noticed, DeleteAt time.Time
	Acknowledged      []acknowledgement
	// Ended is when the server first said that it ends the instance.
	Ended time.Time
}

// acknowledgement is one that an operator has sent.
type acknowledgement struct {
	At time.Time
	// Pods are those that the API server listed on the Node while the
	// acknowledgement was on its way.
	Pods []corev1.Pod
}

func startRelay(ctx context.Context, shardID string) (*relay, error) {
	upstream, err := env.Nstance.Dial(shardID)
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{
		upstream: nstancev1.NewOperatorServiceClient(upstream),
		address:  listener.Addr().String(),
		drains:   map[string]*drain{},
	}
	certificate := pki.NewServing(env.Nstance.Authority(), []string{"127.0.0.1"})
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(certificate.MutualConfig())),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	nstancev1.RegisterOperatorServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	return r, nil
}

// drain returns the first drain that matches, as it is now.
func (r *relay) drain(match func(*drain) bool) (drain, bool) {
	if all := r.drainsWith(match); len(all) > 0 {
		return all[0], true
	}
	return drain{}, false
}

// drainsWith returns the drains that match, as they are now, in the order the
// operators were told of them.
func (r *relay) drainsWith(match func(*drain) bool) []drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []drain
	for _, d := range r.drains {
		if match(d) {
			copied := *d
			copied.Acknowledged = slices.Clone(d.Acknowledged)
			found = append(found, copied)
		}
	}
	slices.SortFunc(found, func(a, b drain) int { return a.Noticed.Compare(b.Noticed) })
	return found
}

// of matches the drain of an instance.
func of(instance string) func(*drain) bool {
	return func(d *drain) bool { return d.Instance == instance }
}

// in matches the drains of a group.
func in(group string) func(*drain) bool {
	return func(d *drain) bool { return d.Group == group }
}

func (r *relay) saw(event *nstancev1.InstanceEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, known := r.drains[event.GetInstanceId()]
	switch state := shard.NoticeState(event.GetStatus()); {
	case !known && state == shard.Draining:
		r.drains[event.GetInstanceId()] = &drain{
			Instance: event.GetInstanceId(), Group: event.GetGroup(),
			Noticed: time.Now(), DeleteAt: event.GetDeleteAt().AsTime(),
		}
	case known && state != shard.Draining && d.Ended.IsZero():
		d.Ended = time.Now()
	}
}

// AcknowledgeDrained looks at the Node, which has the name of the instance, while
// the operator waits.
func (r *relay) AcknowledgeDrained(ctx context.Context, request *nstancev1.DrainAckRequest) (*emptypb.Empty, error) {
	at := time.Now()
	pods, err := podsOn(ctx, request.GetInstanceId())
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "listing the Pods of Node %s: %v", request.GetInstanceId(), err)
	}
	r.mu.Lock()
	d, known := r.drains[request.GetInstanceId()]
	if known {
		d.Acknowledged = append(d.Acknowledged, acknowledgement{At: at, Pods: pods})
	}
	r.mu.Unlock()
	return r.upstream.AcknowledgeDrained(ctx, request)
}

// WatchInstances notes what goes by.
func (r *relay) WatchInstances(request *emptypb.Empty, down grpc.ServerStreamingServer[nstancev1.InstanceEvent]) error {
	up, err := r.upstream.WatchInstances(down.Context(), request)
	if err != nil {
		return err
	}
	return forward(down, up, r.saw)
}

func (r *relay) WatchGroups(request *emptypb.Empty, down grpc.ServerStreamingServer[nstancev1.GroupEvent]) error {
	up, err := r.upstream.WatchGroups(down.Context(), request)
	if err != nil {
		return err
	}
	return forward(down, up, func(*nstancev1.GroupEvent) {})
}

func (r *relay) WatchErrors(request *emptypb.Empty, down grpc.ServerStreamingServer[nstancev1.ErrorEvent]) error {
	up, err := r.upstream.WatchErrors(down.Context(), request)
	if err != nil {
		return err
	}
	return forward(down, up, func(*nstancev1.ErrorEvent) {})
}

// forward hands on what comes from the server, beginning with the header, by
// which a client learns that it is watching.
func forward[T any](down grpc.ServerStreamingServer[T], up grpc.ServerStreamingClient[T], see func(*T)) error {
	header, err := up.Header()
	if err != nil {
		return err
	}
	if err := down.SendHeader(header); err != nil {
		return err
	}
	for {
		message, err := up.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		see(message)
		if err := down.Send(message); err != nil {
			return err
		}
	}
}

func (r *relay) ListGroups(ctx context.Context, request *emptypb.Empty) (*nstancev1.ListGroupsResponse, error) {
	return r.upstream.ListGroups(ctx, request)
}

func (r *relay) UpsertGroup(ctx context.Context, request *nstancev1.UpsertGroupRequest) (*nstancev1.GroupStatus, error) {
	return r.upstream.UpsertGroup(ctx, request)
}

func (r *relay) DeleteGroup(ctx context.Context, request *nstancev1.DeleteGroupRequest) (*emptypb.Empty, error) {
	return r.upstream.DeleteGroup(ctx, request)
}

func (r *relay) GetInstanceStatus(ctx context.Context, request *nstancev1.GetInstanceStatusRequest) (*nstancev1.InstanceStatusResponse, error) {
	return r.upstream.GetInstanceStatus(ctx, request)
}
