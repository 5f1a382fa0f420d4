// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientauth

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/base/identifier"
)

// FuzzOwner reads arbitrary owners of tenants, as a writer of the bucket could store, and calls with
// arbitrary names of Kubernetes clusters. A refusal can always be sent.
func FuzzOwner(f *testing.F) {
	f.Add([]byte(`{"kubernetes_cluster": "a", "recorded_at": "2026-01-01T00:00:00Z"}`), "b")
	f.Add([]byte(`{"kubernetes_cluster": "\u0000\ud800"}`), "\xff\x1b[2J")
	f.Add([]byte(`{}`), "")
	f.Add([]byte(`[]`), "a")
	f.Fuzz(func(t *testing.T, data []byte, cluster string) {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(identifier.KubernetesClusterKey, cluster))
		named, err := namedCluster(ctx)
		if err != nil {
			assert.Equal(t, codes.InvalidArgument, status.Code(err))
			return
		}
		assert.LessOrEqual(t, len(named), maxClusterLength)
		var owner Owner
		if json.Unmarshal(data, &owner) != nil || owner.is(named) {
			return
		}
		refused := status.Convert(owner.refusal("default", named))
		assert.Equal(t, codes.PermissionDenied, refused.Code())
		_, err = proto.Marshal(refused.Proto())
		require.NoError(t, err)
	})
}
