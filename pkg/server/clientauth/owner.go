// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// maxClusterLength is the maximum length of the UID of a Kubernetes cluster. UIDs of
// Kubernetes have 36 characters
// (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#uids).
const maxClusterLength = 128

// Owner is the stored Kubernetes cluster that a tenant belongs to
// (docs/server-reference.md#storage).
type Owner struct {
	// KubernetesCluster is the UID of the cluster's namespace kube-system.
	KubernetesCluster string    `json:"kubernetes_cluster"`
	RecordedAt        time.Time `json:"recorded_at"`
}

func newOwner(cluster string) Owner {
	return Owner{KubernetesCluster: cluster, RecordedAt: time.Now().UTC()}
}

func (o *Owner) is(cluster string) bool {
	return o != nil && o.KubernetesCluster == cluster
}

// refusal returns the status of a call from another cluster.
func (o *Owner) refusal(tenant, cluster string) error {
	refused := status.Newf(codes.PermissionDenied, "tenant %q belongs to the Kubernetes cluster with UID %s, this operator runs in %s: "+
		"to let it take over, run nstance-admin tenant adopt --tenant %s --kubernetes-cluster %s", tenant, o.KubernetesCluster, cluster, tenant, cluster)
	detailed, err := refused.WithDetails(&errdetails.ErrorInfo{
		Reason:   identifier.OtherClusterReason,
		Domain:   nstancev1.ErrorDomain,
		Metadata: map[string]string{"owner": o.KubernetesCluster, "caller": cluster},
	})
	if err != nil {
		return refused.Err()
	}
	return detailed.Err()
}

// namedCluster returns the Kubernetes cluster that a call names, empty if the call names no
// cluster: only the operator does.
func namedCluster(ctx context.Context) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, identifier.KubernetesClusterKey)
	switch {
	case len(values) == 0:
		return "", nil
	// An owner is stored as JSON, which has no other text: it would not be the same when it is read.
	case len(values) > 1 || values[0] == "" || len(values[0]) > maxClusterLength || !utf8.ValidString(values[0]):
		return "", status.Errorf(codes.InvalidArgument, "metadata %s must be one UID of at most %d characters", identifier.KubernetesClusterKey, maxClusterLength)
	}
	return values[0], nil
}

// checkCluster returns a gRPC status if the tenant of c belongs to another Kubernetes
// cluster. The first cluster of a tenant becomes its owner.
func (g *Guard) checkCluster(ctx context.Context, c *connection, cluster string) error {
	if cluster == "" || c.ownerKey == "" {
		return nil
	}
	c.namesCluster.Store(true)
	now := g.owners.now()
	owner, known := g.owners.get(ctx, c.ownerKey)
	if !known || owner.is(cluster) {
		return nil
	}
	if owner != nil {
		// An administrator may have changed it.
		latest, err := g.owners.getSince(ctx, c.ownerKey, now)
		if err != nil {
			return owner.refusal(c.client.Tenant, cluster)
		}
		owner = latest
	}
	if owner == nil {
		owner = g.recordOwner(ctx, c, cluster)
	}
	if owner == nil || owner.is(cluster) {
		return nil
	}
	return owner.refusal(c.client.Tenant, cluster)
}

// recordOwner makes a cluster the owner of a tenant without an owner, and returns the owner;
// nil if it could not be read or recorded.
func (g *Guard) recordOwner(ctx context.Context, c *connection, cluster string) *Owner {
	created := newOwner(cluster)
	err := g.owners.create(ctx, c.ownerKey, cluster, created)
	if err == nil {
		g.logger.Info("Recorded the Kubernetes cluster of a tenant", "tenant", c.client.Tenant, "kubernetesCluster", cluster)
		return &created
	}
	if !errors.Is(err, storage.ErrConflict) {
		g.logger.Error(err, "The Kubernetes cluster of a tenant could not be recorded", "tenant", c.client.Tenant, "kubernetesCluster", cluster)
		return nil
	}
	owner, _ := g.owners.getSince(ctx, c.ownerKey, g.owners.now())
	return owner
}

// ReadOwner returns the Kubernetes cluster of a tenant, nil if the tenant has no owner.
func ReadOwner(ctx context.Context, store storage.Store, tenant string) (*Owner, error) {
	owner, err := read[Owner](ctx, store, storage.TenantKey(tenant))
	if err != nil {
		return nil, fmt.Errorf("read the Kubernetes cluster of tenant %q: %w", tenant, err)
	}
	return owner, nil
}

// Adopt makes a Kubernetes cluster the owner of a tenant, instead of any other.
func Adopt(ctx context.Context, store storage.Store, tenant, cluster string) error {
	if cluster == "" || len(cluster) > maxClusterLength {
		return fmt.Errorf("adopt tenant %q: the UID of the Kubernetes cluster must have 1 to %d characters", tenant, maxClusterLength)
	}
	data, err := json.Marshal(newOwner(cluster))
	if err != nil {
		return fmt.Errorf("adopt tenant %q: %w", tenant, err)
	}
	key := storage.TenantKey(tenant)
	for {
		object, err := store.Get(ctx, key)
		switch {
		case err == nil:
			_, err = store.Replace(ctx, key, data, object.ETag)
		case errors.Is(err, storage.ErrNotFound):
			_, err = store.Create(ctx, key, data)
		}
		// A server may have recorded a cluster in between.
		if err == nil {
			return nil
		}
		if !errors.Is(err, storage.ErrConflict) {
			return fmt.Errorf("adopt tenant %q: %w", tenant, err)
		}
	}
}

// Release removes the owner of a tenant. The Kubernetes cluster whose operator calls next becomes the
// owner.
func Release(ctx context.Context, store storage.Store, tenant string) error {
	if err := store.Delete(ctx, storage.TenantKey(tenant)); err != nil {
		return fmt.Errorf("release tenant %q: %w", tenant, err)
	}
	return nil
}
