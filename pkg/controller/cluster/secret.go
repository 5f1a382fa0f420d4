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
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

const (
	// tokenLife is how long a token is asked to live. The API server may grant
	// less or more.
	tokenLife = time.Hour
	// refreshBefore is the rest of its life at which a token of unknown life is
	// replaced. For the life that is asked for it is a quarter, and it is more
	// than the ten minutes that a new leader must leave.
	refreshBefore = tokenLife / 4
	// leastWait keeps a token that is short from the start, or seems to be
	// because clocks differ, from being replaced all the time.
	leastWait = time.Minute
	// secretKey is where CAPI's controllers look for the kubeconfig, by the
	// contract.
	secretKey = "value"
)

// SecretName is the name of the Secret with the kubeconfig of a cluster (CAPI
// contract).
func SecretName(cluster string) string { return cluster + "-kubeconfig" }

// token is what this leader knows of the token in the Secret.
type token struct {
	// kubeconfig is the whole content that it is part of.
	kubeconfig []byte
	// expiry is when it stops to work, in RFC 3339.
	expiry string
	// refresh is when it is to be replaced.
	refresh time.Time
}

// ensureKubeconfig keeps the kubeconfig Secret with a token that is valid for a
// while, and returns when it wants to be replaced. Whatever is wrong with the
// Secret, it gets a new token: somebody may have wanted that.
func (c *Controller) ensureKubeconfig(ctx context.Context, secret *corev1.Secret) (time.Duration, error) {
	if c.token == nil {
		c.token = foundToken(secret, c.config.Kubeconfig)
	}
	if c.token.in(secret, c.config.Name) {
		if left := c.token.refresh.Sub(c.clock.Now()); left > 0 {
			return left, nil
		}
	}
	if err := c.writeSecret(ctx, secret); err != nil {
		return 0, err
	}
	return c.token.refresh.Sub(c.clock.Now()), nil
}

// foundToken is the token that an earlier leader has left, or nil when there is
// none of use.
func foundToken(secret *corev1.Secret, source *KubeconfigSource) *token {
	if secret == nil || !source.made(secret.Data[secretKey]) {
		return nil
	}
	annotated := secret.Annotations[v1beta1.AnnotationTokenExpiry]
	expiry, err := time.Parse(time.RFC3339, annotated)
	if err != nil {
		return nil
	}
	return &token{kubeconfig: secret.Data[secretKey], expiry: annotated, refresh: expiry.Add(-refreshBefore)}
}

// in tells whether the Secret holds the token, and is what CAPI's controllers
// look for. They do not look at its type, which cannot be changed.
func (t *token) in(secret *corev1.Secret, cluster string) bool {
	return t != nil && secret != nil &&
		secret.Labels[clusterv1.ClusterNameLabel] == cluster &&
		secret.Annotations[v1beta1.AnnotationTokenExpiry] == t.expiry &&
		bytes.Equal(secret.Data[secretKey], t.kubeconfig)
}

// writeSecret asks for a token and puts it into the Secret, which is nil when
// there is none yet.
func (c *Controller) writeSecret(ctx context.Context, secret *corev1.Secret) error {
	source, name := c.config.Kubeconfig, SecretName(c.config.Name)
	answer, err := c.accounts.CreateToken(ctx, source.ServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLife.Seconds()))},
	}, metav1.CreateOptions{FieldManager: controller.FieldManager})
	if err != nil {
		return fmt.Errorf("request a token of ServiceAccount %s/%s: %w", c.config.Namespace, source.ServiceAccount, err)
	}
	now := c.clock.Now()
	kubeconfig, err := source.kubeconfig(c.config.Name, answer.Status.Token)
	if err != nil {
		return err
	}
	// A Secret keeps the type that it was created with.
	kind := clusterv1.ClusterSecretType
	if secret != nil {
		kind = secret.Type
	}
	expiry := answer.Status.ExpirationTimestamp.UTC()
	annotation := expiry.Format(time.RFC3339)
	written, err := c.secrets.Apply(ctx, corev1ac.Secret(name, c.config.Namespace).
		WithType(kind).
		WithLabels(map[string]string{clusterv1.ClusterNameLabel: c.config.Name}).
		WithAnnotations(map[string]string{v1beta1.AnnotationTokenExpiry: annotation}).
		WithData(map[string][]byte{secretKey: kubeconfig}), controller.Apply)
	if err != nil {
		return fmt.Errorf("apply Secret %s/%s: %w", c.config.Namespace, name, err)
	}
	c.secretWrites.Wrote(written)
	// A quarter of what was granted is left when it is replaced, so that 80 % of
	// it is never passed.
	refresh := now.Add(max(expiry.Sub(now)*3/4, leastWait))
	c.token = &token{kubeconfig: kubeconfig, expiry: annotation, refresh: refresh}
	klog.FromContext(ctx).Info("Kubeconfig for Cluster API written", "secret", klog.KObj(written), "expiry", expiry, "refresh", refresh)
	return nil
}

// hindrance tells why CAPI's controllers cannot use a Secret that is the
// administrator's to keep. It is empty when they can.
func hindrance(secret *corev1.Secret, namespace, cluster string) string {
	var missing string
	switch {
	case secret == nil:
		missing = "is missing"
	case secret.Labels[clusterv1.ClusterNameLabel] != cluster:
		missing = "lacks the label"
	case len(secret.Data[secretKey]) == 0:
		missing = "lacks the key"
	default:
		return ""
	}
	return fmt.Sprintf("Secret %s/%s %s: Cluster API needs a kubeconfig of the cluster in its key %q and the label %s=%s on it",
		namespace, SecretName(cluster), missing, secretKey, clusterv1.ClusterNameLabel, cluster)
}
