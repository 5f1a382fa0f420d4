// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/nodesettings"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/docker"
	"nstance.dev/operator/pkg/server/provision"
)

// newCluster returns a cluster that is not started.
func newCluster(t *testing.T) *Cluster {
	t.Helper()
	host := &dockerhost.Host{Address: "unix:///var/run/docker.sock", Bridge: "127.0.0.1"}
	var err error
	// No Docker runs there: the load balancer has no machine.
	host.Client, err = client.New(client.WithHost("unix://" + filepath.Join(t.TempDir(), "docker.sock")))
	require.NoError(t, err)
	c := &Cluster{options: Options{
		Dir: t.TempDir(), Shards: []string{"self-a", "self-b"}, Docker: host, Image: "nstance-node:test", Kube: "/kube",
		PodNetwork: "10.1.0.0/16", DNS: net.IPv4(10, 1, 255, 254), Version: "v1.36.3",
	}}
	var ports []*int
	for _, id := range c.options.Shards {
		c.shards = append(c.shards, &shard{id: id})
		ports = append(ports, c.shards[len(c.shards)-1].ports()...)
	}
	require.NoError(t, controlplane.FillInPorts(ports))
	c.authority, err = newAuthority(filepath.Join(c.options.Dir, "pki"), "kubernetes", authorityName)
	require.NoError(t, err)
	c.balancer, err = startBalancer(t.Context(), host, c.authority, c.options.Shards)
	require.NoError(t, err)
	// The load balancer is at an address of this machine; the metadata service may not be at a loopback address.
	host.Bridge = "172.17.0.1"
	t.Cleanup(func() { assert.NoError(t, c.balancer.close()) })
	return c
}

// A server accepts the configurations. The control plane is on the first shard.
func TestConfigurationsAreValid(t *testing.T) {
	c := newCluster(t)
	for i, s := range c.shards {
		path, err := c.writeConfiguration(s)
		require.NoError(t, err)
		source, err := config.ReadFile(path)
		require.NoError(t, err)
		parsed, err := source.ParseFor(s.id, provider.Registry{docker.Name: docker.ReadOptions})
		require.NoError(t, err)
		require.NoError(t, source.Reject(provision.Validate(parsed)))
		assert.Empty(t, parsed.Warnings())
		_, controlPlane := parsed.Groups["default"][ControlPlaneGroup]
		assert.Equal(t, i == 0, controlPlane)
	}
}

// machine is a folder in which userdata run as on a machine.
type machine struct {
	dir string
	// initializeBefore is a variable of the configuration.
	initializeBefore string
	// ran is what the programs were called with, without the folder.
	ran []string
}

// programs replace what userdata call. The Secret of the operator exists if the file registered does. The
// certificate of the machine arrives while userdata sleep.
const programs = `#!/bin/sh
echo "${0##*/} $*" >>"$MACHINE/calls"
case "${0##*/} $*" in
"ip "*) echo "2: eth0    inet 172.17.0.5/16 brd 172.17.255.255 scope global eth0" ;;
*" get secret "*) [ -e "$MACHINE/registered" ] ;;
*--dry-run*) echo object ;;
*" -f -") cat >/dev/null ;;
"sleep "*) echo certificate >"$MACHINE/opt/nstance-agent/recv/bootstrap.crt" ;;
esac
`

// absolute matches the paths of files of a machine.
var absolute = regexp.MustCompile(`(?m)(^|[\s"=>])(/(?:etc|opt|run|var|proc|seed|images)/)`)

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{dir: t.TempDir()}
	for _, name := range []string{"ip", "kubeadm", "kubectl", "ctr", "sleep"} {
		m.write(t, "bin/"+name, programs)
		require.NoError(t, os.Chmod(filepath.Join(m.dir, "bin", name), 0o755))
	}
	m.write(t, "proc/sys/net/ipv4/ip_forward", "0")
	m.write(t, "run/nstance", "")
	m.write(t, "etc/kubernetes/patches/none", "")
	for _, name := range []string{joinSecret, authorityFile, authorityKeyFile} {
		m.write(t, "opt/nstance-agent/recv/"+name, "received "+name+"\n")
	}
	m.write(t, "opt/nstance-agent/recv/"+nonceSecret, "NONCE=the-nonce\n")
	m.write(t, "images/control-plane/control-plane.tar", "")
	for _, name := range []string{"1-cluster-api.yaml", "2-operator.yaml"} {
		m.write(t, "seed/"+name, "")
	}
	return m
}

func (m *machine) write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, writeFile(filepath.Join(m.dir, name), []byte(text)))
}

func (m *machine) read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(m.dir, name))
	require.NoError(t, err)
	return string(data)
}

