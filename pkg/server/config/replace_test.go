// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"strings"
	"testing"
)

func TestCheckReplacement(t *testing.T) {
	tests := []struct{ name, old, new, want string }{
		{"nothing", ``, ``, ``},
		{"cluster", `"id": "prod"`, `"id": "other"`, `cluster.id: Invalid value: "other": needs a restart of the server, which runs with "prod"`},
		{"shard", `"id": "us-west-2a"`, `"id": "b"`, `shard.id: Invalid value: "b"`},
		{"region", `"region": "us-west-2"`, `"region": "x"`, `shard.infra.region: Invalid value: "x"`},
		{"zone", `"zone": "us-west-2a"`, `"zone": "x"`, `shard.infra.zone: Invalid value: "x"`},
		{"election of the cluster", `"enabled": false`, `"enabled": true`, `cluster.leader_election.enabled: Invalid value: "true": needs a restart of the server, which runs with "false"`},
		{"election of the shard", `"interval": "2s"`, `"interval": "1s"`, `shard.leader_election.interval: Invalid value: "1s": needs a restart of the server, which runs with "2s"`},
		{"timeout of an election", `"timeout": "6s"`, `"timeout": "7s"`, `shard.leader_election.timeout: Invalid value: "7s"`},
		{"encryption key", `"NSTANCE_KEY"`, `"OTHER_KEY"`, `cluster.secrets.encryption_key: Invalid value: "env OTHER_KEY": needs a restart of the server, which runs with "env NSTANCE_KEY"`},
		{"encryption key in a file of the same name", `{"env": "NSTANCE_OLDER_KEY"}`, `{"file": "/NSTANCE_OLDER_KEY"}`, `cluster.secrets.old_encryption_keys: Invalid value: "[file /etc/nstance/old.key file /NSTANCE_OLDER_KEY]"`},
		{"option of the provider", `"/etc/endpoint"`, `"/x"`, `shard.infra.options.endpoint: Invalid value: "/x": needs a restart of the server, which runs with "/etc/endpoint"`},
		{"health address", `"0.0.0.0:8990"`, `":1"`, `shard.bind.health_addr: Invalid value: ":1"`},
		{"election address", `"0.0.0.0:8991"`, `":1"`, `shard.bind.election_addr: Invalid value: ":1"`},
		{"registration address", `"0.0.0.0:8992"`, `":1"`, `shard.bind.registration_addr: Invalid value: ":1"`},
		{"operator address", `"[::]:8993"`, `":1"`, `shard.bind.operator_addr: Invalid value: ":1"`},
		{"advertised address", `"shard-a.example:443"`, `""`, `shard.advertise.registration_addr: Invalid value: "": needs a restart of the server, which runs with "shard-a.example:443"`},
		{"expiry", `"21d"`, `"20d"`, ``},
		{"drain timeout", `"4m"`, `"0s"`, ``},
		{"rate limit", `"create_rate_limit": "1s",`, ``, ``},
		{"garbage collection", `"3m"`, `"2m"`, ``},
		{"bounds of calls", `"29s"`, `"28s"`, ``},
		{"certificates of operators", `48`, `24`, ``},
		{"defaults", `{"tier": "none"}`, `{}`, ``},
		{"drain timeout of a group", `"90s"`, `"0s"`, ``},
		{"groups", `"size": 3`, `"size": 4`, ``},
		{"templates", `{"role": "worker"}`, `{}`, ``},
		{"subnet pools", `"subnet-b"`, `"subnet-d"`, ``},
		{"pools of dynamic groups", `["default"]`, `[]`, ``},
	}
	before := parsed(t, example)
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(example, tc.old) {
				t.Fatalf("the example has no %s", tc.old)
			}
			next := parsed(t, strings.Replace(example, tc.old, tc.new, 1))
			errs := before.CheckReplacement(next)
			if tc.want == "" {
				if len(errs) != 0 {
					t.Errorf("got %v, want no error", errs)
				}
				return
			}
			if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), tc.want) {
				t.Errorf("got %v, want %s", errs, tc.want)
			}
		})
	}
}
