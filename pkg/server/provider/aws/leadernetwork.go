// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"sync"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/provider"
)

const (
	// assignInterval is how often a leader reads whether it still has the interface.
	assignInterval = 30 * time.Second
	// attachmentInterval is how often the state of the interface is read while it changes.
	attachmentInterval = time.Second
	// forceDelay is how long a detachment from another instance may take before it is forced: the
	// operating system of that instance may not respond. After a forced detachment the instance may
	// be unable to use the device index again until it is stopped and started
	// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DetachNetworkInterface.html).
	forceDelay = 5 * time.Second
	// attachDelay is how long an attachment to this instance may take before another device index is
	// tried, because of an earlier forced detachment.
	attachDelay = 30 * time.Second
)

var interfaceIDs = regexp.MustCompile(`^eni` + idSuffix + `$`)

var (
	_ provider.LeaderNetworkOptions = (*Options)(nil)
	_ provider.LeaderNetwork        = (*leaderNetwork)(nil)
)

// ValidateLeaderNetwork requires the id of a network interface.
func (*Options) ValidateLeaderNetwork(path *field.Path, network provider.Network) field.ErrorList {
	var errs field.ErrorList
	if !interfaceIDs.MatchString(network.InterfaceID) {
		errs = append(errs, field.Invalid(path.Child("interface_id"), network.InterfaceID, "must be the id of a network interface, such as eni-0123456789abcdef0"))
	}
	if network.IP.IsLoopback() || network.IP.IsLinkLocalUnicast() {
		errs = append(errs, field.Invalid(path.Child("ip"), network.IP.String(), "must be a private address of the network interface"))
	}
	return errs
}

// NewLeaderNetwork returns a LeaderNetwork that attaches a network interface to the instance
// of this server.
func (o *Options) NewLeaderNetwork(shard provider.Shard) (provider.LeaderNetwork, error) {
	return o.newLeaderNetwork(shard, nil, "")
}

// newLeaderNetwork uses the metadata service at an address, or AWS's if it is empty.
func (o *Options) newLeaderNetwork(shard provider.Shard, dial dialer, metadata string) (*leaderNetwork, error) {
	c, err := connect(shard, dial)
	if err != nil {
		return nil, err
	}
	client := imds.NewFromConfig(c.sdk, func(options *imds.Options) {
		options.EnableFallback = awssdk.FalseTernary // version 2 only
		if metadata != "" {
			options.Endpoint, options.ClientEnableState, options.HTTPClient = metadata, imds.ClientEnabled, c.client(nil)
		}
	})
	return &leaderNetwork{calls: c.ec2(o), metadata: client.GetMetadata}, nil
}

// leaderNetwork attaches a network interface, which has the address of the leader, to the
// instance of this server.
type leaderNetwork struct {
	calls    calls
	metadata func(context.Context, *imds.GetMetadataInput, ...func(*imds.Options)) (*imds.GetMetadataOutput, error)

	// mu guards the fields below.
	mu sync.Mutex
	// own is the id of this server's instance, empty until it is known.
	own string
	// detaching is the id of the attachment that is being detached, first is when the first attempt
	// to detach it began, and last when the last one began, or zero if the last one failed.
	detaching   string
	first, last time.Time
	// attaching is the id of the attachment to this instance that is in progress, and since is when
	// this server has first seen it. hanging is the id of one that takes too long.
	attaching, hanging string
	since              time.Time
	// spoiled has the device indexes of this instance at which attachments do not end.
	spoiled map[int32]bool
}

// AssignInterval returns how often the interface is read.
func (*leaderNetwork) AssignInterval() time.Duration { return assignInterval }

// Assign attaches the interface to this instance. It reads the state of the interface before
// each step. A detachment names the attachment that was read, and EC2 refuses to attach an
// interface that another instance has
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_AttachNetworkInterface.html).
func (n *leaderNetwork) Assign(ctx context.Context, network provider.Network) error {
	own, err := n.instance(ctx)
	if err != nil {
		return err
	}
	for {
		nic, err := n.read(ctx, network.InterfaceID)
		if err != nil {
			return err
		}
		if !slices.Contains(privateAddresses(nic), network.IP) {
			return fmt.Errorf("interface %s does not have the address %s", network.InterfaceID, network.IP)
		}
		done, err := n.step(ctx, nic, own)
		switch {
		case err != nil:
			return err
		case done:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("attach interface %s to this instance, %s; its state is %s: %w", network.InterfaceID, own, describeAttachment(nic), ctx.Err())
		case <-time.After(attachmentInterval):
		}
	}
}

