// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit_test

import (
	"bytes"
	"mime"
	"mime/multipart"
	"net/mail"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/manifests/agent"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/nodesettings"
)

const instance = "knd06bgm7733st2576nx5jht4ecj"

// hostile is a value that would be code if it were not quoted.
const hostile = "a=$(touch PWNED)`touch PWNED`'\"; touch PWNED\nYAML\ntouch PWNED\n"

// metadata is a function of the shell that responds as the metadata service of EC2.
const metadata = `curl() { case "$*" in *-X\ PUT*/api/token) echo T ;; *"token: T"*/instance-id) echo i-0123456789abcdef0 ;; *) return 22 ;; esac; }
`

// providerIDs are the provider ids of the instance as the providers report them.
var providerIDs = map[string]string{
	"aws":     "aws:///us-west-2a/i-0123456789abcdef0",
	"google":  "gce://my-project/europe-west1-b/" + instance,
	"proxmox": "proxmox:///us-west-2a/" + instance,
	"qemu":    "qemu:///us-west-2a/" + instance,
}

// nodes are settings of a pool: a kubelet may not set one of the labels, and a var has a taint of theirs too.
var nodes = nodesettings.Settings{
	Labels:  map[string]string{"team": "search", "node-role.kubernetes.io/worker": "", "example.com/disk": "ssd"},
	Taints:  []nodesettings.Taint{{Key: "dedicated", Value: "search", Effect: "NoSchedule"}, {Key: "starting", Effect: "NoExecute"}},
	MaxPods: 17,
}

// The arguments of a kubelet for nodes, and the var taints of these tests.
const (
	varTaints  = "dedicated=gpu:NoSchedule,own=1:NoSchedule"
	nodeLabels = "example.com/disk=ssd,team=search"
	nodeTaints = "dedicated=search:NoSchedule,starting=:NoExecute,own=1:NoSchedule"
)

// render renders the userdata of a configuration as the server does (docs/server-reference.md#userdata).
func render(t *testing.T, c *config.Config, vars map[string]string, node ...nodesettings.Settings) string {
	t.Helper()
	var settings nodesettings.Settings
	for _, layer := range node {
		settings = settings.Merge(layer)
	}
	template := c.Templates["worker"]
	all := map[string]string{}
	for _, layer := range []map[string]string{template.Vars, vars} {
		for name, value := range layer {
			all[name] = value
		}
	}
	parsed, err := template.Userdata.Template([]byte(template.Userdata.Inline))
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, parsed.Option("missingkey=error").Execute(&text, map[string]any{
		"Instance": map[string]string{"ID": instance, "Kind": "knd", "Group": "workers", "Type": template.InstanceType, "Arch": template.Arch},
		"Cluster":  map[string]string{"ID": c.ClusterID, "CACert": "-----BEGIN CERTIFICATE-----"},
		"Server": map[string]string{
			"Shard": c.Shard.ID, "RegistrationAddr": c.Shard.Advertise.RegistrationAddr, "OperatorAddr": c.Shard.Advertise.OperatorAddr,
			"AgentAddr": c.Shard.Advertise.AgentAddr, "HealthCheckInterval": "1m0s",
		},
		"Provider": map[string]string{"Kind": c.Shard.Infra.Provider, "Region": c.Shard.Infra.Region, "Zone": c.Shard.Infra.Zone},
		"Vars":     all,
		"Node":     settings.Facts(),
		"Nonce":    "SECRET",
	}))
	assert.Contains(t, text.String(), instance)
	assert.Contains(t, text.String(), "SECRET")
	// The limit of EC2, with room for a nonce and a CA (docs/aws.md#arguments).
	assert.Less(t, text.Len(), 12<<10)
	return text.String()
}