// run renders and runs userdata, as entrypoint of the nodes does, and returns the documents of the
// configuration of kubeadm by kind.
func (m *machine) run(t *testing.T, userdata string) map[string]object {
	t.Helper()
	parsed, err := config.NewTemplate("userdata").Option("missingkey=error").Parse(nodeUserdata + userdata)
	require.NoError(t, err)
	var text strings.Builder
	require.NoError(t, parsed.Execute(&text, object{
		"Nonce":    "nonce-of-the-machine",
		"Cluster":  object{"ID": "dev", "CACert": "ca of the shards"},
		"Server":   object{"Shard": "self-a", "RegistrationAddr": "172.17.0.1:1", "AgentAddr": "172.17.0.1:2", "HealthCheckInterval": "10s"},
		"Instance": object{"ID": "knd1", "Group": "workers", "Type": "medium.amd64"},
		"Provider": object{"Region": "us-west-2", "Zone": "self-a"},
		"Node": nodesettings.Settings{
			Labels: map[string]string{"team": "search"}, Taints: []nodesettings.Taint{{Key: "dedicated", Value: "search", Effect: "NoSchedule"}}, MaxPods: 17,
		}.Facts(),
		"Vars": object{
			"registry": "172.17.0.1:5000",
			"version":  "v1.36.3", "endpoint": "172.17.0.1:6443", "dns": "10.1.255.254", "pod_network": "10.1.0.0/16", "service_network": serviceNetwork,
			"operator": "operator-of-nstance", "cluster_api": "cluster-api",
			"initialize_before": m.initializeBefore, "members": "3",
		},
	}))
	script := absolute.ReplaceAllString(text.String(), "${1}"+m.dir+"${2}")
	m.write(t, "userdata", script)
	command := exec.CommandContext(t.Context(), "bash", filepath.Join(m.dir, "userdata"))
	command.Env = []string{"PATH=" + filepath.Join(m.dir, "bin") + ":" + os.Getenv("PATH"), "MACHINE=" + m.dir, "NSTANCE_PROVIDER_ID=docker:///self-a/knd1"}
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	m.ran = strings.Split(strings.TrimSpace(strings.ReplaceAll(m.read(t, "calls"), m.dir, "")), "\n")

	documents := map[string]object{}
	for document := range strings.SplitSeq(m.read(t, "etc/kubernetes/kubeadm.yaml"), "\n---\n") {
		decoded := object{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), &decoded))
		documents[decoded["kind"].(string)] = decoded
	}
	return documents
}

// expectRegistration expects that a machine becomes the Node of its instance, and that its agent starts.
func (m *machine) expectRegistration(t *testing.T, configuration object) {
	t.Helper()
	registration, _ := configuration["nodeRegistration"].(object)
	assert.Equal(t, "knd1", registration["name"])
	arguments := map[any]any{}
	for _, argument := range registration["kubeletExtraArgs"].([]any) {
		arguments[argument.(object)["name"]] = argument.(object)["value"]
	}
	assert.Equal(t, "docker:///self-a/knd1", arguments["provider-id"])
	assert.Equal(t, "172.17.0.5", arguments["node-ip"])
	assert.Contains(t, arguments["node-labels"], "nstance.dev/group=workers,nstance.dev/shard=self-a,")
	assert.Contains(t, arguments["node-labels"], ",team=search")
	assert.Equal(t, "dedicated=search:NoSchedule", arguments["register-with-taints"])
	assert.Equal(t, "17", arguments["max-pods"])
	assert.Equal(t, "1\n", m.read(t, "proc/sys/net/ipv4/ip_forward"))
	assert.Equal(t, "ca of the shards\n", m.read(t, "opt/nstance-agent/identity/ca.crt"))
	assert.Equal(t, "nonce-of-the-machine", m.read(t, "opt/nstance-agent/identity/nonce.jwt"))
	assert.Equal(t, "[host.\"http://172.17.0.1:5000\"]\n", m.read(t, "etc/containerd/certs.d/172.17.0.1:5000/hosts.toml"))
	// The agent reports that the machine is ready as soon as kubeadm has ended.
	agent := m.read(t, "etc/nstance-agent.env")
	assert.Contains(t, agent, "NSTANCE_INSTANCE_ID=knd1\n")
	ready, found := strings.CutPrefix(agent[strings.LastIndex(strings.TrimSpace(agent), "\n")+1:], "NSTANCE_READY_FILE=")
	require.True(t, found, agent)
	assert.FileExists(t, strings.TrimSpace(ready))
}

