// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"fmt"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

const (
	// failureAge is how long after its launch an instance that has failed is shown as one.
	failureAge = 10 * time.Minute
	// statusAge is how long the status checks are not read again.
	statusAge = 30 * time.Second
)

// launchFailures are the reasons for which the service terminates an instance that has not
// run.
var launchFailures = map[string]bool{
	"Client.InternalError":                true,
	"Client.InvalidSnapshot.NotFound":     true,
	"Client.VolumeLimitExceeded":          true,
	"Server.InsufficientInstanceCapacity": true,
	"Server.InternalError":                true,
}

// setState sets the state of a machine. It returns false if its instance was terminated.
func (a *API) setState(m *cloud.VM, i *types.Instance, impaired map[string]string) (exists bool) {
	var name types.InstanceStateName
	if i.State != nil {
		name = i.State.Name
	}
	m.Reason = ""
	switch name {
	case types.InstanceStateNamePending:
		m.State = instance.Pending
	case types.InstanceStateNameRunning:
		m.State = instance.Running
		if reason, found := impaired[awssdk.ToString(i.InstanceId)]; found {
			m.State, m.Reason = instance.Impaired, reason
		}
	case types.InstanceStateNameStopping, types.InstanceStateNameStopped:
		m.State, m.Reason = instance.Stopped, "the instance is "+string(name)+reason(i)
	case types.InstanceStateNameShuttingDown, types.InstanceStateNameTerminated:
		switch {
		case a.hasFailed(i):
			m.State, m.Reason = instance.Failed, "the service has terminated the instance"+reason(i)
		case name == types.InstanceStateNameTerminated:
			return false
		default:
			m.State = instance.Terminating
		}
	default:
		m.State, m.Reason = instance.Impaired, fmt.Sprintf("the instance is in the unknown state %q", name)
	}
	return true
}

// reason returns why an instance has its state, as the rest of a sentence.
func reason(i *types.Instance) string {
	if i.StateReason == nil || awssdk.ToString(i.StateReason.Message) == "" {
		return ""
	}
	return ": " + *i.StateReason.Message
}

// hasFailed reports whether the service has terminated an instance because it could not
// launch it, until that was noted with a request to terminate it.
func (a *API) hasFailed(i *types.Instance) bool {
	if i.StateReason == nil || !launchFailures[awssdk.ToString(i.StateReason.Code)] || time.Since(awssdk.ToTime(i.LaunchTime)) > failureAge {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ended := a.ended[awssdk.ToString(i.InstanceId)]
	return !ended
}

// statuses returns the instances of the account whose status checks fail, with the reason.
// They are few, so that the number of calls does not depend on that of the instances.
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
				// Imitations of the service may ignore a filter.
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