// boot runs userdata with a folder as the root of the machine. systemctl and kubeadm write their
// arguments to the file commands. The agent receives its file while the userdata waits.
func boot(t *testing.T, script, commands string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, name := range []string{"etc/systemd/system", "run", "usr/local/bin", "opt", "bin"} {
		require.NoError(t, os.MkdirAll(filepath.Join(folder, name), 0o755))
	}
	for _, program := range []string{"systemctl", "kubeadm"} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "bin", program), []byte("#!/bin/sh\necho "+program+" \"$@\" >>"+folder+"/commands\n"), 0o755))
	}
	recv := folder + "/opt/nstance-agent/recv"
	require.NoError(t, os.WriteFile(filepath.Join(folder, "bin/sleep"),
		[]byte("#!/bin/sh\nmkdir -p "+recv+"\n[ ! -e "+recv+"/join.json ] || echo certificate >"+recv+"/bootstrap.crt\necho '{\"server\": \"https://10.0.0.10:6443\", \"token\": \"T\"}' >"+recv+"/join.json\n"), 0o755))
	text := strings.NewReplacer("/opt/", folder+"/opt/", "/etc/", folder+"/etc/", "/run/nstance", folder+"/run/nstance", "/usr/local/bin/", folder+"/usr/local/bin/").Replace(script)
	shell := "sh"
	if strings.HasPrefix(script, "#!/bin/bash") {
		shell = "bash"
	}
	command := exec.CommandContext(t.Context(), shell, "-c", commands+text)
	command.Dir = folder
	command.Env = append(os.Environ(), "PATH="+folder+"/bin:"+os.Getenv("PATH"), "NSTANCE_PROVIDER_ID=docker:///us-west-2a/"+instance)
	output, err := command.CombinedOutput()
	require.NoError(t, err, string(output))
	assert.NoFileExists(t, filepath.Join(folder, "PWNED"), "the value of a var was run")
	assert.Equal(t, "SECRET", strings.TrimSpace(read(t, folder, "opt/nstance-agent/identity/nonce.jwt")))
	environment := read(t, folder, "etc/nstance-agent.env")
	assert.Contains(t, environment, "NSTANCE_INSTANCE_ID="+instance+"\n")
	assert.Contains(t, environment, "NSTANCE_SERVER_URI=nstance://prod/us-west-2a\n")
	assert.Contains(t, environment, "NSTANCE_SERVER_AGENT_ADDR=10.0.0.20:8994\n")
	return folder
}

// TestMachinesOfKubeadm: kubeadm gets provider id, labels and taints, and the machine is ready
// after it has joined.
func TestMachinesOfKubeadm(t *testing.T) {
	for provider, providerID := range providerIDs {
		t.Run(provider, func(t *testing.T) {
			_, c := written(t, provider, "kubeadm")
			folder := boot(t, render(t, c, map[string]string{"labels": hostile, "taints": "dedicated=gpu:NoSchedule"}), metadata)
			var join struct {
				Kind      string
				Discovery struct {
					File struct{ KubeConfigPath string }
				}
				NodeRegistration struct {
					KubeletExtraArgs []struct{ Name, Value string }
				}
			}
			require.NoError(t, yaml.Unmarshal([]byte(read(t, folder, "etc/kubernetes/join.yaml")), &join))
			assert.Equal(t, "JoinConfiguration", join.Kind)
			assert.Equal(t, folder+"/opt/nstance-agent/recv/join.json", join.Discovery.File.KubeConfigPath)
			args := map[string]string{}
			for _, arg := range join.NodeRegistration.KubeletExtraArgs {
				args[arg.Name] = arg.Value
			}
			infra := c.Shard.Infra
			assert.Equal(t, map[string]string{
				"provider-id": providerID,
				"node-labels": "nstance.dev/group=workers,nstance.dev/shard=us-west-2a," + hostile + ",node.kubernetes.io/instance-type=" + c.Templates["worker"].InstanceType +
					",topology.kubernetes.io/region=" + infra.Region + ",topology.kubernetes.io/zone=" + infra.Zone,
				"register-with-taints": "dedicated=gpu:NoSchedule",
			}, args)
			assert.Equal(t, "systemctl daemon-reload\nsystemctl enable --now nstance-agent.service\nkubeadm join --config "+folder+"/etc/kubernetes/join.yaml\n",
				read(t, folder, "commands"))
			assert.Equal(t, agent.Unit, strings.ReplaceAll(read(t, folder, "etc/systemd/system/nstance-agent.service"), folder, ""))
			assert.Contains(t, read(t, folder, "etc/nstance-agent.env"), "NSTANCE_READY_FILE="+folder+"/run/nstance-joined\n")
			assert.FileExists(t, filepath.Join(folder, "run/nstance-joined"))

			// Without vars and settings of the pool.
			folder = boot(t, render(t, c, nil), metadata)
			assert.NotContains(t, read(t, folder, "etc/kubernetes/join.yaml"), "taints")
			assert.NotContains(t, read(t, folder, "etc/kubernetes/join.yaml"), "max-pods")

			folder = boot(t, render(t, c, map[string]string{"labels": "a=b", "taints": varTaints}, nodes), metadata)
			require.NoError(t, yaml.Unmarshal([]byte(read(t, folder, "etc/kubernetes/join.yaml")), &join))
			for _, arg := range join.NodeRegistration.KubeletExtraArgs {
				args[arg.Name] = arg.Value
			}
			assert.Contains(t, args["node-labels"], ",a=b,"+nodeLabels+",node.kubernetes.io/")
			assert.Equal(t, nodeTaints, args["register-with-taints"])
			assert.Equal(t, "17", args["max-pods"])
		})
	}
}

