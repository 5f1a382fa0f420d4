// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const manifests = "../../manifests"

// The units and Pods that are shipped start a server: their flags exist, and none is missing.
func TestManifestsStartTheServer(t *testing.T) {
	for name, args := range map[string][]string{
		"nstance-server.service": unitArgs(t),
		"deployment.yaml":        deployment(t).Spec.Template.Spec.Containers[0].Args,
		"static-pod.yaml":        staticPod(t).Spec.Containers[0].Args,
	} {
		command := newCommand()
		require.NoError(t, command.ParseFlags(args), name)
		assert.Empty(t, command.Flags().Args(), name)
		assert.NoError(t, command.PreRunE(command, nil), name)
	}
}

// unitArgs returns the arguments of the unit, with the variables of its environment file.
func unitArgs(t *testing.T) []string {
	t.Helper()
	environment := map[string]string{}
	for _, line := range lines(t, "server/nstance-server.env") {
		name, value, assigned := strings.Cut(line, "=")
		require.True(t, assigned, line)
		environment[name] = value
	}
	start := unit(t, "server/nstance-server.service")["ExecStart"]
	require.Len(t, start, 1)
	program, args, _ := strings.Cut(start[0], " ")
	assert.Equal(t, "/usr/local/bin/nstance-server", program)
	return strings.Fields(os.Expand(args, func(name string) string {
		value, known := environment[name]
		assert.True(t, known, "variable %s of the unit is not in nstance-server.env", name)
		return value
	}))
}

// lines returns the lines of a file without comments and empty lines.
func lines(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(manifests, path))
	require.NoError(t, err)
	return slices.DeleteFunc(strings.Split(string(data), "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line, "#")
	})
}

// unit returns the directives of a unit.
func unit(t *testing.T, path string) map[string][]string {
	t.Helper()
	directives := map[string][]string{}
	for _, line := range lines(t, path) {
		if name, value, assigned := strings.Cut(line, "="); assigned {
			directives[name] = append(directives[name], value)
		}
	}
	return directives
}

// The unit gives the server no right that it does not use
// (https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html).
func TestUnitIsHardened(t *testing.T) {
	directives := unit(t, "server/nstance-server.service")
	for name, value := range map[string]string{
		"CapabilityBoundingSet":   "",
		"LockPersonality":         "true",
		"MemoryDenyWriteExecute":  "true",
		"NoNewPrivileges":         "true",
		"PrivateDevices":          "true",
		"PrivateTmp":              "true",
		"ProtectClock":            "true",
		"ProtectControlGroups":    "true",
		"ProtectHome":             "true",
		"ProtectHostname":         "true",
		"ProtectKernelLogs":       "true",
		"ProtectKernelModules":    "true",
		"ProtectKernelTunables":   "true",
		"ProtectProc":             "invisible",
		"ProtectSystem":           "strict",
		"RestrictNamespaces":      "true",
		"RestrictRealtime":        "true",
		"RestrictSUIDSGID":        "true",
		"SystemCallArchitectures": "native",
		"SystemCallFilter":        "@system-service",
		"UMask":                   "0077",
		"User":                    "nstance-server",
	} {
		assert.Equal(t, []string{value}, directives[name], name)
	}
	// The cache is the only folder that the server may write.
	assert.Empty(t, directives["ReadWritePaths"])
	assert.Equal(t, []string{"nstance-server"}, directives["StateDirectory"])
	assert.Contains(t, unitArgs(t), "--cache-dir=/var/lib/"+directives["StateDirectory"][0])
	// The server reads the id of the boot in /proc (pkg/server/internal/boot).
	assert.NotContains(t, directives, "ProcSubset")
}

