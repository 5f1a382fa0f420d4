// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"nstance.dev/operator/pkg/server/provider"
)

func (e *examination) spot(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	_, id, code, err := e.launchNew(ctx, t, func(spec *provider.Spec) {
		args := map[string]any{argMarket: marketSpot}
		for name, value := range spec.Args {
			if name != argMarket {
				args[name] = value
			}
		}
		spec.Args = args
	})
	switch {
	case err != nil:
		return provider.Answer{}, err
	case slices.Contains(capacityCodes, code), slices.Contains(quotaCodes, code):
		return provider.Answer{}, fmt.Errorf("the launch was refused: %s", code)
	}
	return provider.Answered(id != "", "%s%s", id, code)
}

// wait calls done until it returns true, or an error other than throttling.
func wait(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	return provider.AwaitAnswer(ctx, limit, func(err error) bool { return slices.Contains(throttlingCodes, codeOf(err)) }, done)
}

// boot waits until the console shows what the userdata writes.
func (e *examination) boot(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	id, err := instanceID(t.VM.ProviderID)
	if err != nil {
		return provider.Answer{}, err
	}
	// Only instances on the Nitro System show the latest output.
	latest := true
	err = wait(ctx, consoleDelay, func() (bool, error) {
		output, err := e.api.calls.getConsoleOutput(ctx, &ec2.GetConsoleOutputInput{InstanceId: &id, Latest: &latest})
		if latest && isRefusal(err) && codeOf(err) == "UnsupportedOperation" {
			latest = false
			return false, nil
		}
		if err != nil {
			return false, err
		}
		text, err := base64.StdEncoding.DecodeString(awssdk.ToString(output.Output))
		return strings.Contains(string(text), provider.BootMark(t.VM.ID)), err
	})
	if errors.Is(err, provider.ErrLate) {
		return provider.Answered(false, "the console of %s does not show it after %s: the image may have no cloud-init, or no console", id, consoleDelay)
	}
	if err != nil {
		return provider.Answer{}, err
	}
	return provider.Answered(true, "the console of %s shows it", id)
}

// detached creates an interface, attaches it to the instance of the check, detaches it with force,
// and attaches it at the same index again.
func (e *examination) detached(ctx context.Context, t *provider.Trial) (answer provider.Answer, err error) {
	own, err := instanceID(t.VM.ProviderID)
	if err != nil {
		return provider.Answer{}, err
	}
	tags := []types.Tag{
		{Key: awssdk.String(tagManaged), Value: awssdk.String(isTrue)},
		{Key: awssdk.String(tagClusterID), Value: &e.api.shard.ClusterID},
		{Key: awssdk.String(tagShard), Value: &e.api.shard.ID},
		{Key: awssdk.String(tagQuestion), Value: awssdk.String(isTrue)},
	}
	output, err := e.api.calls.createNetworkInterface(ctx, &ec2.CreateNetworkInterfaceInput{
		SubnetId: &t.Spec.Subnet, ClientToken: awssdk.String(t.VM.ID),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: tags}},
	})
	if err != nil {
		return provider.Answer{}, err
	}
	id := awssdk.ToString(output.NetworkInterface.NetworkInterfaceId)
	network := &leaderNetwork{calls: e.api.calls}
	var took []string
	for attempt := range 2 {
		index := int32(1)
		began := time.Now()
		if _, err := e.api.calls.attachNetworkInterface(ctx, &ec2.AttachNetworkInterfaceInput{NetworkInterfaceId: &id, InstanceId: &own, DeviceIndex: &index}); err != nil {
			if attempt > 0 && isRefusal(err) {
				return provider.Answered(true, "attached after %s, and refused the second time: %s", took[0], codeOf(err))
			}
			return provider.Answer{}, err
		}
		var attachment *types.NetworkInterfaceAttachment
		err := wait(ctx, attachDelay, func() (bool, error) {
			nic, err := network.read(ctx, id)
			if err != nil {
				return false, err
			}
			attachment = nic.Attachment
			return attachment != nil && attachment.Status == types.AttachmentStatusAttached, nil
		})
		if errors.Is(err, provider.ErrLate) && attempt > 0 {
			return provider.Answered(true, "attached after %s, and the second time not within %s", took[0], attachDelay)
		}
		if err != nil {
			return provider.Answer{}, err
		}
		took = append(took, time.Since(began).Round(100*time.Millisecond).String())
		if attempt > 0 {
			break
		}
		if err := network.detach(ctx, id, attachment, true); err != nil {
			return provider.Answer{}, err
		}
		if err := e.awaitAvailable(ctx, id); err != nil {
			return provider.Answer{}, err
		}
	}
	return provider.Answered(true, "attached after %s, and after a detachment with force again after %s", took[0], took[1])
}

func (e *examination) awaitAvailable(ctx context.Context, id string) error {
	network := &leaderNetwork{calls: e.api.calls}
	return wait(ctx, 0, func() (bool, error) {
		nic, err := network.read(ctx, id)
		return err == nil && nic.Status == types.NetworkInterfaceStatusAvailable, err
	})
}

// tagQuestion is the tag of what a question has created, apart from instances.
const tagQuestion = tagPrefix + "question"

// removeInterfaces deletes the interfaces that questions have created. It touches no others.
func (e *examination) removeInterfaces(ctx context.Context) ([]string, error) {
	output, err := e.api.calls.describeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{
		Filters: append(e.api.filters(), filter("tag:"+tagQuestion, isTrue)),
	})
	if err != nil {
		return nil, fmt.Errorf("list the network interfaces of the check: %w", classify(err))
	}
	network := &leaderNetwork{calls: e.api.calls}
	var removed []string
	for n := range output.NetworkInterfaces {
		nic := &output.NetworkInterfaces[n]
		id := awssdk.ToString(nic.NetworkInterfaceId)
		if attachment := nic.Attachment; attachment != nil {
			if attachment.Status != types.AttachmentStatusDetaching {
				if err := network.detach(ctx, id, attachment, true); err != nil {
					return removed, err
				}
			}
			if err := e.awaitAvailable(ctx, id); err != nil {
				return removed, fmt.Errorf("detach interface %s: %w", id, err)
			}
		}
		if _, err := e.api.calls.deleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &id}); err != nil {
			return removed, fmt.Errorf("delete interface %s: %w", id, classify(err))
		}
		removed = append(removed, id)
	}
	return removed, nil
}
