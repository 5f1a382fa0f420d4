// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1alpha1

const (
	// LabelApp is the label whose value is the name of the cluster, which selectors use.
	LabelApp = "app"
	// LabelName is the recommended label of the application.
	LabelName = "app.kubernetes.io/name"
	// LabelInstance is the recommended label of the cluster.
	LabelInstance = "app.kubernetes.io/instance"
	// LabelManagedBy is the recommended label of the operator.
	LabelManagedBy = "app.kubernetes.io/managed-by"

	// ApplicationName is the value of LabelName.
	ApplicationName = "marekvs"
	// ManagerName is the value of LabelManagedBy, and the field manager of the operator.
	ManagerName = "marekvs-operator"

	// AnnotationTemplateHash of a StatefulSet is the hash of its template. A change of the
	// template begins a rollout.
	AnnotationTemplateHash = "marekvs.io/template-hash"
	// AnnotationLastScaleUp and AnnotationLastScaleDown of a StatefulSet are the times when
	// its size was last changed. They are written together with the size.
	AnnotationLastScaleUp = "marekvs.io/last-scale-up"
	// AnnotationLastScaleDown is the time of the last removal.
	AnnotationLastScaleDown = "marekvs.io/last-scale-down"
	// AnnotationDiskAtGrowth of a StatefulSet is the used share of the fullest volume, in percent,
	// when a node was last added for it.
	AnnotationDiskAtGrowth = "marekvs.io/disk-percent-at-growth"
	// AnnotationGossipCluster of a StatefulSet is the gossip cluster of its nodes, empty for the
	// default of the store. It never changes: nodes with another value would not find each other.
	AnnotationGossipCluster = "marekvs.io/gossip-cluster"
	// AnnotationReplace of a volume claim asks for the replacement of its node, if the value is "true".
	AnnotationReplace = "marekvs.io/replace"
	// AnnotationReplacing of a StatefulSet is the UID of the volume claim that is being replaced. While it
	// is there, no node is removed or updated.
	AnnotationReplacing = "marekvs.io/replacing"
	// AnnotationRequestedSize of a volume claim is the size that the operator has last requested for it.
	AnnotationRequestedSize = "marekvs.io/requested-size"
	// AnnotationRestartedAt of a Pod is spec.restartedAt of the cluster that it was created for.
	AnnotationRestartedAt = "marekvs.io/restarted-at"
	// AnnotationStabilization of a StatefulSet is the stabilization in seconds of the
	// autoscaler that determined its size.
	AnnotationStabilization = "marekvs.io/stabilization-seconds"
)
