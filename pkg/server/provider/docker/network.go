// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"math"
	"strings"

	"github.com/moby/moby/api/types/network"
)

// reservedAddresses are the addresses of an IPv4 subnet that no container gets: its own and
// that of broadcasts.
const reservedAddresses = 2

// roomOf returns how many more containers a network has IPv4 addresses for. A network that
// assigns none has room without a limit.
func roomOf(n network.Inspect) int {
	room, limited := 0, false
	for _, pool := range n.IPAM.Config {
		if !pool.Subnet.IsValid() || !pool.Subnet.Addr().Is4() {
			continue
		}
		limited = true
		addresses := pool.Subnet
		if pool.IPRange.IsValid() {
			addresses = pool.IPRange
		}
		room += 1 << (32 - addresses.Bits())
		if addresses == pool.Subnet {
			room -= reservedAddresses
		}
		// The daemon assigns a gateway if none is configured.
		if !pool.Gateway.IsValid() || addresses.Contains(pool.Gateway) {
			room--
		}
		for _, used := range pool.AuxAddress {
			if addresses.Contains(used) {
				room--
			}
		}
	}
	if !limited {
		return math.MaxInt32
	}
	return max(0, room-len(n.Containers))
}

// isOutOfAddresses reports whether the daemon had no address for a container. It has no
// error of its own for that.
func isOutOfAddresses(err error) bool {
	return strings.Contains(err.Error(), "no available IPv4 addresses") || strings.Contains(err.Error(), "no available ip addresses")
}
