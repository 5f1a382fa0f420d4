// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package procedures

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The jobs of manifests/samples/scheduled-sizes.yaml scale their pool, with an account that can do nothing
// else. No image has kubectl here: the arguments of the jobs run with the rights of their account.
func TestScheduledSizes(t *testing.T) {
	t.Parallel()
	const pool, other, account = "scheduled", "unscheduled", "scheduled-sizes"
	sample, err := os.ReadFile(filepath.Join("..", "..", "manifests", "samples", "scheduled-sizes.yaml"))
	require.NoError(t, err)
	text := strings.ReplaceAll(string(sample), "workers", pool)
	createPool(t, pool, v1beta1.MachineModeNever, 1, env.ShardIDs...)
	kubectl := func(ctx context.Context, verb string) {
		command := env.KubectlCommand(ctx, verb, "-f", "-")
		command.Stdin = strings.NewReader(text)
		output, err := command.CombinedOutput()
		require.NoError(t, err, string(output))
	}
	kubectl(t.Context(), "create")
	t.Cleanup(func() { kubectl(context.WithoutCancel(t.Context()), "delete") })

	as := "--as=system:serviceaccount:" + installation.Namespace + ":" + account
	for _, step := range []struct {
		job  string
		size int32
	}{{pool + "-day", 10}, {pool + "-night", 2}} {
		job, err := env.Kube.BatchV1().CronJobs(installation.Namespace).Get(t.Context(), step.job, metav1.GetOptions{})
		require.NoError(t, err)
		template := job.Spec.JobTemplate.Spec.Template.Spec
		assert.Equal(t, account, template.ServiceAccountName)
		env.Kubectl(t, slices.Concat([]string{as}, template.Containers[0].Args)...)
		env.UntilRunning(t, pool, step.size)
	}

	// The controllers of Kubernetes make the same Pods of it, at the time of the schedule.
	job, err := env.Kube.BatchV1().CronJobs(installation.Namespace).Get(t.Context(), pool+"-day", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = env.Kube.BatchV1().Jobs(installation.Namespace).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: job.Name}, Spec: job.Spec.JobTemplate.Spec,
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)

	allowed := func(arguments ...string) string {
		// It fails if the answer is no.
		output, _ := env.KubectlCommand(t.Context(), slices.Concat([]string{as, "auth", "can-i"}, arguments)...).Output()
		return strings.TrimSpace(string(output))
	}
	assert.Equal(t, "yes", allowed("patch", "machinepools.cluster.x-k8s.io/"+pool, "--subresource=scale"))
	for name, arguments := range map[string][]string{
		"scale another pool":   {"patch", "machinepools.cluster.x-k8s.io/" + other, "--subresource=scale"},
		"read another pool":    {"get", "machinepools.cluster.x-k8s.io/" + other},
		"delete the pool":      {"delete", "machinepools.cluster.x-k8s.io/" + pool},
		"change its settings":  {"patch", "machinepools.cluster.x-k8s.io/" + pool},
		"read a Secret":        {"get", "secrets"},
		"create further Roles": {"create", "rolebindings.rbac.authorization.k8s.io"},
	} {
		assert.Equal(t, "no", allowed(arguments...), name)
	}
}