// TestMachinesWithACertificate wait for their certificate, and have the name in it.
func TestMachinesWithACertificate(t *testing.T) {
	for provider := range providerIDs {
		t.Run(provider, func(t *testing.T) {
			_, c := written(t, provider, "kubeadm-certificate")
			folder := boot(t, render(t, c, nil), metadata)
			var join struct {
				NodeRegistration struct{ Name string }
			}
			text := read(t, folder, "etc/kubernetes/join.yaml")
			require.NoError(t, yaml.Unmarshal([]byte(text), &join))
			assert.Equal(t, instance, join.NodeRegistration.Name)
			assert.FileExists(t, filepath.Join(folder, "opt/nstance-agent/recv/bootstrap.crt"), "the machine did not wait for its certificate")
			assert.FileExists(t, filepath.Join(folder, "run/nstance-joined"))

			// With a token it has the name of its host.
			_, c = written(t, provider, "kubeadm")
			folder = boot(t, render(t, c, nil), metadata)
			assert.NotContains(t, read(t, folder, "etc/kubernetes/join.yaml"), "\n  name:")
			assert.NoFileExists(t, filepath.Join(folder, "opt/nstance-agent/recv/bootstrap.crt"))
		})
	}
}

// TestMachinesOfK3sAndRKE2: without the argument for the provider id the Node would have another one.
func TestMachinesOfK3sAndRKE2(t *testing.T) {
	for _, distribution := range []string{"k3s", "rke2"} {
		for provider, providerID := range providerIDs {
			t.Run(distribution+"/"+provider, func(t *testing.T) {
				_, c := written(t, provider, distribution)
				folder := boot(t, render(t, c, map[string]string{"labels": hostile, "taints": "dedicated=gpu:NoSchedule"}), metadata)
				var own struct {
					NodeName   string   `json:"node-name"`
					KubeletArg []string `json:"kubelet-arg"`
				}
				require.NoError(t, yaml.UnmarshalStrict([]byte(read(t, folder, "etc/rancher/"+distribution+"/config.yaml")), &own))
				assert.Equal(t, instance, own.NodeName)
				require.Len(t, own.KubeletArg, 3)
				assert.Equal(t, "provider-id="+providerID, own.KubeletArg[0])
				assert.True(t, strings.HasPrefix(own.KubeletArg[1], "node-labels=nstance.dev/group=workers,nstance.dev/shard=us-west-2a,"+hostile+",node.kubernetes.io/"), own.KubeletArg[1])
				assert.Equal(t, "register-with-taints=dedicated=gpu:NoSchedule", own.KubeletArg[2])
				folderOfNodes := boot(t, render(t, c, map[string]string{"labels": "a=b", "taints": varTaints}, nodes), metadata)
				own.KubeletArg = nil
				require.NoError(t, yaml.UnmarshalStrict([]byte(read(t, folderOfNodes, "etc/rancher/"+distribution+"/config.yaml")), &own))
				require.Len(t, own.KubeletArg, 4)
				assert.Contains(t, own.KubeletArg[1], ",a=b,"+nodeLabels+",node.kubernetes.io/")
				assert.Equal(t, []string{"register-with-taints=" + nodeTaints, "max-pods=17"}, own.KubeletArg[2:])
				var received map[string]string
				require.NoError(t, yaml.UnmarshalStrict([]byte(read(t, folder, "etc/rancher/"+distribution+"/config.yaml.d/join.yaml")), &received))
				assert.Equal(t, map[string]string{"server": "https://10.0.0.10:6443", "token": "T"}, received)
				assert.True(t, strings.HasSuffix(read(t, folder, "commands"), "systemctl enable --now "+distribution+"-agent.service\n"))
				assert.Contains(t, read(t, folder, "etc/nstance-agent.env"), "NSTANCE_READY_URL=http://127.0.0.1:10248/healthz\n")
			})
		}
	}
}

