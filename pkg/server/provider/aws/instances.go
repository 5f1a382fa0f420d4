// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

const (
	// statusAge is how long status checks are used without reading them again.
	statusAge = 30 * time.Second
)

// List returns all VMs. FindKnown finds VMs whose tags were changed by hand.
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
		// FindKnown finds an instance whose tags were changed by hand.
		if vm, ours := a.identify(i); ours {
			setState(&vm, i, impaired)
			list = append(list, vm)
		}
	}
	return list, nil
}

// Find reads the VM of one instance by its tags.
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

// FindKnown reads a VM by its provider id. This is more consistent than a list, and does not
// depend on tags, which a user can change.
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

// existing returns the VM of the first instance that was not terminated, or else the VM of
// the first that was. If the instance has no valid tags, its identity is taken from known.
func (a *API) existing(ctx context.Context, all []types.Instance, known *cloud.VM) (cloud.VM, bool, error) {
	impaired, err := a.statuses(ctx, all)
	if err != nil {
		return cloud.VM{}, false, fmt.Errorf("list the status checks that fail: %w", err)
	}
	var ended *cloud.VM
	for n := range all {
		vm, ours := a.identify(&all[n])
		switch {
		case known != nil && (!ours || vm.ID != known.ID):
			vm = *known
			vm.Addresses, vm.Hostname = addresses(&all[n]), awssdk.ToString(all[n].PrivateDnsName)
		case !ours:
			continue
		}
		setState(&vm, &all[n], impaired)
		if !vm.Ended {
			return vm, true, nil
		}
		if ended == nil {
			ended = &vm
		}
	}
	if ended == nil {
		return cloud.VM{}, false, nil
	}
	return *ended, true, nil
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

// show stores when EC2 has shown instances.
func (a *API) show(all []types.Instance) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	forget(a.seen, now)
	for n := range all {
		a.seen[awssdk.ToString(all[n].InstanceId)] = now
	}
}

// memory is how long an instance is remembered. It is longer than EC2 shows a terminated
// instance.
const memory = 2 * time.Hour

func forget(times map[string]time.Time, now time.Time) {
	for id, at := range times {
		if now.Sub(at) > memory {
			delete(times, id)
		}
	}
}

// lastSeen returns when EC2 last showed an instance. If this process has not seen it, another
// process may have, until this one started.
func (a *API) lastSeen(id string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, shown := a.seen[id]; shown {
		return at
	}
	return a.started
}

// Room returns how many instances the free addresses of a subnet suffice for.
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
	read := output.Subnets[0]
	if zone := awssdk.ToString(read.AvailabilityZone); zone != a.shard.Zone {
		return 0, fmt.Errorf("subnet %s is in zone %s, and the shard in zone %s", subnet, zone, a.shard.Zone)
	}
	if awssdk.ToBool(read.Ipv6Native) {
		return math.MaxInt32, nil // the count below is only of IPv4 addresses
	}
	return max(0, int(awssdk.ToInt32(read.AvailableIpAddressCount)-a.options.AddressReserve)), nil
}

func errNoSubnet(name string) error {
	return fmt.Errorf("subnet %q must be %s", name, aSubnetID)
}

// requested are the state reasons of an instance that ended because somebody has wished so, or
// because a spot instance is taken back. With every other reason EC2 has given up the instance,
// most often because it could not launch it. EC2 gives more reasons than it documents
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html).
var requested = map[string]bool{
	"":                                 true,
	"Client.InstanceInitiatedShutdown": true,
	"Client.InstanceTerminated":        true,
	"Client.UserInitiatedHibernate":    true,
	"Client.UserInitiatedShutdown":     true,
	"Server.ScheduledStop":             true,
	"Server.SpotInstanceShutdown":      true,
	"Server.SpotInstanceTermination":   true,
}

