// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"cmp"
	"fmt"
)

// configuration returns the file that o describes. The paths of its TLS files
// are relative to the file.
func (o Options) configuration() string {
	shard := cmp.Or(o.Shard, "us-west-2a")
	return fmt.Sprintf(`{
		"cluster": {"id": %q},
		"shard": {
			"id": %q,
			"infra": {
				"provider": "kwok", "region": "us-west-2", "zone": %q,
				// Not read: the clientset is given.
				"options": {"kubeconfig": "kubeconfig", "boot_delay": %q},
			},
			"bind": {"health_addr": "127.0.0.1:0", "operator_addr": %q},
			"tls": {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"},
			"subnet_pools": %s,
			"dynamic_subnet_pools": %s,
		},
		"templates": %s,
		"groups": %s,
	}`, ClusterID, shard, shard, o.BootDelay, cmp.Or(o.Addr, "127.0.0.1:0"),
		cmp.Or(o.SubnetPools, `{"default": ["subnet-a"]}`),
		cmp.Or(o.DynamicSubnetPools, `[]`),
		cmp.Or(o.Templates, `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}}`),
		cmp.Or(o.Groups, `{}`))
}