// A machine joins with what it has received: a kubeconfig with a token, or with the name of a certificate,
// for which it waits.
func TestUserdataOfANode(t *testing.T) {
	for name, tc := range map[string]struct {
		kubeconfig func(*machine) string
		waits      []string
	}{
		"token": {func(*machine) string { return `{"token": "a.b"}` }, nil},
		"certificate": {func(m *machine) string {
			return `{"client-certificate": "` + m.dir + `/opt/nstance-agent/recv/bootstrap.crt"}`
		}, []string{"sleep 0.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.write(t, "opt/nstance-agent/recv/"+joinSecret, tc.kubeconfig(m))
			join := m.run(t, workerUserdata)["JoinConfiguration"]
			m.expectRegistration(t, join)
			discovery, _ := join["discovery"].(object)
			assert.Equal(t, object{"file": object{"kubeConfigPath": m.dir + "/opt/nstance-agent/recv/join.json"}}, discovery)
			assert.Equal(t, slices.Concat([]string{"ip -4 -o addr show eth0"}, tc.waits, []string{"kubeadm join --config /etc/kubernetes/kubeadm.yaml"}), m.ran)
		})
	}
}

// The machine of the control plane initializes the cluster with the CA that it has received, and seeds it.
func TestUserdataOfTheControlPlane(t *testing.T) {
	m := newMachine(t)
	documents := m.run(t, controlPlaneUserdata+initializeUserdata)
	require.Len(t, documents, 4)
	m.expectRegistration(t, documents["InitConfiguration"])
	assert.Equal(t, []any{object{"ttl": "1s"}}, documents["InitConfiguration"]["bootstrapTokens"], "a token that kubeadm would create")
	cluster := documents["ClusterConfiguration"]
	assert.Equal(t, "172.17.0.1:6443", cluster["controlPlaneEndpoint"])
	assert.Equal(t, object{"podSubnet": "10.1.0.0/16", "serviceSubnet": serviceNetwork, "dnsDomain": "cluster.local"}, cluster["networking"])
	assert.Equal(t, []any{"10.1.255.254"}, documents["KubeletConfiguration"]["clusterDNS"])
	assert.Contains(t, documents, "KubeProxyConfiguration")
	var policy auditv1.Policy
	require.NoError(t, yaml.UnmarshalStrict([]byte(m.read(t, "etc/kubernetes/audit.yaml")), &policy))
	assert.Equal(t, []string{"operator-of-nstance", "cluster-api"}, policy.Rules[0].Users)
	assert.Equal(t, "received kubernetes-ca.crt\nca of the shards\n", m.read(t, "etc/kubernetes/pki/client-ca.crt"))
	assert.Equal(t, []string{
		"ip -4 -o addr show eth0",
		"ctr --namespace k8s.io images import /images/control-plane/control-plane.tar",
		"kubeadm init --config /etc/kubernetes/kubeadm.yaml --skip-token-print --skip-phases=addon/coredns",
		"kubectl -n nstance-system get secret nstance-operator-key",
		"kubectl apply --server-side --field-manager=seed -f /seed/1-cluster-api.yaml",
		"kubectl apply --server-side --field-manager=seed -f /seed/2-operator.yaml",
	}, m.ran[:6])
	created := strings.Join(m.ran[6:], "\n")
	assert.Contains(t, created, "create configmap nstance-cluster-ca --from-file=ca.crt=/opt/nstance-agent/identity/ca.crt ")
	assert.Contains(t, created, "create secret generic nstance-operator-nonce --from-literal=nonce.jwt=the-nonce ")
	assert.Equal(t, 2, strings.Count(created, "kubectl apply --server-side --field-manager=seed -f -"))
}

// A machine that replaces the one of the control plane keeps the data, makes the certificates for its own
// address, and does not revert what was upgraded since.
func TestUserdataOfAReplacedControlPlane(t *testing.T) {
	m := newMachine(t)
	m.write(t, "registered", "")
	m.write(t, "var/lib/etcd/member/snap/db", "data")
	const pki = "etc/kubernetes/pki/"
	for _, name := range []string{"apiserver.crt", "apiserver.key", "etcd/server.crt", "etcd/peer.key", "apiserver-etcd-client.crt", "sa.key", "etcd/ca.key"} {
		m.write(t, pki+name, "before")
	}
	m.run(t, controlPlaneUserdata+initializeUserdata)
	for _, name := range []string{"apiserver.crt", "apiserver.key", "etcd/server.crt", "etcd/peer.key"} {
		assert.NoFileExists(t, filepath.Join(m.dir, pki+name))
	}
	for _, name := range []string{pki + "apiserver-etcd-client.crt", pki + "sa.key", pki + "etcd/ca.key", "var/lib/etcd/member/snap/db"} {
		assert.FileExists(t, filepath.Join(m.dir, name))
	}
	require.Len(t, m.ran, 4)
	assert.Contains(t, m.ran[2], "kubeadm init ")
	assert.Contains(t, m.ran[2], " --ignore-preflight-errors=SystemVerification,DirAvailable--var-lib-etcd")
	assert.Contains(t, m.ran[3], " get secret ")
}
