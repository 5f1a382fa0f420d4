// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package v1alpha1 defines the kind of the marekvs operator: MarekvsCluster, one cluster
// of the replicated key-value store marekvs. It contains types and names only.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +groupName=marekvs.io
package v1alpha1
