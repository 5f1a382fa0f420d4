// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// readRetryDelay is the delay before the UID is read again.
const readRetryDelay = 2 * time.Second

// kubernetesCluster returns the UID of the Kubernetes cluster that the operator runs in:
// that of the namespace kube-system, which exists as long as the cluster. It is read
// again until it succeeds. Without the right to read it kubernetesCluster fails at once:
// the shards could not distinguish this operator from that of another cluster.
func kubernetesCluster(ctx context.Context, client kubernetes.Interface) (uid string, err error) {
	err = wait.PollUntilContextCancel(ctx, readRetryDelay, true, func(ctx context.Context) (bool, error) {
		namespace, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		switch {
		case err == nil:
			uid = string(namespace.UID)
			return true, nil
		case apierrors.IsForbidden(err):
			return false, err
		}
		klog.FromContext(ctx).Error(err, "The UID of the namespace kube-system could not be read, will retry")
		return false, nil
	})
	if err != nil {
		return "", fmt.Errorf("read the UID of the namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return uid, nil
}
