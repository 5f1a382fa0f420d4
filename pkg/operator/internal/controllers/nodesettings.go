// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// shardNode returns the settings of Nodes as the shards get them, for the kubelets of new instances. A
// kubelet registers once, so that it gets the taints of both kinds of propagation.
func shardNode(spec *v1beta1.NodeSettings) shard.NodeSettings {
	if spec == nil {
		return shard.NodeSettings{}
	}
	settings := shard.NodeSettings{Labels: spec.Labels, MaxPods: spec.MaxPods}
	for _, taint := range spec.Taints {
		settings.Taints = append(settings.Taints, shard.Taint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)})
	}
	return settings
}

// specNode returns the spec whose shardNode are settings, for a group that is imported. Shards do not
// know the propagation of a taint: it is OnInitialization, so that the operator sets no taint on a Node
// that exists, whose taint another component may have removed.
func specNode(settings shard.NodeSettings) *v1beta1.NodeSettings {
	if settings.IsZero() {
		return nil
	}
	spec := &v1beta1.NodeSettings{Labels: maps.Clone(settings.Labels), MaxPods: settings.MaxPods}
	for _, taint := range settings.Taints {
		spec.Taints = append(spec.Taints, v1beta1.NodeTaint{
			Key: taint.Key, Value: taint.Value, Effect: corev1.TaintEffect(taint.Effect), Propagation: v1beta1.TaintOnInitialization,
		})
	}
	return spec
}

// nodeInEffect reports whether a server reports settings as effective. It adds its own labels and taints.
func nodeInEffect(settings, effective shard.NodeSettings) bool {
	for key, value := range settings.Labels {
		if got, ok := effective.Labels[key]; !ok || got != value {
			return false
		}
	}
	for _, taint := range settings.Taints {
		if !slices.Contains(effective.Taints, taint) {
			return false
		}
	}
	return settings.MaxPods == 0 || settings.MaxPods == effective.MaxPods
}

// reportedNode returns the settings in effect for the status of a shard group, within the limits of its
// definition, nil if there are none.
func reportedNode(effective shard.NodeSettings) *v1beta1.ReportedNode {
	reported := &v1beta1.ReportedNode{Labels: maps.Clone(effective.Labels), MaxPods: max(effective.MaxPods, 0)}
	for _, taint := range effective.Taints[:min(len(effective.Taints), v1beta1.MaxReportedTaints)] {
		reported.Taints = append(reported.Taints, v1beta1.ReportedTaint{
			Key:    controller.Truncate(taint.Key, v1beta1.MaxReportedTaintKey),
			Value:  controller.Truncate(taint.Value, v1beta1.MaxReportedTaintValue),
			Effect: controller.Truncate(taint.Effect, v1beta1.MaxReportedTaintValue),
		})
	}
	if len(reported.Labels)+len(reported.Taints) == 0 && reported.MaxPods == 0 {
		return nil
	}
	return reported
}
