// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

const (
	// tokenLifetime is the requested lifetime of a token. The API server may grant a shorter
	// or a longer lifetime
	// (https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-request-v1/).
	tokenLifetime = time.Hour
	// refreshBefore is the remaining lifetime at which a token whose granted lifetime is
	// unknown is replaced: a quarter of the requested lifetime, and more than the ten minutes
	// that a new leader needs at most.
	refreshBefore = tokenLifetime / 4
	// minRefresh is the minimum time between two tokens. It applies to a token that is
	// short-lived, or appears to be because clocks differ.
	minRefresh = time.Minute
	// reviewPeriod is how often the API server is asked whether it still accepts the token. It does not
	// if the ServiceAccount was deleted and created again, as by another way of installation: tokens are
	// bound to its UID (https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/).
	reviewPeriod = 5 * time.Minute
	// kubeconfigKey is the key of the Secret that Cluster API reads.
	kubeconfigKey = "value"
)

// SecretName returns the name of the Secret with the kubeconfig of a cluster
// (docs/capi.md#cluster).
func SecretName(cluster string) string { return cluster + "-kubeconfig" }

// token describes the token in the Secret.
type token struct {
	// kubeconfig is the kubeconfig that contains the token.
	kubeconfig []byte
	// expiry is when the token expires, in RFC 3339.
	expiry string
	// refresh is when the token is replaced.
	refresh time.Time
	// reviewed is when the token was granted or reviewed; zero for the token of a previous leader.
	reviewed time.Time
}

// ensureKubeconfig ensures that the Secret has a token that the API server accepts, and returns the
// delay until it has to be reviewed or replaced. A Secret that was changed in any way gets a new token.
func (c *Controller) ensureKubeconfig(ctx context.Context, secret *corev1.Secret) (time.Duration, error) {
	if c.token == nil {
		c.token = existingToken(secret, c.options.Kubeconfig)
	}
	if c.token.isIn(secret, c.name) && c.token.refresh.After(c.clock.Now()) && c.accepted(ctx) {
		return c.token.due(c.clock.Now()), nil
	}
	if err := c.writeSecret(ctx, secret); err != nil {
		return 0, err
	}
	return c.token.due(c.clock.Now()), nil
}

// accepted reports whether the API server accepts the token. It is asked once in reviewPeriod; until it
// has answered, the token counts as accepted.
func (c *Controller) accepted(ctx context.Context) bool {
	now := c.clock.Now()
	if now.Before(c.token.reviewed.Add(reviewPeriod)) {
		return true
	}
	c.token.reviewed = now
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "secret", klog.KRef(c.namespace, SecretName(c.name)))
	config, err := clientcmd.RESTConfigFromKubeConfig(c.token.kubeconfig)
	if err != nil {
		logger.Error(err, "The kubeconfig for Cluster API has no token")
		return false
	}
	review, err := c.tokenReviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: config.BearerToken},
	}, metav1.CreateOptions{FieldManager: controllers.FieldManager})
	if err != nil {
		logger.Error(err, "Cannot review the token of the kubeconfig for Cluster API")
		return true
	}
	if !review.Status.Authenticated {
		logger.Info("The API server does not accept the token of the kubeconfig for Cluster API", "reason", review.Status.Error)
	}
	return review.Status.Authenticated
}

// due returns the delay until the token has to be reviewed or replaced.
func (t *token) due(now time.Time) time.Duration {
	return min(t.refresh.Sub(now), t.reviewed.Add(reviewPeriod).Sub(now))
}

// existingToken returns the token that a previous leader wrote, nil if it is not usable.
func existingToken(secret *corev1.Secret, source *KubeconfigSource) *token {
	if secret == nil || !source.generated(secret.Data[kubeconfigKey]) {
		return nil
	}
	annotation := secret.Annotations[v1beta1.AnnotationTokenExpiry]
	expiry, err := time.Parse(time.RFC3339, annotation)
	if err != nil {
		return nil
	}
	return &token{kubeconfig: secret.Data[kubeconfigKey], expiry: annotation, refresh: expiry.Add(-refreshBefore)}
}

