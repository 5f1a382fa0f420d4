// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/provider/kwok"
)

// When a shard withdraws a deletion, the Node that the operator cordoned for it is
// uncordoned, but not the Node that an administrator had cordoned before.
func TestWithdrawnDrains(t *testing.T) {
	t.Parallel()
	const ours, admins = "ours", "admins"
	old, replacements := map[string]string{}, map[string]string{}
	from := env.AuditEnd(t)
	for _, name := range []string{ours, admins} {
		old[name] = createGroup(t, forgetfulShard, name, 1)[0]
		env.CreateNamespace(t, name)
		createPods(t, newPod(name, "stuck", old[name]))
		protect(t, name, "stuck")
	}
	patchNode(t, old[admins], `{"spec":{"unschedulable":true}}`)
	for _, name := range []string{ours, admins} {
		setProviderStatus(t, old[name], kwok.StatusImpaired)
	}
	for _, name := range []string{ours, admins} {
		nodes := readyNodes(t, name, 2)
		replacements[name] = nodes[slices.IndexFunc(nodes, func(node string) bool { return node != old[name] })]
		testcluster.Eventually(t, timeout, "the eviction of the Pod was rejected", func(context.Context) error {
			if !slices.ContainsFunc(evictions(t, from, name, "stuck"), func(r controlplane.Request) bool {
				return r.Code == http.StatusTooManyRequests
			}) {
				return errors.New("no rejected eviction")
			}
			return nil
		})
	}
	expectCordoned(t, old[ours], forgetfulShard+"/"+old[ours])
	expectCordoned(t, old[admins], "")

	// Only the server's cache records which instances drain.
	shard := env.ShardServer(forgetfulShard)
	testcluster.Stop(t, shard)
	require.NoError(t, os.RemoveAll(env.Installation.CacheDir(shard.Name)))
	for _, name := range []string{ours, admins} {
		setProviderStatus(t, old[name], "")
		// One of the two is deleted.
		setProviderStatus(t, replacements[name], kwok.StatusFailed)
	}
	testcluster.Start(t, shard)

	testcluster.Eventually(t, timeout, "our Node is uncordoned", func(ctx context.Context) error {
		node, err := env.Kube.CoreV1().Nodes().Get(ctx, old[ours], metav1.GetOptions{})
		if err != nil {
			return err
		}
		if mark, marked := node.Annotations[v1beta1.AnnotationCordonedFor]; node.Spec.Unschedulable || marked {
			return fmt.Errorf("unschedulable %t, marked %q", node.Spec.Unschedulable, mark)
		}
		return nil
	})
	for _, name := range []string{ours, admins} {
		testcluster.Eventually(t, timeout, "the shard group has no drains", func(ctx context.Context) error {
			condition, err := progress(ctx, forgetfulShard, name)
			if err == nil && condition.Reason != v1beta1.ReasonNoDrains {
				err = fmt.Errorf("condition %+v", condition)
			}
			return err
		})
		if d, _ := env.drains[forgetfulShard].ofInstance(old[name]); len(d.Acknowledged) > 0 || !d.Deleted.IsZero() {
			t.Errorf("the instance that is not deleted any more: %+v", d)
		}
		if _, err := env.Kube.CoreV1().Pods(name).Get(t.Context(), "stuck", metav1.GetOptions{}); err != nil {
			t.Errorf("the Pod that is not evicted any more: %v", err)
		}
	}
	expectCordoned(t, old[admins], "")
}

func expectCordoned(t *testing.T, node, mark string) {
	t.Helper()
	assert.NoError(t, cordoned(t.Context(), node, mark))
}
