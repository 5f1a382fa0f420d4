// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// WatchInstances sends one pending_deletion for every instance of the caller's
// tenant that drains, then live events. The header tells that it has begun: what
// happens after it is sent. Nothing is lost in between, but may be sent twice.
// Events of one instance are in order. What happened before, and is over, is not
// sent (wire contract).
func (s *OperatorService) WatchInstances(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.InstanceEvent]) error {
	ctx := stream.Context()
	tenant := clientFrom(ctx).Tenant
	// What happens from here on is in the watcher. The present state is read
	// after that and sent before it, so an older event never follows a newer one.
	watcher := s.InstanceEvents.watch(tenant)
	defer s.InstanceEvents.unwatch(watcher)
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for _, i := range s.Instances.Draining(tenant) {
		if err := stream.Send(newInstanceEvent(&i, EventPendingDeletion)); err != nil {
			return err
		}
	}
	for {
		event, err := watcher.next(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(event); err != nil {
			return err
		}
	}
}
