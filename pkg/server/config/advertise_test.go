// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import "testing"

func TestAdvertised(t *testing.T) {
	tests := []struct{ name, advertise, bound, want string }{
		{"what is advertised", "shard-a.example:443", "0.0.0.0:8993", "shard-a.example:443"},
		{"what is bound when nothing is advertised", "", "10.0.0.1:40123", "10.0.0.1:40123"},
		{"the machine for all of its addresses", "", "0.0.0.0:8993", "192.0.2.7:8993"},
		{"the machine for all of its addresses of both families", "", "[::]:8993", "192.0.2.7:8993"},
		{"the machine for no host", ":443", "10.0.0.1:8993", "192.0.2.7:443"},
		{"one address of the sixth version", "[2600:1f18::a]:8993", "[::]:1", "[2600:1f18::a]:8993"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			addresses := func(address string) Addresses { return Addresses{address, address, address, address, address} }
			shard := Shard{Advertise: addresses(tc.advertise)}
			if got := shard.Advertised(addresses(tc.bound), "192.0.2.7"); got != addresses(tc.want) {
				t.Errorf("got %+v, want %s", got, tc.want)
			}
		})
	}
	// Each is its own.
	shard := Shard{Advertise: Addresses{OperatorAddr: "o:1"}}
	want := Addresses{"h:1", "e:1", "r:1", "o:1", ""}
	if got := shard.Advertised(Addresses{"h:1", "e:1", "r:1", "x:1", ""}, "m"); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
