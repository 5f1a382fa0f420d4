// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/pkg/server/config"
)

// reasons has, for each provider and way to join, a part of the reason why it does not work, or
// nothing if it works.
var reasons = map[string]map[string]string{
	"aws":     {"kubeadm": "", "kubeadm-certificate": "", "k3s": "", "rke2": "", "eks": "", "none": "", "talos": "runs no agent"},
	"google":  {"kubeadm": "", "kubeadm-certificate": "", "k3s": "", "rke2": "", "eks": "metadata service of EC2", "none": "", "talos": "runs no agent"},
	"proxmox": {"kubeadm": "", "kubeadm-certificate": "", "k3s": "", "rke2": "", "eks": "metadata service of EC2", "none": "", "talos": "runs no agent"},
	"qemu":    {"kubeadm": "", "kubeadm-certificate": "", "k3s": "", "rke2": "", "eks": "metadata service of EC2", "none": "", "talos": "runs no agent"},
	"docker":  {"kubeadm": "", "kubeadm-certificate": "has the kubelet", "k3s": "has the kubelet", "rke2": "has the kubelet", "eks": "metadata service of EC2", "none": "", "talos": "runs no agent"},
	"kwok":    {"kubeadm": "boots no machine", "kubeadm-certificate": "boots no machine", "k3s": "boots no machine", "rke2": "boots no machine", "eks": "boots no machine", "none": "", "talos": "runs no agent"},
}

// TestEveryCombination: what is supported gives a configuration that the server accepts without a
// warning, and what is not supported is refused with the reason.
func TestEveryCombination(t *testing.T) {
	for provider, byJoin := range reasons {
		for join, reason := range byJoin {
			t.Run(provider+"/"+join, func(t *testing.T) {
				if reason != "" {
					args, folder := arguments(t, provider, join)
					_, err := run(t, args...)
					require.ErrorContains(t, err, fmt.Sprintf("--join: %s does not work with --provider %s", join, provider))
					require.ErrorContains(t, err, reason)
					assert.ErrorContains(t, err, "none", "it names what works")
					assert.NoDirExists(t, folder)
					return
				}
				folder, c := written(t, provider, join)
				checkConfiguration(t, c, provider, join)
				template := c.Templates["worker"]
				assert.Equal(t, provider == "kwok", template.Userdata == config.Userdata{})
				if provider != "kwok" {
					name := map[bool]string{false: "userdata.sh", true: "userdata.mime"}[join == "eks"]
					assert.Equal(t, read(t, folder, name), template.Userdata.Inline)
				}
				if join == "kubeadm-certificate" {
					checkCertificate(t, c)
					assert.NoFileExists(t, filepath.Join(folder, "join-secret.sh"), "there is no secret")
					return
				}
				joins := join == "kubeadm" || join == "k3s" || join == "rke2"
				if !joins {
					assert.Empty(t, template.Files)
					assert.NoFileExists(t, filepath.Join(folder, "join-secret.sh"))
					return
				}
				assert.Equal(t, map[string]config.File{
					"join.json": {Kind: "secret", Content: map[string]any{"source": "join.json", "once": true}},
				}, template.Files)
				assert.FileExists(t, filepath.Join(folder, "join-secret.sh"))
			})
		}
	}
}

func checkConfiguration(t *testing.T, c *config.Config, provider, join string) {
	t.Helper()
	assert.Equal(t, "prod", c.ClusterID)
	assert.Equal(t, config.KeySource{File: "/etc/nstance/encryption.key"}, c.Secrets.EncryptionKey)
	assert.Equal(t, shard, c.Shard.ID)
	assert.Equal(t, provider, c.Shard.Infra.Provider)
	zone, region := map[string]string{"google": "europe-west1-b"}[provider], map[string]string{"google": "europe-west1", "aws": "us-west-2"}[provider]
	if zone == "" {
		zone = shard
	}
	if region == "" {
		region = zone
	}
	assert.Equal(t, zone, c.Shard.Infra.Zone)
	assert.Equal(t, region, c.Shard.Infra.Region)
	assert.Equal(t, config.Addresses{RegistrationAddr: "10.0.0.20:8992", OperatorAddr: "10.0.0.20:8993", AgentAddr: "10.0.0.20:8994"}, c.Shard.Advertise)
	assert.Equal(t, config.Addresses{
		HealthAddr: "0.0.0.0:8990", ElectionAddr: "0.0.0.0:8991", RegistrationAddr: "0.0.0.0:8992", OperatorAddr: "0.0.0.0:8993", AgentAddr: "0.0.0.0:8994",
	}, c.Shard.Bind)
	subnets := []string{"nodes"}
	switch provider {
	case "aws":
		subnets = []string{"subnet-0123456789abcdef0", "subnet-0123456789abcdef1"}
	case "docker":
		subnets = []string{"bridge"}
	}
	assert.Equal(t, map[string][]string{"default": subnets}, c.Shard.SubnetPools)
	require.Len(t, c.Templates, 1)
	template := c.Templates["worker"]
	assert.Equal(t, "knd", template.Kind)
	assert.Equal(t, "amd64", template.Arch)
	instanceType, found := c.Shard.Infra.InstanceTypes[template.InstanceType]
	require.True(t, found, template.InstanceType)
	assert.Equal(t, "amd64", instanceType.Arch)
	if provider == "aws" {
		filters := map[string]any{"name": "nstance-node-*"}
		owners := []any{"self"}
		if join == "eks" {
			filters["name"], owners = "amazon-eks-node-al2023-x86_64-standard-1.34-*", []any{"amazon"}
		}
		assert.Equal(t, filters, template.Args["image_filters"])
		assert.Equal(t, owners, template.Args["image_owners"])
		assert.Equal(t, []any{"sg-0123456789abcdef0"}, template.Args["security_groups"])
		assert.Equal(t, "nstance-prod-node", template.Args["iam_instance_profile"])
	}
	wantVars := map[string]string{}
	if provider == "google" {
		wantVars["project"] = "my-project"
	}
	if join == "eks" {
		wantVars = map[string]string{
			"eks_cluster": "prod", "eks_endpoint": "https://ABC.gr7.us-west-2.eks.amazonaws.com", "eks_ca": "Q0E=", "eks_cidr": "10.100.0.0/16",
			"agent_url": agentAt, "agent_sha256": sum,
		}
	}
	if provider == "docker" && join == "kubeadm" {
		assert.Equal(t, "-----BEGIN CERTIFICATE-----\n", decode(t, template.Vars["kubernetes_ca"]))
		return
	}
	if len(wantVars) == 0 {
		assert.Empty(t, template.Vars)
	} else {
		assert.Equal(t, wantVars, template.Vars)
	}
}

