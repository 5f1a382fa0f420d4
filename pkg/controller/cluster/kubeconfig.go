// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

const (
	// tokenLife is how long a token is asked to live.
	tokenLife = time.Hour
	// refreshBefore is the rest of its life at which a token is replaced: more
	// than the last fifth, so that 80 % of it is never passed, and more than the
	// ten minutes that a new leader accepts.
	refreshBefore = tokenLife / 4
	// secretType and secretKey are what CAPI's controllers look for.
	secretType = "cluster.x-k8s.io/secret"
	secretKey  = "value"
)

// ensureKubeconfig keeps the kubeconfig Secret with a token that is valid for a
// while, and returns when it wants to be replaced.
func (c *Controller) ensureKubeconfig(ctx context.Context) (time.Duration, error) {
	source := c.config.Kubeconfig
	if source == nil {
		return 0, nil
	}
	name := c.config.Name + "-kubeconfig"
	secret, err := c.secrets.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("read Secret %s/%s: %w", c.config.Namespace, name, err)
	}
	if err == nil && source.made(secret.Data[secretKey]) {
		if left := untilRefresh(secret.Annotations, c.clock.Now()); left > 0 {
			return left, nil
		}
	}

	answer, err := c.accounts.CreateToken(ctx, source.ServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLife.Seconds()))},
	}, metav1.CreateOptions{FieldManager: controller.FieldManager})
	if err != nil {
		return 0, fmt.Errorf("request a token of ServiceAccount %s/%s: %w", c.config.Namespace, source.ServiceAccount, err)
	}
	kubeconfig, err := kubeconfig(c.config.Name, source, answer.Status.Token)
	if err != nil {
		return 0, err
	}
	expiry := answer.Status.ExpirationTimestamp.Time
	_, err = c.secrets.Apply(ctx, corev1ac.Secret(name, c.config.Namespace).
		WithType(secretType).
		WithLabels(map[string]string{clusterv1.ClusterNameLabel: c.config.Name}).
		WithAnnotations(map[string]string{v1beta1.AnnotationTokenExpiry: expiry.UTC().Format(time.RFC3339)}).
		WithData(map[string][]byte{secretKey: kubeconfig}), controller.Apply)
	if err != nil {
		return 0, fmt.Errorf("apply Secret %s/%s: %w", c.config.Namespace, name, err)
	}
	klog.FromContext(ctx).Info("Kubeconfig for Cluster API written", "secret", klog.KRef(c.config.Namespace, name), "expiry", expiry)
	return max(expiry.Sub(c.clock.Now())-refreshBefore, time.Minute), nil
}

// untilRefresh is how long the Secret's token is good for. It is zero when that
// is unknown.
func untilRefresh(annotations map[string]string, now time.Time) time.Duration {
	expiry, err := time.Parse(time.RFC3339, annotations[v1beta1.AnnotationTokenExpiry])
	if err != nil {
		return 0
	}
	return max(expiry.Sub(now)-refreshBefore, 0)
}

// made tells whether a kubeconfig was made from this source. One that was made
// with other settings of the operator is of no use any more.
func (s *KubeconfigSource) made(kubeconfig []byte) bool {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return false
	}
	current, ok := config.Contexts[config.CurrentContext]
	if !ok || current.AuthInfo != s.ServiceAccount {
		return false
	}
	cluster, ok := config.Clusters[current.Cluster]
	return ok && cluster.Server == s.Server && bytes.Equal(cluster.CertificateAuthorityData, s.CAData) &&
		config.AuthInfos[current.AuthInfo] != nil && config.AuthInfos[current.AuthInfo].Token != ""
}

func kubeconfig(cluster string, source *KubeconfigSource, token string) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster] = &clientcmdapi.Cluster{Server: source.Server, CertificateAuthorityData: source.CAData}
	config.AuthInfos[source.ServiceAccount] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: source.ServiceAccount}
	config.CurrentContext = cluster
	encoded, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encode the kubeconfig of cluster %s: %w", cluster, err)
	}
	return encoded, nil
}
