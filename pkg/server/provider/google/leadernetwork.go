// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	metadataserver "cloud.google.com/go/compute/metadata"
	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider"
)

const (
	// assignInterval is how often a leader reads whether it still has the address.
	assignInterval = 30 * time.Second
	// defaultInterface is the network interface that every virtual machine has.
	defaultInterface = "nic0"
	// metadataTimeout limits a request to the metadata server.
	metadataTimeout = 5 * time.Second
)

var interfaceNames = regexp.MustCompile(`^nic[0-9]$`)

var (
	_ provider.LeaderNetworkOptions = (*Options)(nil)
	_ provider.LeaderNetwork        = (*leaderNetwork)(nil)
)

// ValidateLeaderNetwork requires an IPv4 address, and a valid name of the network interface
// if it is set.
func (*Options) ValidateLeaderNetwork(path *field.Path, network provider.Network) field.ErrorList {
	var errs field.ErrorList
	if network.InterfaceID != "" && !interfaceNames.MatchString(network.InterfaceID) {
		errs = append(errs, field.Invalid(path.Child("interface_id"), network.InterfaceID, "must be the name of a network interface of the servers' machines, such as "+defaultInterface))
	}
	if !network.IP.Is4() || network.IP.IsLoopback() || network.IP.IsLinkLocalUnicast() {
		errs = append(errs, field.Invalid(path.Child("ip"), network.IP.String(), "must be an IPv4 address of the subnetwork of the servers"))
	}
	return errs
}

// NewLeaderNetwork returns a LeaderNetwork that assigns an alias IP range to the virtual
// machine of this server (https://cloud.google.com/vpc/docs/alias-ip).
func (o *Options) NewLeaderNetwork(shard provider.Shard) (provider.LeaderNetwork, error) {
	api, err := NewAPI(o, shard)
	if err != nil {
		return nil, err
	}
	return newLeaderNetwork(api, &http.Client{Timeout: metadataTimeout}), nil
}

// newLeaderNetwork uses client for the metadata server.
func newLeaderNetwork(api *API, client *http.Client) *leaderNetwork {
	return &leaderNetwork{api: api, metadata: metadataserver.NewClient(client).GetWithContext}
}

// leaderNetwork assigns the address of the leader to the virtual machine of this server, as
// an alias IP range of its network interface. It stores no state of the address.
type leaderNetwork struct {
	api      *API
	metadata func(ctx context.Context, suffix string) (string, error)

	// mu guards own, which is empty until it is known.
	mu  sync.Mutex
	own self
}

// self identifies the virtual machine of this server.
type self struct{ id, name string }

// AssignInterval returns how often the network interface is read.
func (*leaderNetwork) AssignInterval() time.Duration { return assignInterval }

// Assign removes the address from other network interfaces, and adds it to the interface of
// this virtual machine. Each request contains the fingerprint of the interface that was read,
// and Compute Engine allows an address on one interface of a network only. If an interface
// has changed since it was read, Assign returns an error. The caller repeats Assign, which
// reads again.
func (n *leaderNetwork) Assign(ctx context.Context, network provider.Network) error {
	own, err := n.machine(ctx)
	if err != nil {
		return err
	}
	nic, err := n.read(ctx, own, network)
	if err != nil || nic.has(network.IP) {
		return err
	}
	others, err := n.owners(ctx, network.IP)
	if err != nil {
		return err
	}
	for _, other := range others {
		if err := n.change(ctx, other.machine, other.nic, other.nic.without(network.IP)); err != nil {
			return fmt.Errorf("take the address %s from virtual machine %s: %w", network.IP, other.machine, err)
		}
	}
	if err := n.change(ctx, own.name, nic, nic.with(network.IP)); err != nil {
		return fmt.Errorf("give the address %s to this virtual machine, %s: %w", network.IP, own.name, err)
	}
	return nil
}

