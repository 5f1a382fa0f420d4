// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package google is a provider of virtual machines of Google Compute Engine
// (docs/google.md). Package machines decides what to do with them.
package google

import (
	"fmt"
	"net/http"
	"time"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// parallel is how many calls are made at a time for one termination.
const parallel = 8

// visibilityDelay is how long a machine may be missing from responses after its launch.
const visibilityDelay = time.Minute

// emptyDelay is how long lists prove nothing that show no machine of the shard although there
// were some, even if none is found by its name.
const emptyDelay = 15 * time.Minute

// API are the calls for the virtual machines of one shard. It implements cloud.API and
// keeps nothing: Compute Engine remembers requests and their operations.
type API struct {
	client  *googleapi.Client
	options *Options
	shard   provider.Shard
	limits  cloud.Limits
	// timeout is how long one call waits for an operation.
	timeout time.Duration
	// step is called before each step of a launch or a termination, and before a change of a
	// network interface. Tests stop the process there, or change something.
	step func(string)
}

var _ cloud.API = (*API)(nil)

// NewAPI returns the calls for the virtual machines of a shard, with application default
// credentials. It sends nothing.
func NewAPI(o *Options, shard provider.Shard) (*API, error) {
	return newAPI(o, shard, googleapi.NewTransport(scope))
}

// newAPI returns calls through a transport that adds credentials.
func newAPI(o *Options, shard provider.Shard, transport http.RoundTripper) (*API, error) {
	if err := validateShard(shard); err != nil {
		return nil, fmt.Errorf("provider %s: %w", Name, err)
	}
	return &API{
		client:  googleapi.New(o.endpoint(), transport),
		options: o,
		shard:   shard,
		limits: cloud.Limits{
			Reads:           cloud.Budget{PerSecond: 10, Burst: 20},
			Writes:          cloud.Budget{PerSecond: 5, Burst: 20},
			Launches:        10,
			Batch:           50,
			VisibilityDelay: visibilityDelay,
			EmptyDelay:      emptyDelay,
			PollInterval:    3 * time.Second,
			IdleInterval:    30 * time.Second,
		},
		timeout: operationTimeout,
		step:    func(string) {},
	}, nil
}

// Limits returns how the API may be called.
func (a *API) Limits() cloud.Limits { return a.limits }
