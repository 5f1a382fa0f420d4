// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// TestUnitRunsTheServerOfTheShard with the storage of the flags, and not as root if it need not be.
func TestUnitRunsTheServerOfTheShard(t *testing.T) {
	for provider, root := range map[string]bool{"aws": false, "google": false, "proxmox": false, "kwok": false, "docker": true, "qemu": true} {
		t.Run(provider, func(t *testing.T) {
			folder, _ := written(t, provider, "none", "--storage", "file", "--storage-prefix", "a/b")
			unit := read(t, folder, "nstance-server.service")
			assert.Contains(t, unit, "\nExecStart=/usr/local/bin/nstance-server --shard us-west-2a --storage file --bucket /var/lib/nstance/bucket --prefix a/b --cache-dir /var/lib/nstance/cache\n")
			assert.Equal(t, !root, strings.Contains(unit, "\nUser=nstance\n"))
			assert.Equal(t, provider == "qemu", strings.Contains(unit, "\nKillMode=process\n"))
			assert.Equal(t, provider == "aws", strings.Contains(unit, "\nEnvironment=AWS_REGION=us-west-2\n"))
			for line := range strings.Lines(unit) {
				assert.Regexp(t, `^(#.*|\[\w+\]|\w+=.*)?\n$`, line)
			}
		})
	}
}

// TestUnitIsAsStrictAsTheManifest: both have the same settings, apart from what names the shard, its
// files and its user. The server of docker runs as root, and the machines of qemu are its children.
func TestUnitIsAsStrictAsTheManifest(t *testing.T) {
	manifest, err := os.ReadFile("../../../manifests/server/nstance-server.service")
	require.NoError(t, err)
	own := regexp.MustCompile(`^(#|Description=|EnvironmentFile=|ExecStart=|StateDirectory=)`)
	for provider, except := range map[string]*regexp.Regexp{
		"aws": regexp.MustCompile("^User="), "google": regexp.MustCompile("^User="), "proxmox": regexp.MustCompile("^User="), "kwok": regexp.MustCompile("^User="),
		"docker": regexp.MustCompile("^(User|After|CapabilityBoundingSet)="),
		"qemu":   regexp.MustCompile("^(User|CapabilityBoundingSet|Protect.*|Private.*|NoNewPrivileges|Restrict.*|RemoveIPC|LockPersonality|MemoryDenyWriteExecute|SystemCall.*)="),
	} {
		folder, _ := written(t, provider, "none")
		unit := strings.Split(read(t, folder, "nstance-server.service"), "\n")
		for line := range strings.Lines(string(manifest)) {
			if line = strings.TrimSuffix(line, "\n"); !own.MatchString(line) && !except.MatchString(line) {
				assert.Contains(t, unit, line, provider)
			}
		}
	}
}

// TestInstallationOfTheServer runs install.sh in a folder as the root of the machine.
func TestInstallationOfTheServer(t *testing.T) {
	folder, _ := written(t, "proxmox", "k3s", "--storage", "file", "--storage-bucket", "/srv/bucket")
	root := t.TempDir()
	for _, name := range []string{"etc/systemd/system", "usr/local/bin", "srv", "bin"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, name), 0o755))
	}
	for _, name := range []string{"../nstance-server", "../nstance-admin", "../encryption.key", "proxmox-token", "pve-root-ca.pem"} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(name), 0o600))
	}
	for _, program := range []string{"systemctl", "useradd", "id"} {
		require.NoError(t, os.WriteFile(filepath.Join(root, "bin", program), []byte("#!/bin/sh\necho "+program+" \"$@\" >>"+root+"/commands\n"), 0o755))
	}
	// Only root may give a file to another user.
	script := strings.ReplaceAll(read(t, folder, "install.sh"), ` -o "$owner"`, "")
	script = regexp.MustCompile(`/(etc|usr|srv)/`).ReplaceAllString(script, root+"/$1/")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "run.sh"), []byte(script), 0o700))
	command := exec.CommandContext(t.Context(), "sh", filepath.Join(folder, "run.sh"))
	command.Env = append(os.Environ(), "PATH="+root+"/bin:"+os.Getenv("PATH"))
	output, err := command.CombinedOutput()
	require.NoError(t, err, string(output))
	for name, mode := range map[string]os.FileMode{
		"usr/local/bin/nstance-server": 0o755, "usr/local/bin/nstance-admin": 0o755, "etc/nstance/encryption.key": 0o400, "etc/nstance/proxmox-token": 0o400,
		"etc/nstance/pve-root-ca.pem": 0o400, "etc/nstance/us-west-2a.jsonc": 0o644, "etc/systemd/system/nstance-server.service": 0o644,
	} {
		info, err := os.Stat(filepath.Join(root, name))
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode(), name)
	}
	assert.DirExists(t, filepath.Join(root, "srv/bucket"))
	assert.True(t, strings.HasSuffix(read(t, root, "commands"), "systemctl daemon-reload\nsystemctl enable nstance-server.service\nsystemctl restart nstance-server.service\n"))
}

