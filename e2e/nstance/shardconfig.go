// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstance

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Group is a static group: one that is in a server's own configuration.
type Group struct {
	// Size is how many instances the group has as long as no operator says
	// otherwise.
	Size int32
	// InstanceType is the template's when empty.
	InstanceType string
}

// Reconfigure changes what a shard's configuration file says. A server that
// runs takes it over when it reads the file next; its ports stay.
func (n *Nstance) Reconfigure(shardID string, change func(*Shard)) error {
	shard, err := n.shard(shardID)
	if err != nil {
		return err
	}
	changed := *shard
	change(&changed)
	changed.ID, changed.OperatorPort, changed.HealthPort = shard.ID, shard.OperatorPort, shard.HealthPort
	if err := n.writeShardConfig(changed); err != nil {
		return err
	}
	*shard = changed
	return nil
}

// prepareShard writes the server's certificate and its access to the cluster
// in which its instances are Nodes.
func (n *Nstance) prepareShard(shard Shard) error {
	certPEM, keyPEM, err := n.authority.IssueServer([]string{"127.0.0.1", "localhost"}, certificateLifetime)
	if err != nil {
		return fmt.Errorf("issuing the certificate of shard %s: %w", shard.ID, err)
	}
	dir := n.shardDir(shard.ID)
	if err := n.writeFile(filepath.Join(dir, "tls.crt"), certPEM); err != nil {
		return err
	}
	if err := n.writeFile(filepath.Join(dir, "tls.key"), keyPEM); err != nil {
		return err
	}
	kubeconfig, err := n.cp.Kubeconfig(shard.Component())
	if err != nil {
		return err
	}
	return os.Symlink(kubeconfig, filepath.Join(dir, "kubeconfig"))
}

// writeShardConfig replaces the server's configuration file in one step.
func (n *Nstance) writeShardConfig(shard Shard) error {
	config, err := json.MarshalIndent(n.shardConfig(shard), "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the configuration of shard %s: %w", shard.ID, err)
	}
	path := n.shardConfigPath(shard.ID)
	if err := n.writeFile(path+".new", config); err != nil {
		return fmt.Errorf("writing the configuration of shard %s: %w", shard.ID, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing the configuration of shard %s: %w", shard.ID, err)
	}
	return nil
}

func (n *Nstance) shardConfig(shard Shard) object {
	groups := object{}
	for id, group := range shard.Groups {
		static := object{"template": "worker", "size": group.Size}
		if group.InstanceType != "" {
			static["instance_type"] = group.InstanceType
		}
		groups[id] = static
	}
	// Relative paths are relative to the configuration file.
	options := object{"kubeconfig": "kubeconfig", "boot_delay": "1s"}
	if len(shard.Quota) > 0 {
		options["quota"] = shard.Quota
	}
	return object{
		"cluster": object{"id": ClusterID},
		"shard": object{
			"id": shard.ID,
			"infra": object{
				"provider": "kwok",
				"region":   "us-west-2",
				"zone":     shard.ID,
				"options":  options,
			},
			"bind": object{
				"health_addr":   address(shard.HealthPort),
				"operator_addr": address(shard.OperatorPort),
			},
			"tls":          object{"ca": n.caFile(), "cert": "tls.crt", "key": "tls.key"},
			"subnet_pools": object{"default": []string{"subnet-a"}},
		},
		"templates": object{
			"worker": object{
				"kind":          "knd",
				"arch":          "amd64",
				"instance_type": "m7i.large",
				"subnet_pool":   "default",
			},
		},
		"groups": object{Tenant: groups},
	}
}

func (n *Nstance) shardDir(id string) string { return filepath.Join(n.dir, id) }

func (n *Nstance) shardConfigPath(id string) string {
	return filepath.Join(n.shardDir(id), "config.jsonc")
}

// object is a JSON object.
type object = map[string]any
