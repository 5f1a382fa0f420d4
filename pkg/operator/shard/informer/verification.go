// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/conninfo"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// maxQueries is the maximum number of instances for which a server is queried to verify it.
const maxQueries = 5

// Known has the instances of a shard in the status of Kubernetes objects.
type Known struct {
	// ProviderIDs are the provider ids of managed instances, which the shard lists with its
	// groups.
	ProviderIDs []string
	// OnDemand are the ids of on-demand instances, which the shard does not list.
	OnDemand []string
}

// Options configure Groups. KnownInstances and Confirmed are for servers whose certificate
// names no shard (docs/protocol.md#authentication).
type Options struct {
	// KnownInstances returns the known instances by shard. After a restart it is called before
	// the handlers of Groups have received anything. If it is nil, no instances are known.
	KnownInstances func() map[string]Known
	// Confirmed reports whether an administrator has confirmed that the server at an address
	// belongs to a shard, and how to confirm it. It may be nil.
	Confirmed func(shard, address string) (confirmed bool, how string)
	// ProbeInterval is the time between two lists of a shard's groups. It limits how long a
	// shard that does not respond seems reachable. The default is DefaultProbeInterval.
	ProbeInterval time.Duration
}

// verify returns a shard.WrongServerError if the server of a connection may not belong to the
// shard: it names no shard, and its groups have no known instance of the shard. A server is
// verified once for each connection, because another server has another connection.
func (r *groupReader) verify(ctx context.Context, server *conninfo.Info, groups []shard.Group) error {
	if server.Verified() {
		return nil
	}
	unverified, err := r.unverified(ctx, server, groups)
	if err != nil {
		return fmt.Errorf("verify the server: %w", err)
	}
	if unverified == "" {
		return nil
	}
	confirmed, how := r.groups.options.confirmed(r.shard, server.Address)
	if confirmed {
		klog.FromContext(ctx).Info("Accepted a server that an administrator has confirmed", "reason", unverified)
		return nil
	}
	wrong := &shard.WrongServerError{Unverified: fmt.Sprintf("the server at %s names no shard and %s%s", server.Address, unverified, how)}
	server.Reject(wrong)
	return wrong
}

// unverified returns why the server of listed groups may not belong to the shard, "" if it
// does.
func (r *groupReader) unverified(ctx context.Context, server *conninfo.Info, groups []shard.Group) (string, error) {
	known, onDemand := r.groups.knownInstances()
	listed := sets.New[string]()
	for _, group := range groups {
		listed.Insert(group.ProviderIDs...)
		for _, instance := range group.Instances {
			listed.Insert(instance.ID, instance.ProviderID)
		}
	}
	listed.Delete("")
	own := known[r.shard]
	if own.HasAny(listed.UnsortedList()...) {
		return "", nil
	}
	found, err := r.hasAny(ctx, server, onDemand[r.shard])
	if found || err != nil {
		return "", err
	}
	if n := own.Len() + len(onDemand[r.shard]); n > 0 {
		return fmt.Sprintf("has none of the %d known instances of the shard", n), nil
	}
	for _, other := range slices.Sorted(maps.Keys(known)) {
		if other != r.shard && known[other].HasAny(listed.UnsortedList()...) {
			return fmt.Sprintf("has instances of shard %q", other), nil
		}
	}
	return "", nil
}

// hasAny queries the server for the newest of the on-demand instances, and reports whether it
// has any of them.
func (r *groupReader) hasAny(ctx context.Context, server *conninfo.Info, ids []string) (bool, error) {
	if len(ids) == 0 {
		return false, nil
	}
	// Ids sort by the time of their creation.
	newest := slices.Sorted(slices.Values(ids))
	slices.Reverse(newest)
	for _, id := range newest[:min(len(newest), maxQueries)] {
		limited, cancel := context.WithTimeout(conninfo.WithVerifying(ctx), r.groups.timing.callTimeout)
		replied, err := queryInstance(limited, r.client, id)
		cancel()
		switch {
		case err == nil && replied != server:
			return false, status.Error(codes.Unavailable, "the connection was lost meanwhile")
		case err == nil:
			return true, nil
		case ctx.Err() != nil, shard.IsUnreachable(err):
			return false, err
		}
		// Servers return different codes for an instance that they do not have.
	}
	return false, nil
}

// knownInstances returns the known managed and on-demand instances of each shard. The cache of
// a shard is newer than Kubernetes objects.
func (g *Groups) knownInstances() (managed map[string]sets.Set[string], onDemand map[string][]string) {
	managed, onDemand = map[string]sets.Set[string]{}, map[string][]string{}
	if g.options.KnownInstances != nil {
		for id, known := range g.options.KnownInstances() {
			managed[id], onDemand[id] = sets.New(known.ProviderIDs...), known.OnDemand
		}
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	for id, c := range g.caches {
		if c.known {
			managed[id] = c.instances()
		}
	}
	return managed, onDemand
}

// instances returns the instances of all groups, each by its provider id or, without a
// provider id, by its id.
func (c *groupCache) instances() sets.Set[string] {
	ids := sets.New[string]()
	for _, group := range c.groups {
		ids.Insert(group.ProviderIDs...)
		for _, instance := range group.Instances {
			ids.Insert(cmp.Or(instance.ProviderID, instance.ID))
		}
	}
	return ids
}

func (o Options) confirmed(shard, address string) (confirmed bool, how string) {
	if o.Confirmed == nil {
		return false, ""
	}
	confirmed, how = o.Confirmed(shard, address)
	return confirmed, "; " + how
}

// queryInstance queries for an instance, and returns the server that has replied, and its
// error.
func queryInstance(ctx context.Context, client nstancev1.OperatorServiceClient, id string) (*conninfo.Info, error) {
	var server grpcpeer.Peer
	_, err := client.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id}, grpc.Peer(&server))
	return conninfo.Of(&server), err
}
