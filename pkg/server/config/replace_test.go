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
		{"kubeconfig", `"kubeconfig": "kubeconfig"`, `"kubeconfig": "x"`, `shard.infra.options.kubeconfig: Invalid value: "/config/x"`},
		{"boot delay", `"1.5s"`, `"2s"`, `shard.infra.options.boot_delay: Invalid value: "2s": needs a restart of the server, which runs with "1.5s"`},
		{"health address", `"0.0.0.0:8990"`, `":1"`, `shard.bind.health_addr: Invalid value: ":1"`},
		{"operator address", `"[::]:8993"`, `":1"`, `shard.bind.operator_addr: Invalid value: ":1"`},
		{"ca", `"pki/ca.crt"`, `"x"`, `shard.tls.ca: Invalid value: "/config/x"`},
		{"cert", `"/etc/tls.crt"`, `"x"`, `shard.tls.cert: Invalid value: "/config/x"`},
		{"key", `"tls.key"`, `"x"`, `shard.tls.key: Invalid value: "/config/x"`},
		{"groups", `"size": 3`, `"size": 4`, ``},
		{"templates", `{"role": "worker"}`, `{}`, ``},
		{"instance types", `"500m"`, `"1"`, ``},
		{"quota", `"tiny": 3`, `"tiny": 4`, ``},
		{"subnet pools", `"subnet-b"`, `"subnet-d"`, ``},
		{"pools of dynamic groups", `["default"]`, `[]`, ``},
	}
	before, err := Parse([]byte(example), "/config")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(example, tc.old) {
				t.Fatalf("the example has no %s", tc.old)
			}
			next, err := Parse([]byte(strings.Replace(example, tc.old, tc.new, 1)), "/config")
			if err != nil {
				t.Fatal(err)
			}
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