// step makes the next step to attach the interface to this instance, if a step is due. It
// returns true if the interface is attached.
func (n *leaderNetwork) step(ctx context.Context, nic *types.NetworkInterface, own string) (done bool, err error) {
	id, attachment := awssdk.ToString(nic.NetworkInterfaceId), nic.Attachment
	switch {
	case attachment == nil || attachment.Status == types.AttachmentStatusDetached:
		if nic.Status != types.NetworkInterfaceStatusAvailable {
			return false, nil
		}
		return false, n.attach(ctx, id, own)
	case awssdk.ToString(attachment.InstanceId) == "":
		return false, fmt.Errorf("interface %s is one of a service of AWS", id)
	case awssdk.ToInt32(attachment.DeviceIndex) == 0:
		return false, fmt.Errorf("interface %s is the primary one of instance %s, from which it cannot be detached", id, *attachment.InstanceId)
	case *attachment.InstanceId == own:
		// The status of the interface is in-use before the attachment has finished.
		if !n.isHanging(attachment) {
			return attachment.Status == types.AttachmentStatusAttached, nil
		}
	}
	return false, n.takeFrom(ctx, id, attachment)
}

// isHanging reports whether an attachment to this instance takes too long, so that it must be
// detached, and notes that its device index cannot be used.
func (n *leaderNetwork) isHanging(attachment *types.NetworkInterfaceAttachment) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := awssdk.ToString(attachment.AttachmentId)
	if attachment.Status != types.AttachmentStatusAttaching {
		return attachment.Status == types.AttachmentStatusDetaching && n.hanging == id
	}
	if n.attaching != id {
		n.attaching, n.since = id, time.Now()
	}
	if time.Since(n.since) < attachDelay {
		return false
	}
	if n.spoiled == nil {
		n.spoiled = map[int32]bool{}
	}
	n.spoiled[awssdk.ToInt32(attachment.DeviceIndex)] = true
	n.hanging = id
	return true
}

// takeFrom detaches the interface, by force if a detachment that began forceDelay ago has not
// ended. Before that it does not repeat an attempt that may still succeed: reads may show the old
// state for some time.
func (n *leaderNetwork) takeFrom(ctx context.Context, id string, attachment *types.NetworkInterfaceAttachment) error {
	force, due := n.beginDetaching(attachment)
	if !due {
		return nil
	}
	err := n.detach(ctx, id, attachment, force)
	if err != nil {
		n.retryDetaching()
	}
	return err
}

// beginDetaching reports whether to detach the attachment now, and if so, whether by force, and
// notes the attempt.
func (n *leaderNetwork) beginDetaching(attachment *types.NetworkInterfaceAttachment) (force, due bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id, now := awssdk.ToString(attachment.AttachmentId), time.Now()
	if n.detaching != id {
		n.detaching, n.first, n.last = id, now, time.Time{}
	}
	force = now.Sub(n.first) >= forceDelay
	// If the interface is being detached already, maybe by another client, that gets forceDelay, too.
	if now.Sub(n.last) < forceDelay || !force && attachment.Status == types.AttachmentStatusDetaching {
		return false, false
	}
	n.last = now
	return force, true
}

// retryDetaching makes the next attempt due at once, because the last one failed.
func (n *leaderNetwork) retryDetaching() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = time.Time{}
}

// attach begins to attach the interface to this instance.
func (n *leaderNetwork) attach(ctx context.Context, id, own string) error {
	index, err := n.freeIndex(ctx, own)
	if err != nil {
		return err
	}
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	_, err = n.calls.attachNetworkInterface(ctx, &ec2.AttachNetworkInterfaceInput{NetworkInterfaceId: &id, InstanceId: &own, DeviceIndex: &index})
	if err != nil {
		// Types of instances have few indexes. Next time, those that hung are tried again.
		n.mu.Lock()
		n.spoiled = nil
		n.mu.Unlock()
		return fmt.Errorf("attach interface %s to this instance, %s: %w", id, own, classify(err))
	}
	return nil
}

