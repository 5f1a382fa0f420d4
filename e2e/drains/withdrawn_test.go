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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/instance/kwok"
)

// When a shard withdraws a deletion, the Node that was cordoned for it gets Pods
// again, but not the one that an administrator had cordoned before.
func TestWithdrawnDrains(t *testing.T) {
	t.Parallel()
	const ours, admins = "ours", "admins"
	old, replacements := map[string]string{}, map[string]string{}
	from := auditEnd(t)
	for _, name := range []string{ours, admins} {
		old[name] = createGroup(t, restartedShard, name, 1)[0]
		createNamespace(t, name)
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
		eventually(t, "the Pod was asked to leave", func(context.Context) error {
			if !slices.ContainsFunc(evictions(t, from, name, "stuck"), func(r controlplane.Request) bool {
				return r.Code == http.StatusTooManyRequests
			}) {
				return errors.New("no refused eviction")
			}
			return nil
		})
	}
	expectCordoned(t, old[ours], restartedShard+"/"+old[ours])
	expectCordoned(t, old[admins], "")

	// Which instances drain only the server's cache knows.
	shard := env.Component(nstance.Shard{ID: restartedShard}.Component())
	if err := shard.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(env.Nstance.CacheDir(shard.Name)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ours, admins} {
		setProviderStatus(t, old[name], "")
		// One of the two has to go.
		setProviderStatus(t, replacements[name], kwok.StatusFailed)
	}
	if err := shard.Start(t.Context()); err != nil {
		t.Fatal(err)
	}

	eventually(t, "our cordon is lifted", func(ctx context.Context) error {
		node, err := env.kube.CoreV1().Nodes().Get(ctx, old[ours], metav1.GetOptions{})
		if err != nil {
			return err
		}
		if mark, marked := node.Annotations[v1beta1.AnnotationCordonedFor]; node.Spec.Unschedulable || marked {
			return fmt.Errorf("unschedulable %t, marked %q", node.Spec.Unschedulable, mark)
		}
		return nil
	})
	for _, name := range []string{ours, admins} {
		eventually(t, "the shard group has no drains", func(ctx context.Context) error {
			condition, err := progress(ctx, restartedShard, name)
			if err == nil && condition.Reason != v1beta1.ReasonNoDrains {
				err = fmt.Errorf("condition %+v", condition)
			}
			return err
		})
		if d, _ := env.relays[restartedShard].drain(of(old[name])); len(d.Acknowledged) > 0 || !d.Ended.IsZero() {
			t.Errorf("the instance that was to stay: %+v", d)
		}
		if _, err := env.kube.CoreV1().Pods(name).Get(t.Context(), "stuck", metav1.GetOptions{}); err != nil {
			t.Errorf("the Pod that was to stay: %v", err)
		}
	}
	expectCordoned(t, old[admins], "")
}

func expectCordoned(t *testing.T, node, mark string) {
	t.Helper()
	if err := cordoned(t.Context(), node, mark); err != nil {
		t.Error(err)
	}
}
