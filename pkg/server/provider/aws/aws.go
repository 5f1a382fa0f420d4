// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package aws is a provider of instances of Amazon EC2 (docs/aws.md). Package
// machines decides what to do with them.
package aws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go/logging"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

const (
	// visibilityDelay is how long the service may not show an instance that it has launched.
	visibilityDelay = 2 * time.Minute
	// notFoundDelay is how long an instance that the service has shown is not missing when
	// the service does not know it. Those that were terminated are shown for about an hour,
	// so that it does not know one is unusual.
	notFoundDelay = 15 * time.Minute
	// callTimeout bounds a call that changes something.
	callTimeout = 30 * time.Second
	// pageSize is how many instances one response of a list may have.
	pageSize = 1000
)

// API are the calls for the instances of one shard. It implements cloud.API.
type API struct {
	calls   calls
	options *Options
	shard   provider.Shard
	limits  cloud.Limits
	started time.Time
	// step is called before each step of a launch or a termination. Tests stop the process
	// there.
	step func(string)

	// mu guards the fields below, which only save calls, except seen and ended.
	mu sync.Mutex
	// seen is when the service has last shown an instance.
	seen map[string]time.Time
	// ended are the instances that have failed and were terminated since, with the time.
	ended map[string]time.Time
	// impaired are the instances whose status checks failed at impairedAt, with the reason.
	impaired   map[string]string
	impairedAt time.Time
	images     map[string]cachedImage
}

var (
	_ cloud.API         = (*API)(nil)
	_ cloud.KnownFinder = (*API)(nil)
)

// NewAPI returns the calls for the instances of a shard. It sends no request.
func NewAPI(o *Options, shard provider.Shard) (*API, error) { return newAPI(o, shard, nil) }

// newAPI returns calls through dial, or as usual if it is nil.
func newAPI(o *Options, shard provider.Shard, dial dialer) (*API, error) {
	c, err := connect(shard, dial)
	if err != nil {
		return nil, err
	}
	return c.newAPI(o), nil
}

// ec2 returns the calls to EC2.
func (c connection) ec2(o *Options) calls {
	return callsOf(ec2.NewFromConfig(c.sdk, func(options *ec2.Options) {
		if o.Endpoint != "" {
			options.BaseEndpoint = awssdk.String(o.Endpoint)
		}
		options.HTTPClient = c.client(options.HTTPClient)
		// The caller repeats calls, within its own limits.
		options.RetryMaxAttempts = 1
		// Errors are returned. What it logs beside them is about connections.
		options.Logger = logging.Nop{}
	}))
}

func (c connection) newAPI(o *Options) *API {
	return &API{
		calls:   c.ec2(o),
		options: o,
		shard:   c.shard,
		limits: cloud.Limits{
			Reads:           cloud.Budget{PerSecond: 5, Burst: 20},
			Writes:          cloud.Budget{PerSecond: 2, Burst: 5},
			Launches:        4,
			Batch:           50,
			VisibilityDelay: visibilityDelay,
			PollInterval:    5 * time.Second,
			IdleInterval:    time.Minute,
		},
		started: time.Now(),
		step:    func(string) {},
		seen:    map[string]time.Time{},
		ended:   map[string]time.Time{},
		images:  map[string]cachedImage{},
	}
}

// plainBody returns do for requests whose body has the methods Read and Close only. The SDK
// closes the body when the response begins, which may be before package http has found the
// end of the body. Then WriteTo of the SDK's body fails, which closes the connection
// although the response is not read yet.
func plainBody(do deadline.HTTPClient) deadline.HTTPClient {
	return func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			r = r.WithContext(r.Context())
			r.Body = struct{ io.ReadCloser }{r.Body}
		}
		return do(r)
	}
}

// Limits returns how the API may be called.
func (a *API) Limits() cloud.Limits { return a.limits }

// List returns all machines.
func (a *API) List(ctx context.Context) ([]cloud.VM, error) {
	all, err := a.describe(ctx, a.filters())
	if err != nil {
		return nil, fmt.Errorf("list the instances: %w", err)
	}
	impaired, err := a.statuses(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the status checks that fail: %w", err)
	}
	var list []cloud.VM
	for n := range all {
		i := &all[n]
		// One whose tags were changed by hand is found by its provider id.
		if m, ours := a.identify(i); ours && a.setState(&m, i, impaired) {
			list = append(list, m)
		}
	}
	return list, nil
}

// Find reads the machine of one instance by its tags.
func (a *API) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	if _, err := puidv7.Parse(id); err != nil {
		return cloud.VM{}, false, err
	}
	all, err := a.describe(ctx, append(a.filters(), filter("tag:"+tagInstanceID, id)))
	if err != nil {
		return cloud.VM{}, false, fmt.Errorf("find the instance with the tag %s=%s: %w", tagInstanceID, id, err)
	}
	return a.existing(ctx, all, nil)
}

