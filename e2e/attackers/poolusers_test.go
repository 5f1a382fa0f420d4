// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A user who may write pools gets no code into machines: the vars that the configuration allows are
// text, and all others are refused.
func TestPoolUser(t *testing.T) {
	t.Parallel()
	attacker := newAccount(t, "pool-user", []rbacv1.PolicyRule{
		{APIGroups: []string{v1beta1.GroupName}, Resources: []string{"nstancemachinepools"}, Verbs: []string{"create", "get", "patch"}},
	}, installation.Namespace)
	pools := attacker.nstance.InfrastructureV1beta1().NstanceMachinePools(installation.Namespace)

	// A static group runs what the cluster cannot do without.
	imported := func(ctx context.Context) error {
		_, err := pools.Get(ctx, controlPlane, metav1.GetOptions{})
		return err
	}
	testcluster.Eventually(t, timeout, "the control plane is imported", imported)
	patch := func(pool string, vars map[string]string) error {
		t.Helper()
		data, err := json.Marshal(object{"spec": object{"vars": vars}})
		require.NoError(t, err)
		_, err = pools.Patch(t.Context(), pool, types.MergePatchType, data, metav1.PatchOptions{})
		return err
	}
	require.NoError(t, patch(controlPlane, map[string]string{"pod_name": "$(touch pwned)"}))
	untilConfigRejected(t, controlPlane, honestShard, "limits.vars")

	// The value ends a word and a heredoc, and is a command in each kind of quotes.
	const code = "a'b\"$(touch pwned)`touch pwned`; touch pwned; PEM ENV YAML EOF"
	crafted := testcluster.NewNstanceMachinePool("crafted", machineShard)
	crafted.Spec.Template, crafted.Spec.Vars = intruders, map[string]string{"greeting": code}
	_, err := pools.Create(t.Context(), crafted, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "the pool has a MachinePool", func(ctx context.Context) error {
		_, err := env.MachinePools().Get(ctx, crafted.Name, metav1.GetOptions{})
		return err
	})
	env.Scale(t, "crafted", 1)
	_, folder := machineOf(t, "crafted", "agent.env")
	assert.Equal(t, code, readFile(t, folder, "greeting"), "the value on the machine")
	assert.Contains(t, readFile(t, folder, "userdata"), "touch pwned", "the userdata has the value")
	_, err = os.Stat(filepath.Join(folder, "pwned"))
	assert.ErrorIs(t, err, os.ErrNotExist, "the value of a var was run")

	for name, vars := range map[string]map[string]string{
		"limits.vars": {"hostname": "other"},
		"greeting":    {"greeting": "\x1b]0;pwned\a"},
	} {
		pool := testcluster.NewNstanceMachinePool("crafted-"+strings.TrimPrefix(name, "limits."), machineShard)
		pool.Spec.Template, pool.Spec.Vars = intruders, vars
		if _, err := pools.Create(t.Context(), pool, metav1.CreateOptions{}); err != nil {
			assert.ErrorContains(t, err, name)
			continue
		}
		untilConfigRejected(t, pool.Name, machineShard, name)
	}
	_, err = attacker.CoreV1().Secrets(installation.Namespace).List(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsForbidden(err), "lists Secrets: %v", err)
}

// untilConfigRejected waits until the shard has refused the settings of a group, for a reason that
// has a part.
func untilConfigRejected(t *testing.T, group, shard, part string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "shard "+shard+" refuses the settings of "+group, func(ctx context.Context) error {
		found, err := env.ShardGroup(ctx, group, shard)
		if err != nil {
			return err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Reason == v1beta1.ReasonConfigRejected && strings.Contains(condition.Message, part) {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %v", found.Status.Conditions)
	})
}