// checkCertificate expects that each machine gets a certificate for the name of its own Node, and a kubeconfig
// that names it and has no secret.
func checkCertificate(t *testing.T, c *config.Config) {
	t.Helper()
	bootstrap := c.Certificates["bootstrap"]
	assert.Equal(t, config.UsageClient, bootstrap.Usage)
	assert.Equal(t, "system:node:{{.Instance.ID}}", bootstrap.CommonName)
	assert.Equal(t, []string{"system:nodes"}, bootstrap.Organizations)
	files := c.Templates["worker"].Files
	require.Len(t, files, 2)
	assert.Equal(t, "certificate", files["bootstrap.crt"].Kind)
	data, err := json.Marshal(files["join.json"].Content["json"])
	require.NoError(t, err)
	kubeconfig, err := clientcmd.Load(data)
	require.NoError(t, err)
	current := kubeconfig.Contexts[kubeconfig.CurrentContext]
	cluster, user := kubeconfig.Clusters[current.Cluster], kubeconfig.AuthInfos[current.AuthInfo]
	assert.Equal(t, "https://10.0.0.10:6443", cluster.Server)
	assert.Equal(t, "-----BEGIN CERTIFICATE-----\n", string(cluster.CertificateAuthorityData))
	assert.Equal(t, "/opt/nstance-agent/recv/bootstrap.crt", user.ClientCertificate)
	assert.Equal(t, "/opt/nstance-agent/keys/bootstrap.key", user.ClientKey)
	// The files of the certificate exist only on a machine.
	user.ClientCertificate, user.ClientKey = "", ""
	require.NoError(t, clientcmd.ConfirmUsable(*kubeconfig, ""))
	assert.Empty(t, user.Token)
	assert.NotContains(t, c.Templates["worker"].Vars, "kubernetes_ca")
}

// TestSettingsOfAProvider: what differs from the defaults reaches the configuration.
func TestSettingsOfAProvider(t *testing.T) {
	t.Run("aws", func(t *testing.T) {
		_, c := written(t, "aws", "none", "--arch", "arm64", "--image", "ami-0123456789abcdef0", "--instance-type", "m9g.large", "--cpu", "3", "--memory", "9Gi", "--address", "2001:db8::a")
		template := c.Templates["worker"]
		assert.Equal(t, "ami-0123456789abcdef0", template.Args["image"])
		assert.NotContains(t, template.Args, "image_filters")
		known := c.Shard.Infra.InstanceTypes["m9g.large"]
		assert.Equal(t, "arm64", known.Arch)
		assert.Equal(t, "3", known.CPU.String())
		assert.Equal(t, "9Gi", known.Memory.String())
		assert.Equal(t, "[2001:db8::a]:8994", c.Shard.Advertise.AgentAddr)
	})
	t.Run("arm64", func(t *testing.T) {
		_, c := written(t, "google", "none", "--arch", "arm64")
		assert.Equal(t, "t2a-standard-2", c.Templates["worker"].InstanceType)
	})
	t.Run("qemu", func(t *testing.T) {
		_, c := written(t, "qemu", "none", "--bridge", "br0", "--accel", "tcg", "--region", "home", "--zone", "cellar")
		assert.Equal(t, "home", c.Shard.Infra.Region)
		assert.Equal(t, "cellar", c.Shard.Infra.Zone)
		assert.Contains(t, string(c.Source.Data), `"bridge": "br0"`)
		assert.Contains(t, string(c.Source.Data), `"accel": "tcg"`)
	})
	t.Run("programs", func(t *testing.T) {
		_, c := written(t, "proxmox", "k3s", "--agent-url", agentAt, "--agent-sha256", sum, "--k3s-url", "https://files.example.com/k3s", "--k3s-sha256", sum)
		assert.Equal(t, map[string]string{
			"agent_url": agentAt, "agent_sha256": sum, "k3s_url": "https://files.example.com/k3s", "k3s_sha256": sum,
		}, c.Templates["worker"].Vars)
	})
}