// FindKnown reads a machine by its provider id, which is more consistent than a list, and
// does not depend on tags that a user can change.
func (a *API) FindKnown(ctx context.Context, known cloud.VM) (cloud.VM, bool, error) {
	id, err := instanceID(known.ProviderID)
	if err != nil {
		return cloud.VM{}, false, err
	}
	output, err := a.calls.describeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{id}})
	var all []types.Instance
	if err == nil {
		all = instancesOf(output)
	}
	switch code := codeOf(err); {
	case code == codeNotFound:
		if since := time.Since(a.lastSeen(id)); since < notFoundDelay {
			return cloud.VM{}, false, fmt.Errorf("find instance %s: the service does not know it, which is believed in %v: %w",
				id, (notFoundDelay - since).Round(time.Second), err)
		}
		return a.Find(ctx, known.ID)
	case err != nil:
		return cloud.VM{}, false, fmt.Errorf("find instance %s: %w", id, classify(err))
	case len(all) != 1 || awssdk.ToString(all[0].InstanceId) != id:
		return cloud.VM{}, false, fmt.Errorf("find instance %s: the response has %d instances", id, len(all))
	}
	a.show(all)
	return a.existing(ctx, all, &known)
}

// existing returns the machine of the first instance that was not terminated. Its identity
// is the one that is known, unless its tags have one.
func (a *API) existing(ctx context.Context, all []types.Instance, known *cloud.VM) (cloud.VM, bool, error) {
	impaired, err := a.statuses(ctx, all)
	if err != nil {
		return cloud.VM{}, false, fmt.Errorf("list the status checks that fail: %w", err)
	}
	for n := range all {
		m, ours := a.identify(&all[n])
		switch {
		case known != nil && (!ours || m.ID != known.ID):
			m = *known
			m.Addresses = addresses(&all[n])
		case !ours:
			continue
		}
		if a.setState(&m, &all[n], impaired) {
			return m, true, nil
		}
	}
	return cloud.VM{}, false, nil
}

// describe returns all instances that match filters.
func (a *API) describe(ctx context.Context, filters []types.Filter) ([]types.Instance, error) {
	var all []types.Instance
	input := &ec2.DescribeInstancesInput{Filters: filters, MaxResults: awssdk.Int32(pageSize)}
	for {
		output, err := a.calls.describeInstances(ctx, input)
		if err != nil {
			return nil, classify(err)
		}
		all = append(all, instancesOf(output)...)
		next := awssdk.ToString(output.NextToken)
		switch {
		case next == "":
			a.show(all)
			return all, nil
		case next == awssdk.ToString(input.NextToken):
			return nil, errors.New("a page of the list refers to itself")
		}
		input.NextToken = &next
	}
}

func instancesOf(output *ec2.DescribeInstancesOutput) []types.Instance {
	var all []types.Instance
	for _, reservation := range output.Reservations {
		all = append(all, reservation.Instances...)
	}
	return all
}

// show notes that the service has shown instances.
func (a *API) show(all []types.Instance) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	forget(a.seen, now)
	forget(a.ended, now)
	for n := range all {
		a.seen[awssdk.ToString(all[n].InstanceId)] = now
	}
}

// memory is how long an instance is remembered. It is longer than the service shows one
// that was terminated.
const memory = 2 * time.Hour

func forget(times map[string]time.Time, now time.Time) {
	for id, at := range times {
		if now.Sub(at) > memory {
			delete(times, id)
		}
	}
}

// lastSeen returns when the service has last shown an instance, at the latest to another
// process.
func (a *API) lastSeen(id string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, shown := a.seen[id]; shown {
		return at
	}
	return a.started
}

// Room returns how many free addresses a subnet has.
func (a *API) Room(ctx context.Context, subnet string) (int, error) {
	if !subnets.MatchString(subnet) {
		return 0, errNoSubnet(subnet)
	}
	output, err := a.calls.describeSubnets(ctx, &ec2.DescribeSubnetsInput{SubnetIds: []string{subnet}})
	switch {
	case err != nil:
		return 0, fmt.Errorf("read the free addresses of subnet %s: %w", subnet, classify(err))
	case len(output.Subnets) != 1 || awssdk.ToString(output.Subnets[0].SubnetId) != subnet:
		return 0, fmt.Errorf("read the free addresses of subnet %s: the response has %d subnets", subnet, len(output.Subnets))
	}
	return int(awssdk.ToInt32(output.Subnets[0].AvailableIpAddressCount)), nil
}

func errNoSubnet(name string) error {
	return fmt.Errorf("subnet %q must be the id of a subnet, such as subnet-0123456789abcdef0", name)
}
