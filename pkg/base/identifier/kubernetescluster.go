// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identifier

// KubernetesClusterKey is the key of the gRPC metadata with the UID of the Kubernetes
// cluster that a client runs in (docs/protocol.md#tenants).
const KubernetesClusterKey = "nstance-kubernetes-cluster"

// OtherClusterReason is the reason in the google.rpc.ErrorInfo of a call that is
// rejected because the tenant belongs to another Kubernetes cluster.
const OtherClusterReason = "OTHER_KUBERNETES_CLUSTER"
