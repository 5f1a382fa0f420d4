// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// reserved is how many addresses of a range no machine has.
const reserved = 4

// subnet is a subnetwork.
type subnet struct {
	cidr string
	size int
	// secondary are its secondary ranges by name.
	secondary map[string]string
	// others is how many addresses other machines have.
	others int
	// exhausted is true if the subnetwork has no addresses, but seems to have some.
	exhausted bool
}

// address returns one that no other machine has.
func (n *subnet) address(id uint64) string {
	base := netip.MustParsePrefix(n.cidr).Addr().As4()
	return netip.AddrFrom4([4]byte{base[0], base[1], byte(id >> 8), byte(id)}).String()
}

// subnetOf returns the subnetwork of a partial address, or nil.
func (s *Server) subnetOf(address string) *subnet {
	name, found := strings.CutPrefix(address, "projects/"+Project+"/regions/"+Region+"/subnetworks/")
	if !found {
		return nil
	}
	return s.subnets[name]
}

// free returns how many addresses a subnetwork has left. mu must be locked.
func (s *Server) free(n *subnet) int {
	free := n.size - reserved - n.others
	for _, one := range s.vms {
		if one.subnet == n {
			free--
		}
	}
	return free
}

func (s *Server) getSubnetwork(r *request) (any, error) {
	name := r.variables["subnetwork"]
	n := s.subnets[name]
	if n == nil || r.variables["region"] != Region {
		return nil, notFound(fmt.Sprintf("projects/%s/regions/%s/subnetworks/%s", Project, r.variables["region"], name))
	}
	all := map[string]any{"kind": "compute#subnetwork", "name": name, "ipCidrRange": n.cidr, "region": root + "projects/" + Project + "/regions/" + Region}
	if r.query("views") == "WITH_UTILIZATION" && !s.NoUtilization {
		free := s.free(n)
		all["utilizationDetails"] = map[string]any{"ipv4Utilizations": []any{
			map[string]any{"rangeName": "pods", "totalAllocatedIp": "0", "totalFreeIp": "1"},
			map[string]any{"totalAllocatedIp": strconv.Itoa(n.size - reserved - free), "totalFreeIp": strconv.Itoa(free)},
		}}
	}
	return all, nil
}
