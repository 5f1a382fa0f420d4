// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// configFile is the name of the configuration file in the server's folder.
const configFile = "shard.jsonc"

// SetConfig changes the options that are keys of the configuration, writes the
// file anew, and returns when the server has put it in force or refused it.
func (s *Server) SetConfig(change func(*Options)) {
	s.t.Helper()
	change(&s.options)
	s.WriteConfig(s.options.configuration())
}

// WriteConfig is SetConfig for a file of any content. A file that is refused
// has been reported when it returns.
func (s *Server) WriteConfig(content string) {
	s.t.Helper()
	s.writeFile(configFile, []byte(content))
	s.ReadConfig()
}

// ReadConfig lets the server look at its configuration file and returns when it
// has done so often enough to act on what it found, or has stopped.
func (s *Server) ReadConfig() {
	// It takes the next one only when it is done with the former, and reports a
	// file that is wrong the second time.
	for range 3 {
		select {
		case s.readConfig <- time.Now():
		case <-s.stopped:
		}
	}
}

// ConfigPath is the path of the configuration file. ReadConfig tells the server
// of a change of it.
func (s *Server) ConfigPath() string {
	return filepath.Join(s.folder, configFile)
}

func (s *Server) writeFile(name string, content []byte) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.folder, name), content, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

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
				"options": {"kubeconfig": "kubeconfig", "boot_delay": %q, "instance_types": %s, "quota": %s},
			},
			"bind": {"health_addr": "127.0.0.1:0", "operator_addr": %q},
			"tls": {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"},
			"subnet_pools": %s,
			"dynamic_subnet_pools": %s,
		},
		"templates": %s,
		"groups": %s,
	}`, ClusterID, shard, shard, o.BootDelay, cmp.Or(o.InstanceTypes, `{}`), cmp.Or(o.Quota, `{}`), cmp.Or(o.Addr, "127.0.0.1:0"),
		cmp.Or(o.SubnetPools, `{"default": ["subnet-a"]}`),
		cmp.Or(o.DynamicSubnetPools, `[]`),
		cmp.Or(o.Templates, `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}}`),
		cmp.Or(o.Groups, `{}`))
}
