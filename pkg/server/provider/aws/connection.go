// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"fmt"
	"net"
	"net/http"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/provider"
)

// dialer connects to an address.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// connection is how the clients of a shard reach their services.
type connection struct {
	sdk   awssdk.Config
	shard provider.Shard
	// dial is nil for the usual one.
	dial dialer
}

// connect reads the configuration of the SDK. It sends no request.
func connect(shard provider.Shard, dial dialer) (connection, error) {
	if err := provider.ValidateID(shard.ClusterID); err != nil {
		return connection{}, fmt.Errorf("cluster id: %w", err)
	}
	if err := identifier.Validate(shard.ID); err != nil {
		return connection{}, fmt.Errorf("shard id: %w", err)
	}
	if !regions.MatchString(shard.Region) {
		return connection{}, fmt.Errorf("region: %q must be the name of a region, such as us-west-2", shard.Region)
	}
	sdk, err := config.LoadDefaultConfig(context.Background(), config.WithRegion(shard.Region))
	if err != nil {
		return connection{}, fmt.Errorf("read the configuration of the SDK: %w", err)
	}
	return connection{sdk, shard, dial}, nil
}

// client returns what sends the requests of a client, which has usual otherwise.
func (c connection) client(usual awssdk.HTTPClient) deadline.HTTPClient {
	if c.dial != nil {
		usual = awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.DialContext = c.dial })
	}
	return plainBody(usual.Do)
}