// TestPool: Kubernetes accepts the pool, in the namespace that the operator watches.
func TestPool(t *testing.T) {
	folder, _ := written(t, "kwok", "none")
	documents := strings.Split(read(t, folder, "pool.yaml"), "---\n")
	require.Len(t, documents, 2)
	var machines clusterv1.MachinePool
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[0]), &machines))
	assert.Equal(t, metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"}, machines.TypeMeta)
	assert.Equal(t, "prod--default", machines.Spec.ClusterName)
	assert.Equal(t, "prod--default", machines.Spec.Template.Spec.ClusterName)
	assert.Equal(t, int32(1), *machines.Spec.Replicas)
	var pool v1beta1.NstanceMachinePool
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[1]), &pool))
	assert.Equal(t, metav1.TypeMeta{APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: "NstanceMachinePool"}, pool.TypeMeta)
	assert.Equal(t, []string{"nstance-system", "nstance-system"}, []string{machines.Namespace, pool.Namespace})
	assert.Equal(t, machines.Spec.Template.Spec.InfrastructureRef.Name, pool.Name)
	assert.Equal(t, "worker", pool.Spec.Template)
	assert.Equal(t, []v1beta1.Identifier{"us-west-2a"}, pool.Spec.Shards)
}

// TestScriptsAreShell: the shell can parse each script of each provider.
func TestScriptsAreShell(t *testing.T) {
	for provider, join := range map[string]string{"aws": "kubeadm", "google": "rke2", "proxmox": "k3s", "docker": "kubeadm"} {
		folder, _ := written(t, provider, join)
		for _, name := range []string{"install.sh", "setup.sh", "join-secret.sh"} {
			path := filepath.Join(folder, name)
			if _, err := os.Stat(path); name == "setup.sh" && os.IsNotExist(err) {
				continue
			}
			output, err := exec.CommandContext(t.Context(), "sh", "-n", path).CombinedOutput()
			require.NoError(t, err, string(output))
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o755), info.Mode())
		}
	}
}

// TestJoinSecretOfK3s runs the script with programs that record their arguments.
func TestJoinSecretOfK3s(t *testing.T) {
	for _, distribution := range []string{"k3s", "rke2"} {
		folder, _ := written(t, "proxmox", distribution)
		program := func(name, text string) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\n"+text), 0o755))
		}
		store := func() error {
			command := exec.CommandContext(t.Context(), "sh", "join-secret.sh", "https://10.0.0.10:6443", "--storage", "file")
			command.Dir = folder
			command.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
			return command.Run()
		}
		program("nstance-admin", "echo \"$@\" >set\ncat >stored\n")
		program(distribution, "exit 1\n")
		require.Error(t, store())
		require.NoFileExists(t, filepath.Join(folder, "set"), "nothing replaces the secret if there is no new token")
		program(distribution, "echo \"$@\" >created\necho K10abc::node:secret\n")
		require.NoError(t, store())
		assert.Equal(t, "secret set join.json --from-file - --storage file\n", read(t, folder, "set"))
		assert.Regexp(t, "^token create --ttl [1-9]h ", read(t, folder, "created"))
		var secret map[string]string
		require.NoError(t, yaml.UnmarshalStrict([]byte(read(t, folder, "stored")), &secret))
		assert.Equal(t, map[string]string{"server": "https://10.0.0.10:6443", "token": "K10abc::node:secret"}, secret)
	}
}
