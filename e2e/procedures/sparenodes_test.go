// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package procedures

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The template of manifests/samples/spare-nodes.yaml gives Pods that a Node of the sample pool has room for, each alone.
// No part of the autoscaler runs here: it was tried with the buffer (docs/cluster-autoscaler.md#spare-nodes).
func TestSpareNodes(t *testing.T) {
	t.Parallel()
	const pool = "spare"
	createPool(t, pool, v1beta1.MachineModeNever, 1, env.ShardIDs...)
	env.UntilRunning(t, pool, 1)
	sample, err := os.ReadFile(filepath.Join("..", "..", "manifests", "samples", "spare-nodes.yaml"))
	require.NoError(t, err)
	documents := separator.Split(string(sample), -1)
	require.Len(t, documents, 2)
	command := env.KubectlCommand(t.Context(), "create", "--namespace", "default", "--dry-run=server", "--validate=strict", "-f", "-")
	command.Stdin = strings.NewReader(documents[0])
	output, err := command.CombinedOutput()
	require.NoError(t, err, string(output))
	var template corev1.PodTemplate
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[0]), &template))
	var buffer struct {
		Spec struct{ PodTemplateRef struct{ Name string } }
	}
	require.NoError(t, yaml.Unmarshal([]byte(documents[1]), &buffer))
	assert.Equal(t, template.Name, buffer.Spec.PodTemplateRef.Name)

	pod, err := env.Kube.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: template.Name}, Spec: template.Template.Spec,
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	nodes, err := env.Nodes(t.Context(), pool)
	require.NoError(t, err)
	cpu := pod.Spec.Containers[0].Resources.Requests.Cpu()
	room := nodes[0].Status.Allocatable.Cpu()
	assert.LessOrEqual(t, cpu.MilliValue(), room.MilliValue())
	assert.Greater(t, 2*cpu.MilliValue(), room.MilliValue(), "two Pods fit on a Node")
}
