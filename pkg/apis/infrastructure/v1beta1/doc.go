// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package v1beta1 defines the kinds that connect Nstance with Cluster API: the
// infrastructure objects of its contract (docs/capi.md), and NstanceShardGroup, the
// part of a pool on one shard. It contains types and names only.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1beta1
