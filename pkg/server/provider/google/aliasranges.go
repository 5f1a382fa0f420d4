// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"slices"

	"github.com/google/uuid"

	"nstance.dev/operator/pkg/server/googleapi"
)

// aliasRange is an alias IP range of a network interface.
type aliasRange struct {
	Range string `json:"ipCidrRange"`
	// Secondary is the name of the secondary range of the subnetwork that it is of, empty for
	// the primary one.
	Secondary string `json:"subnetworkRangeName,omitempty"`
}

// prefix returns the addresses of the range, which may be a single one.
func (r aliasRange) prefix() (netip.Prefix, bool) {
	if address, err := netip.ParseAddr(r.Range); err == nil {
		return netip.PrefixFrom(address, address.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(r.Range)
	return prefix, err == nil
}

// is reports whether the range has an address and no other one.
func (r aliasRange) is(ip netip.Addr) bool {
	prefix, ok := r.prefix()
	return ok && prefix.IsSingleIP() && prefix.Addr() == ip
}

// has reports whether an address is an alias of the network interface.
func (i networkInterface) has(ip netip.Addr) bool {
	return slices.ContainsFunc(i.AliasIPRanges, func(r aliasRange) bool { return r.is(ip) })
}

// with returns the ranges of the network interface and an address.
func (i networkInterface) with(ip netip.Addr) []aliasRange {
	return append(slices.Clone(i.AliasIPRanges), aliasRange{Range: netip.PrefixFrom(ip, ip.BitLen()).String()})
}

// without returns the ranges of the network interface except an address.
func (i networkInterface) without(ip netip.Addr) []aliasRange {
	return slices.DeleteFunc(slices.Clone(i.AliasIPRanges), func(r aliasRange) bool { return r.is(ip) })
}

// interfaceFields are those of a virtual machine that are read to find an address.
const interfaceFields = "id,name,networkInterfaces(name,networkIP,fingerprint,aliasIpRanges)"

// interfaces reads the network interfaces of all virtual machines of the zone, also of those
// that are not of the shard.
func (a *API) interfaces(ctx context.Context) (all []vm, err error) {
	return listPages(ctx, a, googleapi.Call{
		Name: "compute.instances.list", Path: a.zonePath("instances"), Query: url.Values{},
	}, "compute#instanceList", interfaceFields, all)
}

// updateInterface requests other alias IP ranges of a network interface, on condition that it
// is as it was read.
func (a *API) updateInterface(ctx context.Context, name string, nic networkInterface, ranges []aliasRange) (op operation, err error) {
	// The same one for the attempts that the HTTP client makes.
	requestID, err := uuid.NewRandom()
	if err != nil {
		return operation{}, err
	}
	body := struct {
		Fingerprint string `json:"fingerprint"`
		// AliasIPRanges is sent if it is empty, too: without the member the ranges would stay.
		AliasIPRanges []aliasRange `json:"aliasIpRanges"`
	}{nic.Fingerprint, ranges}
	return op, a.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.instances.updateNetworkInterface", Method: http.MethodPatch, Path: a.zonePath("instances", name, "updateNetworkInterface"),
		Query: url.Values{"networkInterface": {nic.Name}, "requestId": {requestID.String()}}, Body: body,
	}, &op)
}
