// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/agentcloud"
	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// Groups of the machine shard, which have one machine each, and their templates.
const (
	// intruders has a machine of which an attacker is root, and victims one with a secret.
	intruders, victims = "intruders", "victims"
	// liars has a machine with a certificate for the host name that its agent reports.
	liars = "liars"
	// revoked has a machine whose certificate is revoked.
	revoked = "revoked"
	// stolen is a group that a test creates, with a machine whose agent does not start: its nonce is
	// not used.
	stolen = "stolen"
)

// Secrets of the machine shard that machines get as a file. No other machine may see them.
const (
	intruderSecret = "intruder-8d1f03a2"
	victimSecret   = "victim-5c77e9b4"
)

// lie is the host name that every agent reports.
const lie = "kubernetes.default.svc"

// machines is the shard whose machines run agents.
var machines struct {
	cloud *agentcloud.Cloud
	// dir has the folders of the machines.
	dir string
	// component is the name of the component that runs the server.
	component string
	// The ports of the server.
	operator, health, registration, election, agent int
}

// object is a JSON object.
type object = map[string]any

// userdata writes the files that an agent needs, and the var with which a user can be greeted. The
// folder of the machine is the working directory.
const userdata = `set -eu
umask 077
mkdir identity
cat >identity/ca.crt <<'PEM'
{{.Cluster.CACert}}
PEM
printf '%s' '{{.Nonce}}' >identity/nonce.jwt
printf '%s' {{shellQuote .Vars.greeting}} >greeting
[ {{.Instance.Group}} != ` + stolen + ` ] || exit 0
cat >agent.env <<ENV
NSTANCE_INSTANCE_ID={{.Instance.ID}}
NSTANCE_SERVER_REGISTRATION_ADDR={{.Server.RegistrationAddr}}
NSTANCE_SERVER_AGENT_ADDR={{.Server.AgentAddr}}
NSTANCE_SERVER_URI=nstance://{{.Cluster.ID}}/{{.Server.Shard}}
NSTANCE_REPORT_INTERVAL={{.Server.HealthCheckInterval}}
NSTANCE_INSTANCE_HOSTNAME=` + lie + `
NSTANCE_IDENTITY_DIR=identity
NSTANCE_KEYS_DIR=keys
NSTANCE_RECV_DIR=recv
ENV
`

// startMachineShard starts a server with the machines, and adds it to the operator's shards.
func startMachineShard(ctx context.Context) error {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return err
	}
	agent, server, err := controlplane.Builder{Root: root, Progress: os.Stderr}.Agents(ctx)
	if err != nil {
		return err
	}
	m := &machines
	m.component = installation.Shard{ID: machineShard}.Component()
	if m.dir, err = os.MkdirTemp("", "nstance-attackers-"); err != nil {
		return err
	}
	if m.cloud, err = agentcloud.Start(ctx, agentcloud.Options{
		Agent: agent, Dir: m.dir, Address: netip.MustParseAddr(loopback),
	}); err != nil {
		return err
	}
	if err := controlplane.FillInPorts([]*int{&m.operator, &m.health, &m.registration, &m.election, &m.agent}); err != nil {
		return err
	}
	stored, err := openSecrets()
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"intruder": intruderSecret, "victim": victimSecret} {
		if err := stored.Create(ctx, name, []byte(strconv.Quote(value))); err != nil {
			return err
		}
	}
	if err := writeMachineConfig(machineConfig()); err != nil {
		return err
	}
	_, err = env.Run(ctx, controlplane.Spec{
		Name: m.component,
		Argv: []string{
			server, "--shard", machineShard, "--id", "1", "--host", loopback, "--bucket", env.Installation.Bucket(),
			"--cache-dir", env.Installation.CacheDir(m.component), "--v", "2",
		},
		Ports: []int{m.operator, m.health, m.registration, m.election, m.agent},
		Ready: controlplane.Probe{URL: "http://" + at(m.health) + "/health"},
	})
	if err != nil {
		return err
	}
	return env.SetShardAddress(ctx, machineShard, at(m.operator))
}

// stopMachines stops all machines.
func stopMachines() error {
	if machines.cloud == nil {
		return nil
	}
	return errors.Join(machines.cloud.Close(), os.RemoveAll(machines.dir))
}

