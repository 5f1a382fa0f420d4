// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"cmp"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/storage"
)

// OnDemandTemplate is the template of instances that are created for a Pod.
const OnDemandTemplate = "on-demand"

// Labels of the Nodes of that template. A Pod can select its Node by namespace and name, which are
// known before the Pod is created.
const (
	LabelPodNamespace = "example.com/pod-namespace"
	LabelPodName      = "example.com/pod-name"
	LabelPodUID       = "example.com/pod-uid"
)

// UncreatableType is an instance type for OnDemandTemplate that a shard accepts and never creates,
// because the Node would have an invalid label. The instances stay pending. A type without quota
// would be declined.
const UncreatableType = "r7i.4xlarge"

// labelUncreatable is the label, which is empty for other types.
const labelUncreatable = "example.com/uncreatable"

// Group is a static group: it is in a server's configuration.
type Group struct {
	// Size is how many instances the group has until an operator changes it.
	Size int32
	// MinSize is the smallest size that the server accepts, nil for its default.
	MinSize *int32
	// Template is "worker" when empty.
	Template string
	// InstanceType is the template's when empty.
	InstanceType string
	// DrainTimeout is the shard's when zero.
	DrainTimeout time.Duration
	// OperatorVars are the vars that an operator may set: none when nil.
	OperatorVars []string
	// Userdata is appended to the userdata of the template "worker", for machines.
	Userdata string
}

// Reconfigure changes a shard's configuration file. A running server applies the change
// when it reads the file next; its ports stay.
func (n *Installation) Reconfigure(shardID string, change func(*Shard)) error {
	shard, err := n.shard(shardID)
	if err != nil {
		return err
	}
	changed := *shard
	change(&changed)
	changed.ID = shard.ID
	for i, port := range shard.ports() {
		*changed.ports()[i] = *port
	}
	if err := n.writeShardConfig(changed); err != nil {
		return err
	}
	*shard = changed
	return nil
}

