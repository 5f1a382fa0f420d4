// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/identity"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/metricstest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Each call to a shard is counted once, a watch when it is closed. Only unary calls have a
// duration.
func TestCallsAreCounted(t *testing.T) {
	server := servertest.Start(t, servertest.Options{
		Shard: "a", Groups: `{"default": {"workers": {"template": "worker", "size": 0}}}`,
	})
	certPEM, keyPEM := pkitest.Operator(t, server.Authority, "default", "default")
	var id identity.Identity
	require.NoError(t, id.Set(certPEM, keyPEM, server.Authority.CertificatePEM()))
	registry := prometheus.NewRegistry()
	p := connpool.New(connpool.Options{Credentials: id.Credentials(servertest.ClusterID), Metrics: connpool.NewMetrics(registry)})
	p.Set(map[string]shard.Endpoint{"a": {Operator: server.Addr}})
	clients := make(chan nstancev1.OperatorServiceClient, 1)
	runtest.Start(t, func(ctx context.Context) {
		p.Run(ctx, func(_ context.Context, _ string, client nstancev1.OperatorServiceClient) { clients <- client })
	})
	client := <-clients

	for range 2 {
		_, err := client.ListGroups(t.Context(), &emptypb.Empty{})
		require.NoError(t, err)
	}
	_, err := client.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: "none"})
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	watch, err := client.WatchGroups(ctx, &emptypb.Empty{})
	require.NoError(t, err)
	_, err = watch.Header()
	require.NoError(t, err)
	const watched = `nstance_operator_shard_calls_total{code="Canceled",method="WatchGroups",shard="a"} 1`
	assert.NotContains(t, metricstest.Series(t, registry), watched, "while the watch is open")
	cancel()
	// The server may have sent events before.
	for err == nil {
		_, err = watch.Recv()
	}
	_, err = watch.Recv()
	require.Error(t, err, "after the error")

	assert.Equal(t, []string{
		`nstance_operator_shard_call_duration_seconds{method="GetInstanceStatus",shard="a"} 1`,
		`nstance_operator_shard_call_duration_seconds{method="ListGroups",shard="a"} 2`,
		watched,
		`nstance_operator_shard_calls_total{code="NotFound",method="GetInstanceStatus",shard="a"} 1`,
		`nstance_operator_shard_calls_total{code="OK",method="ListGroups",shard="a"} 2`,
	}, metricstest.Series(t, registry))

	p.Set(nil)
	require.Eventually(t, func() bool { return len(metricstest.Series(t, registry)) == 0 }, time.Minute, 10*time.Millisecond,
		"the series of a removed shard are dropped")
}
