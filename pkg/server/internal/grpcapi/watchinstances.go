// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// WatchInstances sends one pending_deletion for every draining instance of the
// caller's tenant, then live events. When the client receives the header, the
// watch has begun: no later event is lost, but an event may be sent twice. Events
// of one instance are in order. Earlier events are not sent
// (docs/protocol.md#watches).
func (s *OperatorService) WatchInstances(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.InstanceEvent]) error {
	tenant := clientFrom(stream.Context()).Tenant
	// The watcher queues events from here on. The present state is read after
	// that and sent first, so an older event never follows a newer one.
	watcher := s.InstanceEvents.watch(tenant)
	defer s.InstanceEvents.watchers.unwatch(watcher)
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for _, i := range s.Instances.Draining(tenant) {
		if err := stream.Send(newInstanceEvent(&i, EventPendingDeletion)); err != nil {
			return err
		}
	}
	return watcher.send(stream)
}