// TestProgramsAreDownloaded, and not run if they are others.
func TestProgramsAreDownloaded(t *testing.T) {
	download := `curl() { while [ "$1" != -o ]; do shift; done; echo program >"$2"; }
`
	hash := programSum(t)
	_, c := written(t, "proxmox", "k3s", "--agent-url", agentAt, "--agent-sha256", hash, "--k3s-url", "https://files.example.com/k3s", "--k3s-sha256", hash)
	folder := boot(t, render(t, c, nil), download)
	for _, program := range []string{"nstance-agent", "k3s"} {
		assert.Equal(t, "program\n", read(t, folder, "usr/local/bin/"+program))
		info, err := os.Stat(filepath.Join(folder, "usr/local/bin", program))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o755), info.Mode())
	}
	assert.Contains(t, read(t, folder, "etc/systemd/system/k3s-agent.service"), "/usr/local/bin/k3s agent\n")

	script := strings.ReplaceAll(render(t, c, nil), hash, sum)
	command := exec.CommandContext(t.Context(), "sh", "-c", download+"systemctl() { :; }\n"+
		strings.NewReplacer("/opt/", folder+"/opt/", "/etc/", folder+"/etc/", "/usr/local/bin/", folder+"/new/").Replace(script))
	require.NoError(t, os.Mkdir(filepath.Join(folder, "new"), 0o755))
	text, err := command.CombinedOutput()
	require.Error(t, err, string(text))
	assert.NoFileExists(t, filepath.Join(folder, "new", "nstance-agent"))
}

// nodeConfig is the configuration of nodeadm (https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/).
type nodeConfig struct {
	APIVersion, Kind string
	Spec             struct {
		Cluster struct{ Name, APIServerEndpoint, CertificateAuthority, CIDR string }
		Kubelet struct {
			Config struct{ MaxPods int }
			Flags  []string
		}
	}
}

// partsOfEKS returns the parts of userdata for EKS.
func partsOfEKS(t *testing.T, userdata string) (node nodeConfig, script string) {
	t.Helper()
	message, err := mail.ReadMessage(strings.NewReader(userdata))
	require.NoError(t, err)
	kind, parameters, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	require.NoError(t, err)
	require.Equal(t, "multipart/mixed", kind)
	parts := multipart.NewReader(message.Body, parameters["boundary"])
	next := func(kind string) string {
		part, err := parts.NextPart()
		require.NoError(t, err)
		require.Equal(t, kind, part.Header.Get("Content-Type"))
		var text bytes.Buffer
		_, err = text.ReadFrom(part)
		require.NoError(t, err)
		return text.String()
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(next("application/node.eks.aws")), &node))
	return node, next("text/x-shellscript")
}

