// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestPausedBy(t *testing.T) {
	free := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "free", Annotations: map[string]string{"other": ""}}}
	paused := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "workers", Annotations: map[string]string{clusterv1.PausedAnnotation: ""}}}
	cluster := func(paused *bool) *clusterv1.Cluster {
		return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "dev"}, Spec: clusterv1.ClusterSpec{Paused: paused}}
	}
	for name, test := range map[string]struct {
		cluster *clusterv1.Cluster
		objects []metav1.Object
		want    string
	}{
		"nothing":                       {},
		"a cluster that says nothing":   {cluster: cluster(nil), objects: []metav1.Object{free}},
		"a cluster that is not paused":  {cluster: cluster(ptr.To(false))},
		"a paused cluster":              {cluster: cluster(ptr.To(true)), objects: []metav1.Object{free}, want: "Cluster dev has spec.paused"},
		"an annotation without a value": {cluster: cluster(nil), objects: []metav1.Object{free, paused}, want: "workers has the annotation cluster.x-k8s.io/paused"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := PausedBy(test.cluster, test.objects...); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	if PauseChanged(paused, paused) || PauseChanged(free, free) || !PauseChanged(free, paused) || !PauseChanged(paused, free) {
		t.Error("PauseChanged does not follow the annotation")
	}
}