// isIn reports whether the Secret contains the token and the labels that Cluster API needs.
// The type of the Secret is not compared: it is immutable, and Cluster API ignores it.
func (t *token) isIn(secret *corev1.Secret, cluster string) bool {
	return t != nil && secret != nil &&
		secret.Labels[clusterv1.ClusterNameLabel] == cluster &&
		secret.Annotations[v1beta1.AnnotationTokenExpiry] == t.expiry &&
		bytes.Equal(secret.Data[kubeconfigKey], t.kubeconfig)
}

// writeSecret requests a token and writes it to the Secret. The Secret is nil if it
// does not exist.
func (c *Controller) writeSecret(ctx context.Context, secret *corev1.Secret) error {
	source, name := c.options.Kubeconfig, SecretName(c.name)
	granted, err := c.serviceAccounts.CreateToken(ctx, source.ServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLifetime.Seconds()))},
	}, metav1.CreateOptions{FieldManager: controllers.FieldManager})
	if err != nil {
		return fmt.Errorf("request a token of ServiceAccount %s/%s: %w", c.namespace, source.ServiceAccount, err)
	}
	now := c.clock.Now()
	kubeconfig, err := source.generate(c.name, granted.Status.Token)
	if err != nil {
		return err
	}
	// The type of a Secret is immutable
	// (https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/validation/validation.go).
	secretType := clusterv1.ClusterSecretType
	if secret != nil {
		secretType = secret.Type
	}
	expiry := granted.Status.ExpirationTimestamp.UTC()
	annotation := expiry.Format(time.RFC3339)
	written, err := c.secrets.Apply(ctx, corev1ac.Secret(name, c.namespace).
		WithType(secretType).
		WithLabels(map[string]string{clusterv1.ClusterNameLabel: c.name}).
		WithAnnotations(map[string]string{v1beta1.AnnotationTokenExpiry: annotation}).
		WithData(map[string][]byte{kubeconfigKey: kubeconfig}), controllers.Apply)
	if err != nil {
		return fmt.Errorf("apply Secret %s/%s: %w", c.namespace, name, err)
	}
	c.secretWrites.Record(written)
	// The token is replaced after three quarters of its granted lifetime.
	refresh := now.Add(max(expiry.Sub(now)*3/4, minRefresh))
	c.token = &token{kubeconfig: kubeconfig, expiry: annotation, refresh: refresh, reviewed: now}
	klog.FromContext(ctx).Info("Kubeconfig for Cluster API written", "secret", klog.KObj(written), "expiry", expiry, "refresh", refresh)
	return nil
}

// secretProblem returns why Cluster API cannot use the Secret of an administrator, or
// "" if it can.
func secretProblem(secret *corev1.Secret, namespace, cluster string) string {
	var problem string
	switch {
	case secret == nil:
		problem = "is missing"
	case secret.Labels[clusterv1.ClusterNameLabel] != cluster:
		problem = "lacks the label"
	case len(secret.Data[kubeconfigKey]) == 0:
		problem = "lacks the key"
	default:
		return ""
	}
	return fmt.Sprintf("Secret %s/%s %s: Cluster API needs a kubeconfig of the cluster in its key %q and the label %s=%s on it",
		namespace, SecretName(cluster), problem, kubeconfigKey, clusterv1.ClusterNameLabel, cluster)
}

// KubeconfigSource has the content of the generated kubeconfig, except the token.
type KubeconfigSource struct {
	// Server is the URL of the API server for the controllers of Cluster API.
	Server string
	// CAData is the PEM bundle that verifies the certificate of the API server.
	CAData []byte
	// ServiceAccount is the ServiceAccount of the token, in the namespace of the cluster.
	ServiceAccount string
}

// generate returns a kubeconfig file for cluster that authenticates with token.
func (s *KubeconfigSource) generate(cluster, token string) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster] = &clientcmdapi.Cluster{Server: s.Server, CertificateAuthorityData: s.CAData}
	config.AuthInfos[s.ServiceAccount] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: s.ServiceAccount}
	config.CurrentContext = cluster
	encoded, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encode the kubeconfig of cluster %s: %w", cluster, err)
	}
	return encoded, nil
}

// generated reports whether a kubeconfig was generated from this source. After a
// change of the operator's settings it has to be generated again.
func (s *KubeconfigSource) generated(kubeconfig []byte) bool {
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
