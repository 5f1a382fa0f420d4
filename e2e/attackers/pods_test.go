// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// A user who may create Pods gets machines only where the operator allows it, in groups that allow
// it, up to the limit, and cannot end the operator with large annotations.
func TestPodUser(t *testing.T) {
	env.CreateNamespace(t, guests)
	env.CreateNamespace(t, allowed)
	attacker := newAccount(t, "pod-user", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create", "delete", "get", "list"}},
	}, guests, allowed)
	expectAlive(t, env.Operator.Component)
	create := func(pod *corev1.Pod) {
		t.Helper()
		_, err := attacker.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}

	create(testcluster.NewOnDemandPod(guests, "not-allowed", builders))
	untilRejected(t, guests, "not-allowed", "OnDemandNotAllowed", "--on-demand-namespaces")
	create(testcluster.NewOnDemandPod(allowed, "control-plane", controlPlane))
	untilRejected(t, allowed, "control-plane", v1beta1.ReasonInstanceRefused, "limits.on_demand")

	for i := range onDemandLimit + 2 {
		create(testcluster.NewOnDemandPod(allowed, fmt.Sprintf("pod-%d", i), builders))
	}
	testcluster.Eventually(t, timeout, "the Pods over the limit are rejected", func(ctx context.Context) error {
		events, err := podEvents(ctx, allowed, "OnDemandLimit")
		if err == nil && len(events) != 2 {
			err = fmt.Errorf("%d Pods", len(events))
		}
		return err
	})
	testcluster.Eventually(t, timeout, "the others have a machine", func(context.Context) error {
		if created := len(env.Creations(t, honestShard)); created != onDemandLimit {
			return fmt.Errorf("%d instances were created", created)
		}
		return nil
	})

	flooded(t, env.Operator.Component, func() {
		pods := tier.Pick(60, 350)
		var creating errgroup.Group
		creating.SetLimit(8)
		for i := range pods {
			creating.Go(func() error {
				pod := testcluster.NewOnDemandPod(guests, fmt.Sprintf("large-%d", i), builders)
				// The API server allows 256 KiB in all annotations.
				pod.Annotations[v1beta1.AnnotationOnDemandGroup] = strings.Repeat("\x01", 60<<10)
				pod.Annotations[v1beta1.AnnotationOnDemandInstanceType] = strings.Repeat("\x02", 60<<10)
				pod.Annotations[v1beta1.AnnotationOnDemandDrainTimeout] = strings.Repeat("\x03", 60<<10)
				_, err := attacker.CoreV1().Pods(guests).Create(t.Context(), pod, metav1.CreateOptions{})
				return err
			})
		}
		require.NoError(t, creating.Wait())
		testcluster.Eventually(t, timeout, "all Pods with large annotations are rejected", func(ctx context.Context) error {
			events, err := podEvents(ctx, guests, "")
			// The Pod of the beginning has an event, too.
			if err == nil && len(events) != pods+1 {
				err = fmt.Errorf("%d of %d Pods", len(events)-1, pods)
			}
			return err
		})
	})

	// The operator still works: a machine that is free goes to another Pod.
	for i := range onDemandLimit + 2 {
		require.NoError(t, attacker.CoreV1().Pods(allowed).Delete(t.Context(), fmt.Sprintf("pod-%d", i), metav1.DeleteOptions{}))
	}
	create(testcluster.NewOnDemandPod(allowed, "later", builders))
	testcluster.Eventually(t, timeout, "another Pod has a machine", func(context.Context) error {
		if created := len(env.Creations(t, honestShard)); created <= onDemandLimit {
			return fmt.Errorf("%d instances were created", created)
		}
		return nil
	})
	for _, created := range env.Creations(t, honestShard) {
		assert.Equal(t, builders, created.Group, "the group of an instance for a Pod")
	}
	group, err := env.Group(t.Context(), honestShard, controlPlane)
	require.NoError(t, err)
	assert.Equal(t, int32(1), group.GetSize(), "size of the control plane")
	assert.Len(t, group.GetProviderIds(), 1, "instances of the control plane")
}

// podEvents returns the events of the operator about the Pods of a namespace by the name of the
// Pod. An empty reason means any reason of a rejection.
func podEvents(ctx context.Context, namespace, reason string) (map[string]eventsv1.Event, error) {
	list, err := env.Kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "regarding.kind=Pod"})
	if err != nil {
		return nil, err
	}
	found := map[string]eventsv1.Event{}
	for _, event := range list.Items {
		if event.Action == "CreateMachine" && (reason == "" || event.Reason == reason) {
			found[event.Regarding.Name] = event
		}
	}
	return found, nil
}

// untilRejected waits until an event says why a Pod gets no machine.
func untilRejected(t *testing.T, namespace, pod, reason, part string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "Pod "+pod+" is rejected", func(ctx context.Context) error {
		events, err := podEvents(ctx, namespace, reason)
		if err != nil {
			return err
		}
		if note := events[pod].Note; !strings.Contains(note, part) {
			all, err := podEvents(ctx, namespace, "")
			return fmt.Errorf("the note is %q, without %q; it has %s %q (%w)", note, part, all[pod].Reason, all[pod].Note, err)
		}
		return nil
	})
}