// systemd finds no mistake in the units, if it is installed.
func TestUnitsAreValid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return // the other tests check what they can
	}
	for _, path := range []string{"server/nstance-server.service", "agent/nstance-agent.service"} {
		text, err := os.ReadFile(filepath.Join(manifests, path))
		require.NoError(t, err)
		// systemd looks for the program, which is not installed.
		text = bytes.ReplaceAll(text, []byte("ExecStart=/usr/local/bin/"+strings.TrimSuffix(filepath.Base(path), ".service")), []byte("ExecStart="+analyze))
		copied := filepath.Join(t.TempDir(), filepath.Base(path))
		require.NoError(t, os.WriteFile(copied, text, 0o600))
		output, err := exec.CommandContext(t.Context(), analyze, "verify", copied).CombinedOutput()
		assert.NoError(t, err, "%s: %s", path, output)
		assert.NotContains(t, string(output), filepath.Base(path), "what systemd-analyze says of it")
	}
}

func deployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	deployment := &appsv1.Deployment{}
	decode(t, "server/deployment.yaml", deployment)
	require.Len(t, deployment.Spec.Template.Spec.Containers, 1)
	return deployment
}

func staticPod(t *testing.T) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	decode(t, "server/static-pod.yaml", pod)
	require.Len(t, pod.Spec.Containers, 1)
	return pod
}

// decode reads a manifest. A field that its kind does not have is an error.
func decode(t *testing.T, path string, object any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(manifests, path))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(data, object), path)
}

// The containers cannot gain rights, and the folder of the cache is the only one that is written.
func TestPodsOfServersAreRestricted(t *testing.T) {
	for name, spec := range map[string]corev1.PodSpec{
		"deployment.yaml": deployment(t).Spec.Template.Spec,
		"static-pod.yaml": staticPod(t).Spec,
	} {
		context, container := spec.SecurityContext, spec.Containers[0].SecurityContext
		require.NotNil(t, context, name)
		require.NotNil(t, container, name)
		assert.True(t, *context.RunAsNonRoot, name)
		assert.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, context.SeccompProfile.Type, name)
		assert.False(t, *container.AllowPrivilegeEscalation, name)
		assert.True(t, *container.ReadOnlyRootFilesystem, name)
		assert.Equal(t, []corev1.Capability{"ALL"}, container.Capabilities.Drop, name)
		var writable []string
		for _, mount := range spec.Containers[0].VolumeMounts {
			if !mount.ReadOnly {
				writable = append(writable, "--cache-dir="+mount.MountPath)
			}
		}
		require.Len(t, writable, 1, name)
		assert.Contains(t, spec.Containers[0].Args, writable[0], name)
	}
}

// A static Pod cannot refer to other objects
// (https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/), and every user who may
// read Pods sees its environment.
func TestStaticPodNeedsNoOtherObject(t *testing.T) {
	pod := staticPod(t)
	container := pod.Spec.Containers[0]
	assert.Empty(t, container.EnvFrom)
	assert.Empty(t, pod.Spec.ServiceAccountName)
	for _, variable := range container.Env {
		assert.Nil(t, variable.ValueFrom, variable.Name)
		assert.NotContains(t, variable.Name, "KEY")
	}
	for _, volume := range pod.Spec.Volumes {
		assert.NotNil(t, volume.HostPath, volume.Name)
	}
}

// The Service has the addresses that machines and operators call, at the ports of the example of
// a configuration.
func TestServiceHasThePortsOfTheConfiguration(t *testing.T) {
	service := &corev1.Service{}
	decode(t, "server/service.yaml", service)
	example, err := os.ReadFile("../../docs/shard.jsonc")
	require.NoError(t, err)
	ports := map[string]int32{}
	for _, port := range deployment(t).Spec.Template.Spec.Containers[0].Ports {
		ports[port.Name] = port.ContainerPort
	}
	for name, port := range ports {
		assert.Contains(t, string(example), `"`+name+`_addr": "0.0.0.0:`+strconv.Itoa(int(port))+`"`)
	}
	assert.Len(t, ports, 5)
	var called []string
	for _, port := range service.Spec.Ports {
		called = append(called, port.TargetPort.String())
		assert.Equal(t, ports[port.TargetPort.String()], port.Port)
	}
	assert.ElementsMatch(t, []string{"registration", "operator", "agent"}, called)
	assert.Equal(t, service.Spec.Selector, deployment(t).Spec.Template.Labels)
}
