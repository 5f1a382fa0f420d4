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
	// attachmentInterval is how often a state that changes is read.
	attachmentInterval = time.Second
	// forceDelay is how long a detachment from another instance may take before it is forced:
	// the system of that instance may not respond.
	forceDelay = 5 * time.Second
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

// NewLeaderNetwork returns what attaches a network interface to the instance of this server.
func (o *Options) NewLeaderNetwork(shard provider.Shard) (provider.LeaderNetwork, error) {
	return o.newLeaderNetwork(shard, nil, "")
}

// newLeaderNetwork has the metadata service at an address, or the usual one if it is empty.
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
	// own is the id of the instance, empty until it is known.
	own string
	// detaching is the attachment whose detachment was last requested or read, at since.
	detaching string
	since     time.Time
}

// AssignInterval returns how often the interface is read.
func (*leaderNetwork) AssignInterval() time.Duration { return assignInterval }

// Assign attaches the interface to this instance. Its state is read before each step: a
// detachment names the attachment that was read, and the service attaches no interface that
// another instance has.
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

// step makes the call that is due. It returns true if the interface is attached to this
// instance.
func (n *leaderNetwork) step(ctx context.Context, nic *types.NetworkInterface, own string) (done bool, err error) {
	id, a := awssdk.ToString(nic.NetworkInterfaceId), nic.Attachment
	switch {
	case a == nil || a.Status == types.AttachmentStatusDetached:
		if nic.Status != types.NetworkInterfaceStatusAvailable {
			return false, nil
		}
		return false, n.attach(ctx, id, own)
	case awssdk.ToString(a.InstanceId) == "":
		return false, fmt.Errorf("interface %s is one of a service of AWS", id)
	case awssdk.ToInt32(a.DeviceIndex) == 0:
		return false, fmt.Errorf("interface %s is the primary one of instance %s, from which it cannot be detached", id, *a.InstanceId)
	case *a.InstanceId == own:
		// The interface is in use before the attachment has ended.
		return a.Status == types.AttachmentStatusAttached, nil
	case !n.isDue(a):
		return false, nil
	}
	err = n.detach(ctx, id, a, true)
	if err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.detaching = "" // is due as soon as the interface was read again
	}
	return false, err
}

// isDue reports whether the interface is to be detached from another instance now: at first,
// and again if that takes too long. Reads may show it as attached for some time.
func (n *leaderNetwork) isDue(a *types.NetworkInterfaceAttachment) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id := awssdk.ToString(a.AttachmentId); n.detaching != id {
		n.detaching, n.since = id, time.Now()
		return a.Status != types.AttachmentStatusDetaching
	}
	if time.Since(n.since) < forceDelay {
		return false
	}
	n.since = time.Now()
	return true
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
		return fmt.Errorf("attach interface %s to this instance, %s: %w", id, own, classify(err))
	}
	return nil
}

// detach begins to detach the interface, if its attachment is still the one that was read.
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

// Release detaches the interface from this instance, and from no other one.
func (n *leaderNetwork) Release(ctx context.Context, network provider.Network) error {
	own, err := n.instance(ctx)
	if err != nil {
		return err
	}
	nic, err := n.read(ctx, network.InterfaceID)
	if err != nil {
		return err
	}
	a := nic.Attachment
	if a == nil || awssdk.ToString(a.InstanceId) != own || awssdk.ToInt32(a.DeviceIndex) == 0 ||
		a.Status == types.AttachmentStatusDetaching || a.Status == types.AttachmentStatusDetached {
		return nil
	}
	return n.detach(ctx, network.InterfaceID, a, false)
}

// instance returns the id of this instance, which the metadata service knows.
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

// maxInstanceID is more than the bytes of an instance id.
const maxInstanceID = 64

// read returns the interface as the service shows it.
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

// freeIndex returns the first device index that no interface of this instance has.
func (n *leaderNetwork) freeIndex(ctx context.Context, own string) (int32, error) {
	output, err := n.calls.describeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{own}})
	if err != nil {
		return 0, fmt.Errorf("read the interfaces of this instance, %s: %w", own, classify(err))
	}
	all := instancesOf(output)
	if len(all) != 1 {
		return 0, fmt.Errorf("read the interfaces of this instance, %s: the response has %d instances", own, len(all))
	}
	used := map[int32]bool{0: true} // that of the primary one
	for _, nic := range all[0].NetworkInterfaces {
		// Other network cards have indexes of their own.
		if nic.Attachment != nil && awssdk.ToInt32(nic.Attachment.NetworkCardIndex) == 0 {
			used[awssdk.ToInt32(nic.Attachment.DeviceIndex)] = true
		}
	}
	index := int32(1)
	for used[index] {
		index++
	}
	return index, nil
}

// privateAddresses returns the addresses of an interface in its subnet.
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

// describeAttachment returns the state of an interface for people.
func describeAttachment(nic *types.NetworkInterface) string {
	if nic.Attachment == nil {
		return string(nic.Status)
	}
	return fmt.Sprintf("%s, attachment to %s %s", nic.Status, awssdk.ToString(nic.Attachment.InstanceId), nic.Attachment.Status)
}