func at(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// openSecrets opens the secrets in the bucket with the encryption key, as an administrator does.
func openSecrets() (secrets.Store, error) {
	key, err := secrets.ReadKey(config.KeySource{File: env.Installation.EncryptionKeyFile()})
	if err != nil {
		return nil, err
	}
	store, err := file.Open(env.Installation.Bucket())
	if err != nil {
		return nil, err
	}
	return secrets.New(store, key)
}

// writeMachineConfig replaces the configuration of the machine shard in one step. Its server
// applies it when it reads the configuration next.
func writeMachineConfig(configuration object) error {
	data, err := json.MarshalIndent(configuration, "", "  ")
	if err != nil {
		return err
	}
	path := bucketObject(storage.ConfigKey(machineShard))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path+".new", data, 0o600), os.Rename(path+".new", path))
}

// bucketObject is the file of an object in the bucket.
func bucketObject(key string) string {
	return filepath.Join(env.Installation.Bucket(), filepath.FromSlash(key))
}

func machineConfig() object {
	m := machines
	template := func(files object) object {
		return object{
			"kind": "knd", "arch": "amd64", "instance_type": agentcloud.InstanceType, "subnet_pool": "default",
			"vars": object{"greeting": "hello"}, "limits": object{"vars": []string{"greeting"}}, "files": files,
		}
	}
	group := func(template string) object { return object{"template": template, "size": 1} }
	return object{
		"cluster": object{
			"id":      installation.ClusterID,
			"secrets": object{"provider": "object-storage", "encryption_key": object{"file": env.Installation.EncryptionKeyFile()}},
		},
		"shard": object{
			"id": machineShard,
			"infra": object{
				"provider": agentcloud.Name, "region": "us-west-2", "zone": machineShard,
				"options": object{"url": m.cloud.URL, "check_source_address": true},
			},
			"bind": object{
				"health_addr": at(m.health), "election_addr": at(m.election), "registration_addr": at(m.registration),
				"operator_addr": at(m.operator), "agent_addr": at(m.agent),
			},
			"garbage_collection":    object{"interval": "5s", "registration_timeout": "1h"},
			"health_check_interval": "2s",
			"subnet_pools":          object{"default": []string{"subnet-m"}},
			"default_drain_timeout": "0s",
		},
		"defaults": object{"userdata": userdata},
		"templates": object{
			intruders: template(object{
				"own.json": object{"kind": "secret", "source": "intruder"},
				"own.env":  object{"kind": "env", "env": object{"OWN": "{{.Instance.ID}}"}},
			}),
			liars: template(object{
				"names.crt": object{"kind": "certificate", "template": "names", "key": object{"source": "agent", "name": "names"}},
			}),
			victims: template(object{
				"victim.json": object{"kind": "secret", "source": "victim"},
				"own.crt":     object{"kind": "certificate", "template": "own", "key": object{"source": "agent", "name": "own"}},
			}),
			revoked: template(object{}),
			stolen:  template(object{}),
		},
		"certificates": object{
			"own":   object{"kind": "client", "cn": "system:node:{{.Instance.ID}}"},
			"names": object{"kind": "server", "cn": "{{.Instance.ID}}", "dns": []string{"{{.Instance.Hostname}}"}},
		},
		"groups": object{installation.Tenant: object{
			intruders: group(intruders), victims: group(victims), liars: group(liars), revoked: group(revoked),
		}},
	}
}

// machineOf returns the instance id and the folder of the machine of a group, when the machine has a
// file.
func machineOf(t *testing.T, group, name string) (id, folder string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "a machine of group "+group+" has the file "+name, func(context.Context) error {
		records, err := env.Installation.Records(machineShard)
		if err != nil {
			return err
		}
		for _, record := range records {
			if record.Group == group {
				id, folder = record.ID, machines.cloud.Folder(record.ID)
				_, err := os.Stat(filepath.Join(folder, name))
				return err
			}
		}
		return fmt.Errorf("%d instances, none of the group", len(records))
	})
	return id, folder
}

func readFile(t *testing.T, elements ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)
	return string(data)
}
