// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkCrowd measures the memory of an operator that is started in a cluster
// with 150,000 Pods that do not ask for a machine. It leaves them behind, so it
// must be the last benchmark.
func BenchmarkCrowd(b *testing.B) {
	const pods = 150_000
	// limit is what the operator may have at most, in MiB.
	const limit = 300
	for b.Loop() {
		var creating errgroup.Group
		creating.SetLimit(32)
		for i := range pods {
			creating.Go(func() error {
				_, err := env.kube.CoreV1().Pods("default").Create(b.Context(), bystander(i), metav1.CreateOptions{})
				return err
			})
		}
		if err := creating.Wait(); err != nil {
			b.Fatal(err)
		}
		operator := env.cp.Component(env.operator.Component)
		if err := operator.Kill(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := operator.Start(b.Context()); err != nil {
			b.Fatal(err)
		}
		resident, peak, err := operator.Memory()
		if err != nil {
			b.Fatal(err)
		}
		if peak > limit {
			b.Errorf("the operator had %.0f MiB, want at most %d", peak, limit)
		}
		b.ReportMetric(resident, "MiB-with-150000-Pods")
		b.ReportMetric(peak, "MiB-peak")
	}
}

// bystander is a Pod that no scheduler cares for.
func bystander(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("bystander-%d", i),
			Labels: map[string]string{"app.kubernetes.io/name": "bystander", "app.kubernetes.io/instance": fmt.Sprint(i)},
		},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody",
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/bystander:1.0.0"}},
		},
	}
}
