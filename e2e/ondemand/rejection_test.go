// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A Pod whose request cannot be fulfilled has one event that names the mistake, and
// gets no machine. It gets one when its group is created later.
func TestPodsWithInvalidRequests(t *testing.T) {
	t.Parallel()
	const namespace, later = "impossible", "later"
	watchOperator(t)
	newNamespace(t, namespace)
	tests := map[string]struct {
		annotations map[string]string
		reason      string
		// parts are what the note of the event contains.
		parts []string
	}{
		"bad-group": {
			annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: "No_Group"},
			reason:      "InvalidAnnotation",
			parts:       []string{v1beta1.AnnotationOnDemandGroup, "No_Group"},
		},
		"long-instance-type": {
			annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group, v1beta1.AnnotationOnDemandInstanceType: strings.Repeat("x", 129)},
			reason:      "InvalidAnnotation",
			parts:       []string{v1beta1.AnnotationOnDemandInstanceType, "128"},
		},
		"no-instance-type": {
			annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group, v1beta1.AnnotationOnDemandInstanceType: ""},
			reason:      "InvalidAnnotation",
			parts:       []string{v1beta1.AnnotationOnDemandInstanceType},
		},
		"unknown-group": {
			annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: later},
			reason:      "UnknownGroup",
			parts:       []string{later, group},
		},
	}
	pods := map[string]*corev1.Pod{}
	for name, tc := range tests {
		pod := newPod(namespace, name)
		pod.Annotations = maps.Clone(tc.annotations)
		pods[name] = createPod(t, pod)
	}
	eventsReported := func(ctx context.Context) error {
		for name, tc := range tests {
			events, err := podEvents(ctx, namespace, tc.reason)
			if err != nil {
				return err
			}
			if err := oneEvent(events[name]); err != nil {
				return fmt.Errorf("pod %s, %s: %w", name, tc.reason, err)
			}
			for _, part := range tc.parts {
				if note := events[name][0].Note; !strings.Contains(note, part) {
					return fmt.Errorf("pod %s has event %q, without %q", name, note, part)
				}
			}
		}
		return nil
	}
	testcluster.Eventually(t, time.Minute, "every Pod has its event", eventsReported)
	if err := machineCount(t.Context(), namespace, 0); err != nil {
		t.Error(err)
	}

	createGroup(t, later)
	m := untilRuns(t, pods["unknown-group"])
	if err := machineCount(t.Context(), namespace, 1); err != nil {
		t.Error(err)
	}
	if err := eventsReported(t.Context()); err != nil {
		t.Error(err)
	}
	// The group is deleted after its instances.
	deletePod(t, pods["unknown-group"])
	untilDeleted(t, m)
}

// createGroup creates a group on all shards until the end of the test, as a user
// does: with a pool that has no instances.
func createGroup(t *testing.T, name string) {
	t.Helper()
	pools := env.NstanceMachinePools()
	pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
	pool.Spec.Template = installation.OnDemandTemplate
	_, err := pools.Create(t.Context(), pool, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		// Cluster API deletes the pool with the MachinePool that the operator created.
		err := env.MachinePools().Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		testcluster.Eventually(t, time.Minute, "pool "+name+" is deleted", func(ctx context.Context) error {
			_, err := pools.Get(ctx, name, metav1.GetOptions{})
			return testcluster.NotFound("the pool", err)
		})
	})
}
