// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Cluster API can create machines from a template, as many as a MachineDeployment
// requests.
func TestMachineDeployment(t *testing.T) {
	t.Parallel()
	watchOperator(t)
	const name = "trio"
	templates := env.NstanceMachineTemplates()
	template := &v1beta1.NstanceMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	template.Spec.Template.Spec.GroupRef.Name = group
	template.Spec.Template.ObjectMeta = v1beta1.TemplateMetadata{
		Labels: map[string]string{"example.com/team": "blue"}, Annotations: map[string]string{"example.com/note": "for three"},
	}
	if _, err := templates.Create(t.Context(), template, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := templates.Patch(t.Context(), name, mergePatch,
		[]byte(`{"spec":{"template":{"spec":{"instanceType":"c7i.large"}}}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "immutable") {
		t.Errorf("changing the template: %v, want it to be rejected as immutable", err)
	}

	labels := object{"deployment": name}
	create(t, "machinedeployments", "MachineDeployment", name, object{
		"clusterName": installation.ClusterName,
		"replicas":    int64(3),
		"selector":    object{"matchLabels": labels},
		"template": object{
			"metadata": object{"labels": labels},
			"spec": object{
				"clusterName": installation.ClusterName,
				"bootstrap":   object{"dataSecretName": ""},
				"infrastructureRef": object{
					"apiGroup": v1beta1.GroupName, "kind": "NstanceMachineTemplate", "name": name,
				},
			},
		},
	})
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := env.ClusterAPI("machinedeployments").Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		if err := templates.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	three := untilDeployed(t, name, 3)
	for _, m := range three {
		nstanceMachine, err := env.NstanceMachines().Get(t.Context(), m.name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, "blue", nstanceMachine.Labels["example.com/team"])
		assert.Equal(t, "for three", nstanceMachine.Annotations["example.com/note"])
		assert.Equal(t, nstanceMachine.Status.Shard, nstanceMachine.Status.FailureDomain)
	}
	reported, err := templates.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotEmpty(t, reported.Status.Capacity, "of a Node of the template")
	_, err = env.ClusterAPI("machinedeployments").
		Patch(t.Context(), name, mergePatch, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{}, "scale")
	require.NoError(t, err)
	kept := untilDeployed(t, name, 1)[0]
	for _, m := range three {
		if m != kept {
			untilDeleted(t, m)
		}
	}
	require.NoError(t, env.ClusterAPI("machinedeployments").Delete(t.Context(), name, metav1.DeleteOptions{}))
	untilDeleted(t, kept)
	testcluster.Eventually(t, time.Minute, "the MachineDeployment is deleted", func(ctx context.Context) error {
		_, err := env.ClusterAPI("machinedeployments").Get(ctx, name, metav1.GetOptions{})
		return testcluster.NotFound("the MachineDeployment", err)
	})
}

// untilDeployed waits until a MachineDeployment has so many machines, which all
// run, and returns them.
func untilDeployed(t *testing.T, name string, count int) []machine {
	t.Helper()
	var machines []machine
	testcluster.Eventually(t, 2*time.Minute, fmt.Sprintf("%s has %d machines", name, count), func(ctx context.Context) error {
		list, err := env.Machines().List(ctx, metav1.ListOptions{LabelSelector: "deployment=" + name})
		if err != nil {
			return err
		}
		if len(list.Items) != count {
			return fmt.Errorf("%d Machines", len(list.Items))
		}
		machines = nil
		for _, item := range list.Items {
			m, err := getMachine(ctx, item.Name)
			if err != nil {
				return err
			}
			if m.node == "" {
				return fmt.Errorf("the Machine %s has no Node", m.name)
			}
			if err := m.running(ctx); err != nil {
				return err
			}
			machines = append(machines, m)
		}
		return nil
	})
	return machines
}
