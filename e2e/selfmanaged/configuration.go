// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/server/storage"
)

// Secrets of the storage, and the files in which the machine of the control plane gets them.
const (
	authorityName    = "kubernetes-ca"
	authorityFile    = authorityName + ".crt"
	authorityKeyFile = authorityName + ".key"
	nonceSecret      = "operator-nonce.env"
	// joinSecret is the secret that manifests/agent/join-secret.sh stores.
	joinSecret = "join.json"
)

// Templates of machines that join the cluster: with a certificate of their own, or with a token that they
// receive in a file.
const (
	certificateTemplate = "worker"
	tokenTemplate       = "token-worker"
)

// auditVolume is the volume with the audit log of the API server.
const auditVolume = "audit"

// capiUser is Cluster API in the audit log.
const capiUser = "system:serviceaccount:" + capiNamespace + ":capi-manager"

// serviceNetwork has the addresses of Services. No other program of the tests has a route to it.
const serviceNetwork = "10.98.0.0/16"

// The names of a certificate template, and of the key that the agent creates for it.
const (
	bootstrapTemplate = "bootstrap"
	bootstrapKey      = "bootstrap"
)

//go:embed userdata/node.sh
var nodeUserdata string

//go:embed userdata/worker.sh
var workerUserdata string

//go:embed userdata/control-plane.sh
var controlPlaneUserdata string

//go:embed userdata/initialize.sh
var initializeUserdata string

// object is a JSON object.
type object = map[string]any

// writeConfiguration writes the configuration of a shard and returns its path.
func (c *Cluster) writeConfiguration(s *shard) (string, error) {
	configuration, err := c.configuration(s)
	if err != nil {
		return "", err
	}
	data, err := json.MarshalIndent(configuration, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the configuration of shard %s: %w", s.id, err)
	}
	path := filepath.Join(c.options.Dir, "configuration", s.id+".jsonc")
	return path, writeFile(path, data)
}

// storedConfiguration is the configuration that a server reads, and reads again.
func (c *Cluster) storedConfiguration(shard string) string {
	return filepath.Join(c.bucket(), filepath.FromSlash(storage.ConfigKey(shard)))
}