// noCapacity are the state reasons of an instance that has ended because EC2 had no capacity for it, or
// has needed its capacity
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html).
var noCapacity = []string{"Server.InsufficientInstanceCapacity", "Server.SpotInstanceTermination"}

// setState sets the state of a VM.
func setState(vm *cloud.VM, i *types.Instance, impaired map[string]string) {
	var name types.InstanceStateName
	if i.State != nil {
		name = i.State.Name
	}
	vm.Reason, vm.Ended, vm.NoCapacity = "", false, false
	switch name {
	case types.InstanceStateNamePending:
		vm.State = instance.Pending
	case types.InstanceStateNameRunning:
		vm.State = instance.Running
		if reason, found := impaired[awssdk.ToString(i.InstanceId)]; found {
			vm.State, vm.Reason = instance.Impaired, reason
		}
	case types.InstanceStateNameStopping, types.InstanceStateNameStopped:
		vm.State, vm.Reason = instance.Stopped, "the instance is "+string(name)+reason(i)
	case types.InstanceStateNameShuttingDown, types.InstanceStateNameTerminated:
		vm.Reason = "the service has terminated the instance" + reason(i)
		vm.NoCapacity = slices.Contains(noCapacity, stateReason(i))
		switch {
		case !requested[stateReason(i)]:
			// EC2 terminates it whether or not it is requested to.
			vm.State, vm.Ended = instance.Failed, true
		case name == types.InstanceStateNameTerminated:
			vm.State, vm.Ended = instance.Stopped, true
		default:
			vm.State, vm.Reason = instance.Terminating, "the service terminates the instance"+reason(i)
		}
	default:
		vm.State, vm.Reason = instance.Impaired, fmt.Sprintf("the instance is in the unknown state %q", name)
	}
}

// reason returns the reason of an instance's state, as the end of a sentence.
func reason(i *types.Instance) string {
	if i.StateReason == nil || awssdk.ToString(i.StateReason.Message) == "" {
		return ""
	}
	return ": " + *i.StateReason.Message
}

// stateReason returns the code of the reason of an instance's state, or an empty text.
func stateReason(i *types.Instance) string {
	if i.StateReason == nil {
		return ""
	}
	return awssdk.ToString(i.StateReason.Code)
}

// statuses returns the reasons of the instances of the account whose status checks fail. It
// lists only failing checks, so the number of calls does not grow with the number of
// instances
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceStatus.html).
func (a *API) statuses(ctx context.Context, all []types.Instance) (map[string]string, error) {
	running := false
	for n := range all {
		running = running || all[n].State != nil && all[n].State.Name == types.InstanceStateNameRunning
	}
	a.mu.Lock()
	known, fresh := a.impaired, time.Since(a.impairedAt) < statusAge
	a.mu.Unlock()
	if !running || fresh {
		return known, nil
	}
	impaired := map[string]string{}
	for _, check := range []string{"instance-status.status", "system-status.status"} {
		input := &ec2.DescribeInstanceStatusInput{
			Filters:    []types.Filter{filter(check, string(types.SummaryStatusImpaired))},
			MaxResults: awssdk.Int32(pageSize),
		}
		for {
			output, err := a.calls.describeInstanceStatus(ctx, input)
			if err != nil {
				return nil, classify(err)
			}
			for _, status := range output.InstanceStatuses {
				// Emulators of EC2 may ignore a filter.
				switch id := awssdk.ToString(status.InstanceId); {
				case isImpaired(status.SystemStatus):
					impaired[id] = "the system status check fails"
				case isImpaired(status.InstanceStatus):
					impaired[id] = "the instance status check fails"
				}
			}
			if awssdk.ToString(output.NextToken) == "" {
				break
			}
			input.NextToken = output.NextToken
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.impaired, a.impairedAt = impaired, time.Now()
	return impaired, nil
}

func isImpaired(s *types.InstanceStatusSummary) bool {
	return s != nil && s.Status == types.SummaryStatusImpaired
}