// Release removes the address from this virtual machine only.
func (n *leaderNetwork) Release(ctx context.Context, network provider.Network) error {
	own, err := n.machine(ctx)
	if err != nil {
		return err
	}
	nic, err := n.read(ctx, own, network)
	if err != nil || !nic.has(network.IP) {
		return err
	}
	if err := n.change(ctx, own.name, nic, nic.without(network.IP)); err != nil {
		return fmt.Errorf("take the address %s from this virtual machine, %s: %w", network.IP, own.name, err)
	}
	return nil
}

// machine returns the virtual machine of this server, from the metadata server
// (https://cloud.google.com/compute/docs/metadata/overview).
func (n *leaderNetwork) machine(ctx context.Context) (self, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.own != (self{}) {
		return n.own, nil
	}
	values := map[string]string{}
	for _, suffix := range []string{"instance/id", "instance/name", "instance/zone", "project/project-id"} {
		text, err := n.metadata(ctx, suffix)
		if err != nil {
			return self{}, fmt.Errorf("read %s of this virtual machine from the metadata server: %w", suffix, err)
		}
		values[suffix] = strings.TrimSpace(text)
	}
	own := self{id: values["instance/id"], name: values["instance/name"]}
	zone := values["instance/zone"]
	zone = zone[strings.LastIndex(zone, "/")+1:]
	switch {
	case zone != n.api.shard.Zone || values["project/project-id"] != n.api.options.Project:
		return self{}, fmt.Errorf("this virtual machine is in zone %s of project %s, and the address of the leader needs one in zone %s of project %s",
			zone, values["project/project-id"], n.api.shard.Zone, n.api.options.Project)
	case own.id == "" || !names.MatchString(own.name):
		return self{}, fmt.Errorf("the metadata server has %q as the id and %q as the name of this virtual machine", own.id, own.name)
	}
	n.own = own
	return own, nil
}

// read returns the network interface of this virtual machine when no change of it is in
// progress. During a change, it may show an address that is not there yet, and the change may
// fail.
func (n *leaderNetwork) read(ctx context.Context, own self, network provider.Network) (networkInterface, error) {
	running, err := n.api.operations(ctx, fmt.Sprintf("status != %q", statusDone))
	if err != nil {
		return networkInterface{}, fmt.Errorf("read the operations in progress: %w", err)
	}
	for _, op := range running {
		if op.TargetID != own.id || !strings.HasSuffix(op.OperationType, "updateNetworkInterface") {
			continue
		}
		if err := n.api.await(ctx, op, time.Now().Add(n.api.timeout)); err != nil && !isFailure(err) {
			return networkInterface{}, fmt.Errorf("wait for a change of the network interface of this virtual machine, %s: %w", own.name, err)
		}
	}
	vm, err := n.api.get(ctx, own.name)
	if err != nil {
		return networkInterface{}, fmt.Errorf("read this virtual machine, %s: %w", own.name, err)
	}
	if vm.ID != own.id {
		return networkInterface{}, fmt.Errorf("virtual machine %s has the id %s, and this one has %s", own.name, vm.ID, own.id)
	}
	wanted := cmp.Or(network.InterfaceID, defaultInterface)
	for _, nic := range vm.NetworkInterfaces {
		if nic.Name == wanted {
			return nic, nil
		}
	}
	return networkInterface{}, fmt.Errorf("this virtual machine, %s, has no network interface %s", own.name, wanted)
}

// owner is a network interface with the address, and the name of its virtual machine.
type owner struct {
	machine string
	nic     networkInterface
}

// owners returns the network interfaces of the zone that have the address as an alias. It
// returns an error if a virtual machine has the address in another way: then it is not the
// leader's.
func (n *leaderNetwork) owners(ctx context.Context, ip netip.Addr) ([]owner, error) {
	all, err := n.api.interfaces(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the virtual machine with the address %s: %w", ip, err)
	}
	var owners []owner
	for _, vm := range all {
		for _, nic := range vm.NetworkInterfaces {
			if nic.NetworkIP == ip.String() {
				return nil, fmt.Errorf("%s is the primary address of virtual machine %s", ip, vm.Name)
			}
			for _, alias := range nic.AliasIPRanges {
				switch prefix, ok := alias.prefix(); {
				case !ok || !prefix.Contains(ip):
				case !prefix.IsSingleIP():
					return nil, fmt.Errorf("%s is an address of the alias IP range %s of virtual machine %s", ip, prefix, vm.Name)
				default:
					owners = append(owners, owner{vm.Name, nic})
				}
			}
		}
	}
	return owners, nil
}

