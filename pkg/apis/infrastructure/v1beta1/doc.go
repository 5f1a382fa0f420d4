// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package v1beta1 holds the kinds that join Nstance to Cluster API: the
// infrastructure objects that the CAPI contracts name, and NstanceShardGroup,
// which shows what one shard does for a pool. It holds types and names only.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1beta1