// writeShardConfig replaces the server's configuration file in one step.
func (n *Installation) writeShardConfig(shard Shard) error {
	kubeconfig, err := n.nodes().Kubeconfig(shard.Component())
	if err != nil {
		return err
	}
	config, err := json.MarshalIndent(n.shardConfig(shard, kubeconfig), "", "  ")
	if err != nil {
		return fmt.Errorf("encode the configuration of shard %s: %w", shard.ID, err)
	}
	path := n.shardConfigPath(shard.ID)
	if err := n.writeFile(path+".new", config); err != nil {
		return fmt.Errorf("write the configuration of shard %s: %w", shard.ID, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write the configuration of shard %s: %w", shard.ID, err)
	}
	return nil
}

func (n *Installation) shardConfig(shard Shard, kubeconfig string) object {
	groups := object{}
	for id, group := range shard.Groups {
		static := object{"template": cmp.Or(group.Template, "worker"), "size": group.Size}
		if group.Userdata != "" {
			static["template"] = id
		}
		limits := object{}
		if group.MinSize != nil {
			limits["min_size"] = *group.MinSize
		}
		if group.Template == OnDemandTemplate {
			limits["on_demand"] = true
		}
		if group.OperatorVars != nil {
			limits["vars"] = group.OperatorVars
		}
		if len(limits) > 0 {
			static["limits"] = limits
		}
		if group.InstanceType != "" {
			static["instance_type"] = group.InstanceType
		}
		if group.DrainTimeout > 0 {
			static["drain_timeout"] = group.DrainTimeout.String()
		}
		groups[id] = static
	}
	tenants := object{Tenant: groups}
	for _, tenant := range shard.Tenants {
		tenants[tenant] = object{}
	}
	provider, options := "kwok", object{"kubeconfig": kubeconfig, "boot_delay": cmp.Or(shard.BootDelay, time.Second).String()}
	subnet, instanceType := "subnet-a", "m7i.large"
	onDemandLabels := map[string]string{
		LabelPodNamespace: "{{.Vars.pod_namespace}}",
		LabelPodName:      "{{.Vars.pod_name}}",
		LabelPodUID:       "{{.Vars.pod_uid}}",
	}
	nodeLabels := maps.Clone(onDemandLabels)
	nodeLabels[labelUncreatable] = `{{if eq .Instance.Type "` + UncreatableType + `"}}not a label{{end}}`
	worker, onDemand := object{}, object{"args": object{"labels": nodeLabels}}
	shared := object{}
	if len(shard.Tenants) > 0 {
		shared["tenants"] = []string{"*"}
	}
	if n.options.Machines != nil {
		provider, options = "docker", n.options.Machines.options()
		options["metadata_addr"] = n.machineAddress(shard.MetadataPort)
		options["notices"] = n.noticesDir(shard.ID)
		subnet, instanceType = dockerNetwork, dockerInstanceType
		worker, onDemand = n.options.Machines.template(nil), n.options.Machines.template(onDemandLabels)
	}
	if len(shard.Quota) > 0 {
		options["quota"] = shard.Quota
	}
	bind := object{
		"health_addr":       address(shard.HealthPort),
		"election_addr":     address(shard.ElectionPort),
		"registration_addr": n.machineAddress(shard.RegistrationPort),
		"operator_addr":     address(shard.OperatorPort),
	}
	if n.options.Machines != nil {
		bind["agent_addr"] = n.machineAddress(shard.AgentPort)
	}
	election := object{}
	if shard.LeaderTimeout > 0 {
		election = object{"interval": (shard.LeaderTimeout / 5).String(), "timeout": shard.LeaderTimeout.String()}
	}
	certificates := object{}
	if shard.CertificateTTL > 0 {
		certificates["operator"] = object{"ttl": shard.CertificateTTL.String()}
	}
	healthCheckInterval := time.Minute
	if n.options.Machines != nil {
		healthCheckInterval = reportInterval
	}
	garbageCollection := object{}
	if shard.RegistrationTimeout > 0 {
		garbageCollection["registration_timeout"] = shard.RegistrationTimeout.String()
		// The interval must be shorter.
		garbageCollection["interval"] = min(2*time.Minute, shard.RegistrationTimeout/2).String()
	}
	if shard.AllowedTypes != nil {
		shared["limits"] = object{"instance_types": shard.AllowedTypes}
	}
	newWorker := func(more object) object {
		return merge(worker, shared, object{"kind": "knd", "arch": "amd64", "instance_type": instanceType, "subnet_pool": "default"}, more)
	}
	templates := object{
		"worker": newWorker(nil),
		OnDemandTemplate: merge(onDemand, shared, object{
			"kind":          "ond",
			"arch":          "amd64",
			"instance_type": instanceType,
			"subnet_pool":   "default",
			// The defaults are for instances without a Pod.
			"vars": object{"pod_namespace": "", "pod_name": "", "pod_uid": ""},
		}),
	}
	for id, group := range shard.Groups {
		if group.Userdata != "" {
			templates[id] = newWorker(object{"userdata": fmt.Sprint(worker["userdata"], group.Userdata)})
		}
	}
	shardSettings := object{}
	if n.options.Machines != nil {
		shardSettings["restart_grace"] = restartGrace.String()
	}
	return object{
		"cluster": object{
			"id":      ClusterID,
			"secrets": object{"provider": "object-storage", "encryption_key": object{"file": n.EncryptionKeyFile()}},
		},
		"certificates": certificates,
		"shard": merge(shardSettings, object{
			"id": shard.ID,
			"infra": object{
				"provider": provider,
				"region":   "us-west-2",
				"zone":     shard.ID,
				"options":  options,
			},
			"bind":                  bind,
			"leader_election":       election,
			"garbage_collection":    garbageCollection,
			"subnet_pools":          object{"default": []string{subnet}},
			"default_drain_timeout": shard.DrainTimeout.String(),
			"health_check_interval": healthCheckInterval.String(),
		}),
		"templates": templates,
		"groups":    tenants,
	}
}

// Bucket is the folder of the durable state of all shards.
func (n *Installation) Bucket() string { return filepath.Join(n.dir, "bucket") }

func (n *Installation) shardConfigPath(shardID string) string {
	return filepath.Join(n.Bucket(), filepath.FromSlash(storage.ConfigKey(shardID)))
}

// object is a JSON object.
type object = map[string]any

const (
	// dockerNetwork is the network that Docker has by default.
	dockerNetwork = "bridge"
	// dockerInstanceType is small enough for ten of them on a laptop.
	dockerInstanceType = "small.amd64"
	// reportInterval is how often agents report. It is short, so that a missing report is noticed
	// soon.
	reportInterval = 10 * time.Second
	// restartGrace is how long machines that have stopped may be started again. A test starts them
	// after the servers and the control plane.
	restartGrace = 2 * time.Minute
)

// Machines are containers that run a kubelet and an agent.
type Machines struct {
	// DockerHost is the address of the Docker daemon, and Image the image of the nodes.
	DockerHost, Image string
	// Privileges are the privileges of the containers, as in the options of the provider docker.
	Privileges string
	// Address is the address at which containers reach this machine.
	Address string
	// Kubeconfig is the kubeconfig with which kubelets join, JSON: a secret. CA is the certificate
	// of the cluster's authority, PEM.
	Kubeconfig, CA []byte
	// DNS is the address of the cluster's DNS. Optional.
	DNS string
	// Volumes are mounted in the containers, as the provider docker has them.
	Volumes []string
}

// options returns the options of the provider docker.
func (m *Machines) options() object {
	return object{"host": m.DockerHost, "image": m.Image, "stop_timeout": "5s"}
}

// JoinSecret is the name of the secret with which machines join, and of the file in which they
// get it (docs/agent.md#join-a-kubernetes-cluster).
const JoinSecret = "join.json"

//go:embed userdata.sh
var userdata string

// template is the part of a template that only machines have. The Nodes have these labels beside
// the labels of every Node.
func (m *Machines) template(labels map[string]string) object {
	encode := base64.StdEncoding.EncodeToString
	var nodeLabels strings.Builder
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&nodeLabels, ",%s=%s", name, labels[name])
	}
	var dns string
	if m.DNS != "" {
		dns = " --cluster-dns=" + m.DNS
	}
	script := strings.NewReplacer("CLUSTER_CA", encode(m.CA),
		",NODE_LABELS", nodeLabels.String(), " CLUSTER_DNS", dns).Replace(userdata)
	args := object{"privileges": cmp.Or(m.Privileges, "privileged")}
	if len(m.Volumes) > 0 {
		args["volumes"] = m.Volumes
	}
	files := object{JoinSecret: object{"kind": "secret", "source": JoinSecret, "once": true}}
	return object{"args": args, "userdata": script, "files": files}
}

// machineAddress is where instances reach a port of this machine.
func (n *Installation) machineAddress(port int) string {
	if n.options.Machines == nil {
		return address(port)
	}
	return net.JoinHostPort(n.options.Machines.Address, strconv.Itoa(port))
}

// merge returns an object with the members of both.
func merge(layers ...object) object {
	merged := object{}
	for _, layer := range layers {
		maps.Copy(merged, layer)
	}
	return merged
}