func (c *Cluster) configuration(s *shard) (object, error) {
	privileges, err := dockerhost.Privileges()
	if err != nil {
		return nil, err
	}
	bridge := c.options.Docker.Bridge
	here := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	machines := func(port int) string { return net.JoinHostPort(bridge, strconv.Itoa(port)) }
	template := func(kind, userdata string, volumes []string, files object) object {
		return object{
			"kind": kind, "arch": "amd64", "instance_type": "medium.amd64", "subnet_pool": "default",
			"args":     object{"privileges": privileges, "volumes": volumes},
			"userdata": nodeUserdata + userdata,
			"files":    files,
			"vars": object{
				"registry": c.options.Registry,
				"version":  c.options.Version, "endpoint": c.balancer.address(), "dns": c.options.DNS.String(),
				"pod_network": c.options.PodNetwork, "service_network": serviceNetwork,
				"operator": installation.OperatorUser, "cluster_api": capiUser,
				// Userdata of a replicated control plane has these.
				"initialize_before": c.initializeBefore(s), "members": strconv.Itoa(len(c.shards)),
			},
		}
	}
	groups := object{}
	if s == c.shards[0] || c.options.Replicated {
		groups[ControlPlaneGroup] = object{"template": "control-plane", "size": 1, "replace_unhealthy": false}
	}
	if s != c.shards[0] {
		groups[SystemGroup] = object{"template": certificateTemplate, "size": 1}
	}
	secret := func(name string) object { return object{"kind": "secret", "source": name, "once": true} }
	ownCertificate := object{
		"kind": "certificate", "template": bootstrapTemplate, "key": object{"source": "agent", "name": bootstrapKey},
	}
	controlPlane := template("cpl", controlPlaneUserdata+initializeUserdata, []string{
		// The machine can be replaced: what the cluster cannot lose is not on it.
		c.volume("etcd") + ":/var/lib/etcd", c.volume("pki") + ":/etc/kubernetes/pki", c.volume(auditVolume) + ":/var/log/kubernetes",
		c.seedFolder() + ":/seed:ro", c.options.Kube + ":/usr/local/bin/kubectl:ro",
	}, object{
		authorityFile: secret(authorityFile), authorityKeyFile: secret(authorityKeyFile), nonceSecret: secret(nonceSecret),
	})
	if c.options.Replicated {
		files := object{"bootstrap.crt": ownCertificate, joinSecret: object{"kind": "json", "json": c.joinKubeconfig()}}
		for _, name := range append(sharedKeys(), authorityFile, authorityKeyFile) {
			files[name] = secret(name)
		}
		if s == c.shards[0] {
			files[nonceSecret] = secret(nonceSecret)
		}
		controlPlane = template("cpl", controlPlaneUserdata+replicaUserdata+initializeUserdata, []string{
			c.seedFolder() + ":/seed:ro", c.options.Kube + ":/usr/local/bin/kubectl:ro", c.options.Kube + ":/usr/local/bin/etcdctl:ro",
		}, files)
	}
	return object{
		"cluster": object{
			"id":      installation.ClusterID,
			"secrets": object{"provider": "object-storage", "encryption_key": object{"file": c.encryptionKey()}},
		},
		"certificates": object{bootstrapTemplate: object{
			"kind": "client", "cn": "system:node:{{.Instance.ID}}", "organization": []string{"system:nodes"}, "ttl": "1h",
		}},
		"shard": object{
			"id": s.id,
			"infra": object{
				"provider": "docker", "region": "us-west-2", "zone": s.id,
				"options": object{
					"host": c.options.Docker.Address, "image": c.options.Image, "stop_timeout": "5s", "metadata_addr": machines(s.metadata),
				},
			},
			"bind": object{
				"health_addr": here(s.health), "election_addr": here(s.election), "registration_addr": machines(s.registration),
				"operator_addr": machines(s.operator), "agent_addr": machines(s.agent),
			},
			// Docker needs some seconds for a container on a machine that is busy: a server makes no call for which
			// its lease may be too short.
			"leader_election":       object{"interval": "6s", "timeout": "30s"},
			"subnet_pools":          object{"default": []string{"bridge"}},
			"default_drain_timeout": "2m",
			"health_check_interval": "10s",
		},
		"templates": object{
			certificateTemplate: template("knd", workerUserdata, []string{}, object{
				"bootstrap.crt": ownCertificate,
				joinSecret:      object{"kind": "json", "json": c.joinKubeconfig()},
			}),
			tokenTemplate:   template("knt", workerUserdata, []string{}, object{joinSecret: secret(joinSecret)}),
			"control-plane": controlPlane,
		},
		"groups": object{installation.Tenant: groups},
	}, nil
}

// joinKubeconfig is the kubeconfig with which a machine joins: kubeadm finds the API server and its CA in it,
// and the kubelet requests its certificate with it. It has no secret.
func (c *Cluster) joinKubeconfig() object {
	const name = "kubernetes"
	return object{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []object{{"name": name, "cluster": object{
			"server":                     "https://" + c.balancer.address(),
			"certificate-authority-data": base64.StdEncoding.EncodeToString(c.authority.certificatePEM()),
		}}},
		"users": []object{{"name": "machine", "user": object{
			"client-certificate": "/opt/nstance-agent/recv/bootstrap.crt",
			"client-key":         "/opt/nstance-agent/keys/" + bootstrapKey + ".key",
		}}},
		"contexts": []object{{"name": name, "context": object{"cluster": name, "user": "machine"}}},
	}
}

// volume is the folder of this machine that is the data of the control plane.
func (c *Cluster) volume(name string) string { return filepath.Join(c.options.Dir, "volumes", name) }

func (c *Cluster) seedFolder() string { return filepath.Join(c.options.Dir, "seed") }