// TestMachinesOfEKS have a part for nodeadm and a script for the agent.
func TestMachinesOfEKS(t *testing.T) {
	_, c := written(t, "aws", "eks")
	node, script := partsOfEKS(t, render(t, c, map[string]string{"labels": hostile, "taints": "dedicated=gpu:NoSchedule"}))
	assert.Equal(t, "node.eks.aws/v1alpha1", node.APIVersion)
	assert.Equal(t, "NodeConfig", node.Kind)
	assert.Equal(t, struct{ Name, APIServerEndpoint, CertificateAuthority, CIDR string }{
		"prod", "https://ABC.gr7.us-west-2.eks.amazonaws.com", "Q0E=", "10.100.0.0/16",
	}, node.Spec.Cluster)
	assert.Equal(t, []string{
		"--node-labels=nstance.dev/group=workers,nstance.dev/shard=us-west-2a," + hostile, "--register-with-taints=dedicated=gpu:NoSchedule",
	}, node.Spec.Kubelet.Flags)
	assert.Zero(t, node.Spec.Kubelet.Config)
	ofPool, _ := partsOfEKS(t, render(t, c, map[string]string{"labels": "a=b", "taints": varTaints}, nodes))
	assert.Equal(t, []string{
		"--node-labels=nstance.dev/group=workers,nstance.dev/shard=us-west-2a,a=b," + nodeLabels, "--register-with-taints=" + nodeTaints,
	}, ofPool.Spec.Kubelet.Flags)
	assert.Equal(t, 17, ofPool.Spec.Kubelet.Config.MaxPods)
	require.True(t, strings.HasPrefix(script, "#!/bin/sh\n"), "cloud-init runs a script only with its first line: %q", script[:20])
	folder := boot(t, strings.ReplaceAll(script, sum, programSum(t)), `curl() { while [ "$1" != -o ]; do shift; done; echo program >"$2"; }
`)
	assert.Contains(t, read(t, folder, "etc/nstance-agent.env"), "NSTANCE_READY_URL=http://127.0.0.1:10248/healthz\n")
	assert.NotContains(t, read(t, folder, "commands"), "kubeadm")
}

// programSum returns the hash of what the tests download.
func programSum(t *testing.T) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "sh", "-c", "echo program | sha256sum").Output()
	require.NoError(t, err)
	return strings.Fields(string(output))[0]
}

// TestContainers: hack/node reads what the userdata writes.
func TestContainers(t *testing.T) {
	_, c := written(t, "docker", "kubeadm")
	folder := boot(t, render(t, c, map[string]string{"labels": "a=b", "taints": "c=d:NoSchedule"}), "")
	assert.Equal(t, "-----BEGIN CERTIFICATE-----\n", read(t, folder, "etc/kubernetes/pki/ca.crt"))
	target, err := os.Readlink(filepath.Join(folder, "etc/kubernetes/bootstrap.conf"))
	require.NoError(t, err)
	assert.Equal(t, folder+"/opt/nstance-agent/recv/join.json", target)
	output, err := exec.CommandContext(t.Context(), "bash", "-c", ". "+folder+"/etc/kubernetes/kubelet.env && printf '%s\n' $KUBELET_FLAGS").Output()
	require.NoError(t, err)
	assert.Equal(t, []string{
		"--provider-id=docker:///us-west-2a/" + instance,
		"--node-labels=nstance.dev/group=workers,nstance.dev/shard=us-west-2a,a=b,node.kubernetes.io/instance-type=small.amd64,topology.kubernetes.io/region=us-west-2a,topology.kubernetes.io/zone=us-west-2a",
		"--register-with-taints=c=d:NoSchedule",
	}, strings.Split(strings.TrimSpace(string(output)), "\n"))

	folder = boot(t, render(t, c, map[string]string{"labels": "a=b", "taints": varTaints}, nodes), "")
	output, err = exec.CommandContext(t.Context(), "bash", "-c", ". "+folder+"/etc/kubernetes/kubelet.env && printf '%s\n' $KUBELET_FLAGS").Output()
	require.NoError(t, err)
	flags := strings.Split(strings.TrimSpace(string(output)), "\n")
	require.Len(t, flags, 4)
	assert.Contains(t, flags[1], ",a=b,"+nodeLabels+",node.kubernetes.io/")
	assert.Equal(t, []string{"--register-with-taints=" + nodeTaints, "--max-pods=17"}, flags[2:])
}

// TestMachinesThatJoinNothing run the agent alone.
func TestMachinesThatJoinNothing(t *testing.T) {
	for _, provider := range []string{"aws", "google", "proxmox", "qemu", "docker"} {
		_, c := written(t, provider, "none")
		folder := boot(t, render(t, c, nil), metadata)
		assert.NotContains(t, read(t, folder, "etc/nstance-agent.env"), "READ", "an agent without a check is ready when it reports")
	}
}