// change replaces the alias IP ranges of a network interface, unless it has changed since it
// was read, and waits for the operation.
func (n *leaderNetwork) change(ctx context.Context, machine string, nic networkInterface, ranges []aliasRange) error {
	n.api.step("change the network interface")
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	op, err := n.api.updateInterface(ctx, machine, nic, ranges)
	if err != nil {
		return err
	}
	return n.api.await(ctx, op, time.Now().Add(n.api.timeout))
}

// aliasRange is an alias IP range of a network interface.
type aliasRange struct {
	Range string `json:"ipCidrRange"`
	// Secondary is the name of the subnetwork's secondary range that contains the range, or
	// empty for the primary range.
	Secondary string `json:"subnetworkRangeName,omitempty"`
}

// prefix returns the range as a prefix. A single address is a prefix, too.
func (r aliasRange) prefix() (netip.Prefix, bool) {
	if address, err := netip.ParseAddr(r.Range); err == nil {
		return netip.PrefixFrom(address, address.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(r.Range)
	return prefix, err == nil
}

// is reports whether the range consists of a single address ip.
func (r aliasRange) is(ip netip.Addr) bool {
	prefix, ok := r.prefix()
	return ok && prefix.IsSingleIP() && prefix.Addr() == ip
}

// has reports whether an address is an alias of the network interface.
func (i networkInterface) has(ip netip.Addr) bool {
	return slices.ContainsFunc(i.AliasIPRanges, func(r aliasRange) bool { return r.is(ip) })
}

// with returns the alias ranges of the network interface and an additional address.
func (i networkInterface) with(ip netip.Addr) []aliasRange {
	return append(slices.Clone(i.AliasIPRanges), aliasRange{Range: netip.PrefixFrom(ip, ip.BitLen()).String()})
}

// without returns the alias ranges of the network interface without an address.
func (i networkInterface) without(ip netip.Addr) []aliasRange {
	return slices.DeleteFunc(slices.Clone(i.AliasIPRanges), func(r aliasRange) bool { return r.is(ip) })
}

// interfaceFields are the fields of virtual machines that are read to find an address.
const interfaceFields = "id,name,networkInterfaces(name,networkIP,fingerprint,aliasIpRanges)"

// interfaces reads the network interfaces of all virtual machines of the zone, including
// virtual machines of others.
func (a *API) interfaces(ctx context.Context) (all []virtualMachine, err error) {
	return listPages(ctx, a, googleapi.Call{
		Name: "compute.instances.list", Path: a.zonePath("instances"), Query: url.Values{},
	}, "compute#instanceList", interfaceFields, all)
}

// updateInterface requests other alias IP ranges of a network interface, unless it has
// changed since it was read
// (https://cloud.google.com/compute/docs/reference/rest/v1/instances/updateNetworkInterface).
func (a *API) updateInterface(ctx context.Context, name string, nic networkInterface, ranges []aliasRange) (op operation, err error) {
	// The HTTP client may repeat the request, with the same id.
	requestID, err := uuid.NewRandom()
	if err != nil {
		return operation{}, err
	}
	body := struct {
		Fingerprint string `json:"fingerprint"`
		// AliasIPRanges is sent even if it is empty. Without the member the ranges would stay.
		AliasIPRanges []aliasRange `json:"aliasIpRanges"`
	}{nic.Fingerprint, ranges}
	return op, a.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.instances.updateNetworkInterface", Method: http.MethodPatch, Path: a.zonePath("instances", name, "updateNetworkInterface"),
		Query: url.Values{"networkInterface": {nic.Name}, "requestId": {requestID.String()}}, Body: body,
	}, &op)
}
