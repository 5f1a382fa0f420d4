// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// What a Pod asks for in vain is told once, in words that help, and nothing is
// made of it. A group that is made later is not in vain.
func TestPodsThatAskForTheImpossible(t *testing.T) {
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
			map[string]string{v1beta1.AnnotationOnDemandGroup: "No_Group"},
			"InvalidAnnotation", []string{v1beta1.AnnotationOnDemandGroup, "No_Group"},
		},
		"long-instance-type": {
			map[string]string{v1beta1.AnnotationOnDemandGroup: group, v1beta1.AnnotationOnDemandInstanceType: strings.Repeat("x", 129)},
			"InvalidAnnotation", []string{v1beta1.AnnotationOnDemandInstanceType, "128"},
		},
		"no-instance-type": {
			map[string]string{v1beta1.AnnotationOnDemandGroup: group, v1beta1.AnnotationOnDemandInstanceType: ""},
			"InvalidAnnotation", []string{v1beta1.AnnotationOnDemandInstanceType},
		},
		"unknown-group": {
			map[string]string{v1beta1.AnnotationOnDemandGroup: later},
			"UnknownGroup", []string{later, group},
		},
	}
	pods := map[string]*corev1.Pod{}
	for name, tc := range tests {
		pod := newPod(namespace, name)
		pod.Annotations = maps.Clone(tc.annotations)
		pods[name] = createPod(t, pod)
	}
	told := func(ctx context.Context) error {
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
					return fmt.Errorf("pod %s was told %q, without %q", name, note, part)
				}
			}
		}
		return nil
	}
	eventually(t, time.Minute, "every Pod was told", told)
	if err := machineCount(t.Context(), namespace, 0); err != nil {
		t.Error(err)
	}

	makeGroup(t, later)
	m := untilRuns(t, pods["unknown-group"])
	if err := machineCount(t.Context(), namespace, 1); err != nil {
		t.Error(err)
	}
	if err := told(t.Context()); err != nil {
		t.Error(err)
	}
	// The group goes after its instances.
	deletePod(t, pods["unknown-group"])
	untilGone(t, m)
}

// makeGroup makes a group on all shards until the test is over, as a user would:
// of a pool that has no instances.
func makeGroup(t *testing.T, name string) {
	t.Helper()
	pools := env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace)
	pool := &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: v1beta1.Identifier(name), Template: nstance.OnDemandTemplate},
	}
	for _, shard := range shardIDs {
		pool.Spec.Shards = append(pool.Spec.Shards, v1beta1.Identifier(shard))
	}
	if _, err := pools.Create(t.Context(), pool, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		// Cluster API removes the pool with the MachinePool that the operator made.
		err := env.capi.MachinePools(nstance.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		eventually(t, time.Minute, "pool "+name+" is gone", func(ctx context.Context) error {
			_, err := pools.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(errors.New("it is there"), err)
		})
	})
}
