// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func (o *faultyOperator) configurationFaults() []testcluster.Fault {
	return []testcluster.Fault{
		{Name: "the shards' ConfigMap is deleted", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-shards")()
			from := o.logSize(t)
			deleteConfigMap(t, "nstance-shards")
			o.untilLogged(t, from, "ConfigMap with the shards")
			o.restart(t)
			untilUnreachable(t, v1beta1.ReasonUnknownShard)
		})},
		{Name: "the shards' ConfigMap is emptied", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-shards")()
			env.EditShards(t, func(data map[string]string) { clear(data) })
			untilUnreachable(t, v1beta1.ReasonUnknownShard)
		})},
		{Name: "a shard is removed from the configuration", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-shards")()
			require.NoError(t, env.SetShardAddress(t.Context(), shardIDs[1], ""))
			untilUnreachable(t, v1beta1.ReasonUnknownShard)
			o.restart(t)
			o.untilWorking(t)
			untilUnreachable(t, v1beta1.ReasonUnknownShard)
		})},
		{Name: "the endpoints are malformed", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-shards")()
			env.EditShards(t, func(data map[string]string) {
				for shard := range data {
					data[shard] = "::"
				}
			})
			testcluster.Eventually(t, time.Minute, "an event reports it", func(ctx context.Context) error {
				count, err := env.CountEvents(ctx, "nstance-shards", "InvalidEndpoint")
				if err == nil && count == 0 {
					err = errors.New("no event")
				}
				return err
			})
			o.restart(t)
			untilUnreachable(t, v1beta1.ReasonUnknownShard)
		})},
		{Name: "the CA is missing at the start", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-cluster-ca")()
			deleteConfigMap(t, "nstance-cluster-ca")
			o.expectRefusal(t, "ConfigMap nstance-system/nstance-cluster-ca has no key ca.crt")
		})},
		{Name: "the nonce is missing at the first start", Happen: testcluster.During(func(t *testing.T) {
			defer saveSecret(t, "nstance-operator-nonce")()
			deleteSecret(t, "nstance-operator-nonce")
			deleteSecret(t, "nstance-operator-cert")
			o.expectRefusal(t, "Secret nstance-system/nstance-operator-nonce has no key nonce.jwt")
		})},
	}
}