// detach begins to detach the interface, if its attachment has not changed since it was read.
func (n *leaderNetwork) detach(ctx context.Context, id string, a *types.NetworkInterfaceAttachment, force bool) error {
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	input := &ec2.DetachNetworkInterfaceInput{AttachmentId: a.AttachmentId}
	if force {
		input.Force = &force
	}
	if _, err := n.calls.detachNetworkInterface(ctx, input); err != nil {
		return fmt.Errorf("detach interface %s from instance %s: %w", id, awssdk.ToString(a.InstanceId), classify(err))
	}
	return nil
}

// Release detaches the interface from this instance. It never detaches it from another one.
func (n *leaderNetwork) Release(ctx context.Context, network provider.Network) error {
	own, err := n.instance(ctx)
	if err != nil {
		return err
	}
	nic, err := n.read(ctx, network.InterfaceID)
	if err != nil {
		return err
	}
	attachment := nic.Attachment
	if attachment == nil || awssdk.ToString(attachment.InstanceId) != own || awssdk.ToInt32(attachment.DeviceIndex) == 0 ||
		attachment.Status == types.AttachmentStatusDetaching || attachment.Status == types.AttachmentStatusDetached {
		return nil
	}
	return n.detach(ctx, network.InterfaceID, attachment, false)
}

// instance returns the id of this instance, from the metadata service.
func (n *leaderNetwork) instance(ctx context.Context) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.own != "" {
		return n.own, nil
	}
	output, err := n.metadata(ctx, &imds.GetMetadataInput{Path: "instance-id"})
	if err != nil {
		return "", fmt.Errorf("read the id of this instance from the metadata service: %w", err)
	}
	defer output.Content.Close()
	data, err := io.ReadAll(io.LimitReader(output.Content, maxInstanceID))
	if err != nil {
		return "", fmt.Errorf("read the id of this instance from the metadata service: %w", err)
	}
	if !instances.Match(data) {
		return "", fmt.Errorf("the metadata service has %q as the id of this instance", data)
	}
	n.own = string(data)
	return n.own, nil
}

// maxInstanceID is larger than any instance id, in bytes.
const maxInstanceID = 64

// read reads the interface.
func (n *leaderNetwork) read(ctx context.Context, id string) (*types.NetworkInterface, error) {
	output, err := n.calls.describeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{id}})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read interface %s: %w", id, classify(err))
	case len(output.NetworkInterfaces) != 1 || awssdk.ToString(output.NetworkInterfaces[0].NetworkInterfaceId) != id:
		return nil, fmt.Errorf("read interface %s: the response has %d interfaces", id, len(output.NetworkInterfaces))
	}
	return &output.NetworkInterfaces[0], nil
}

// freeIndex returns the lowest device index that no interface of this instance has, and that can be
// used as far as is known.
func (n *leaderNetwork) freeIndex(ctx context.Context, own string) (int32, error) {
	output, err := n.calls.describeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{own}})
	if err != nil {
		return 0, fmt.Errorf("read the interfaces of this instance, %s: %w", own, classify(err))
	}
	all := instancesOf(output)
	if len(all) != 1 {
		return 0, fmt.Errorf("read the interfaces of this instance, %s: the response has %d instances", own, len(all))
	}
	used := map[int32]bool{0: true} // the primary interface
	for _, nic := range all[0].NetworkInterfaces {
		// Each network card has its own indexes.
		if nic.Attachment != nil && awssdk.ToInt32(nic.Attachment.NetworkCardIndex) == 0 {
			used[awssdk.ToInt32(nic.Attachment.DeviceIndex)] = true
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	index := int32(1)
	for used[index] || n.spoiled[index] {
		index++
	}
	return index, nil
}

// privateAddresses returns the private IPv4 and the IPv6 addresses of an interface.
func privateAddresses(nic *types.NetworkInterface) []netip.Addr {
	var texts []string
	for _, address := range nic.PrivateIpAddresses {
		texts = append(texts, awssdk.ToString(address.PrivateIpAddress))
	}
	for _, address := range nic.Ipv6Addresses {
		texts = append(texts, awssdk.ToString(address.Ipv6Address))
	}
	var all []netip.Addr
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			all = append(all, address)
		}
	}
	return all
}

// describeAttachment describes the state of an interface for an error message.
func describeAttachment(nic *types.NetworkInterface) string {
	if nic.Attachment == nil {
		return string(nic.Status)
	}
	return fmt.Sprintf("%s, attachment to %s %s", nic.Status, awssdk.ToString(nic.Attachment.InstanceId), nic.Attachment.Status)
}
