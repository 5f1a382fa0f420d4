// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Changes of the Secret are reverted at once.
func TestKubeconfigSecretIsRepaired(t *testing.T) {
	eventuallyConnected(t)
	secrets := env.Kube.CoreV1().Secrets(installation.Namespace)
	update := func(change func(*corev1.Secret)) func(*corev1.Secret) error {
		return func(secret *corev1.Secret) error {
			change(secret)
			_, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
			return err
		}
	}
	for name, damage := range map[string]func(*corev1.Secret) error{
		"deleted": func(secret *corev1.Secret) error {
			return secrets.Delete(t.Context(), secret.Name, metav1.DeleteOptions{})
		},
		"without the label":      update(func(secret *corev1.Secret) { delete(secret.Labels, clusterv1.ClusterNameLabel) }),
		"without the annotation": update(func(secret *corev1.Secret) { secret.Annotations = nil }),
		"without the kubeconfig": update(func(secret *corev1.Secret) { secret.Data = nil }),
	} {
		t.Run(name, func(t *testing.T) {
			secret, err := kubeconfigSecret(t.Context())
			require.NoError(t, err)
			before := tokenIn(t, secret)
			require.NoError(t, damage(secret))
			testcluster.Eventually(t, 15*time.Second, "the Secret is valid, with a new token", func(ctx context.Context) error {
				secret, err := kubeconfigSecret(ctx)
				if err != nil {
					return err
				}
				if err := validKubeconfig(secret); err != nil {
					return err
				}
				if tokenIn(t, secret) == before {
					return errors.New("the token is the same")
				}
				return nil
			})
		})
	}
}

// Without the ServiceAccount there is no token, which the NstanceCluster reports.
func TestMissingServiceAccountIsReported(t *testing.T) {
	eventuallyConnected(t)
	accounts := env.Kube.CoreV1().ServiceAccounts(installation.Namespace)
	require.NoError(t, accounts.Delete(t.Context(), capiAccount, metav1.DeleteOptions{}))
	t.Cleanup(func() {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: capiAccount}}
		_, err := accounts.Create(context.WithoutCancel(t.Context()), account, metav1.CreateOptions{})
		if err != nil {
			t.Error(err)
		}
		testcluster.Eventually(t, time.Minute, "the kubeconfig is available", func(ctx context.Context) error {
			condition, err := kubeconfigCondition(ctx)
			if err == nil && condition.Status != metav1.ConditionTrue {
				err = fmt.Errorf("the condition is %+v", condition)
			}
			return err
		})
		eventuallyConnected(t)
	})
	require.NoError(t, env.Kube.CoreV1().Secrets(installation.Namespace).Delete(t.Context(), installation.ClusterName+"-kubeconfig", metav1.DeleteOptions{}))
	testcluster.Eventually(t, 30*time.Second, "the NstanceCluster names the account", func(ctx context.Context) error {
		condition, err := kubeconfigCondition(ctx)
		if err == nil && (condition.Status != metav1.ConditionFalse || !strings.Contains(condition.Message, installation.Namespace+"/"+capiAccount)) {
			err = fmt.Errorf("the condition is %+v", condition)
		}
		return err
	})
}

func kubeconfigCondition(ctx context.Context) (metav1.Condition, error) {
	object, err := env.NstanceClusters().Get(ctx, installation.ClusterName, metav1.GetOptions{})
	if err != nil {
		return metav1.Condition{}, err
	}
	condition := meta.FindStatusCondition(object.Status.Conditions, v1beta1.ConditionKubeconfigAvailable)
	if condition == nil {
		return metav1.Condition{}, fmt.Errorf("no condition %s", v1beta1.ConditionKubeconfigAvailable)
	}
	return *condition, nil
}

// validKubeconfig succeeds when the kubeconfig Secret is complete.
func validKubeconfig(secret *corev1.Secret) error {
	if got := secret.Labels[clusterv1.ClusterNameLabel]; got != installation.ClusterName {
		return fmt.Errorf("the label is %q", got)
	}
	expiry, err := time.Parse(time.RFC3339, secret.Annotations[v1beta1.AnnotationTokenExpiry])
	if err != nil {
		return err
	}
	if left := time.Until(expiry); left < 50*time.Minute || left > time.Hour {
		return fmt.Errorf("the token lives for %s", left)
	}
	if _, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"]); err != nil {
		return err
	}
	return nil
}

// probedSince returns since when Cluster API reaches the cluster without interruption.
func probedSince(t testing.TB) metav1.Time {
	t.Helper()
	cluster, err := env.Clusters().Get(t.Context(), installation.ClusterName, metav1.GetOptions{})
	require.NoError(t, err)
	return meta.FindStatusCondition(cluster.Status.Conditions, clusterv1.ClusterRemoteConnectionProbeCondition).LastTransitionTime
}

// tokenLeeway is for how long the API server accepts an expired token.
const tokenLeeway = time.Minute

// putToken writes a token of this lifetime to the kubeconfig Secret.
func putToken(t testing.TB, lifetime time.Duration) string {
	t.Helper()
	account, err := env.Kube.CoreV1().ServiceAccounts(installation.Namespace).Get(t.Context(), capiAccount, metav1.GetOptions{})
	require.NoError(t, err)
	token, err := env.MintToken(account, lifetime)
	require.NoError(t, err)
	secret, err := kubeconfigSecret(t.Context())
	require.NoError(t, err)
	config, err := clientcmd.Load(secret.Data["value"])
	require.NoError(t, err)
	for _, info := range config.AuthInfos {
		info.Token = token
	}
	secret.Data["value"], err = clientcmd.Write(*config)
	require.NoError(t, err)
	secret.Annotations[v1beta1.AnnotationTokenExpiry] = time.Now().Add(lifetime).UTC().Format(time.RFC3339)
	_, err = env.Kube.CoreV1().Secrets(installation.Namespace).Update(t.Context(), secret, metav1.UpdateOptions{})
	require.NoError(t, err)
	return token
}

func tokenIn(t testing.TB, secret *corev1.Secret) string {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	require.NoError(t, err)
	return config.BearerToken
}

// tokenID returns the id by which the audit log identifies a token.
func tokenID(t testing.TB, token string) string {
	t.Helper()
	claims := jwt.MapClaims{}
	_, _, err := jwt.NewParser().ParseUnverified(token, claims)
	require.NoError(t, err)
	id, _ := claims["jti"].(string)
	return id
}

// tokenRejected succeeds when the API server rejects the token.
func tokenRejected(ctx context.Context, token string) error {
	config := env.AdminConfig()
	config.CertData, config.KeyData = nil, nil
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	err = client.CoreV1().RESTClient().Get().AbsPath("/").Do(ctx).Error()
	if apierrors.IsUnauthorized(err) {
		return nil
	}
	return errors.Join(errors.New("it was accepted"), err)
}

const (
	// capiAccount is the account whose token the kubeconfig for Cluster API has.
	capiAccount = "nstance-capi-workload"
	// capiUser is Cluster API in the audit log when it uses that kubeconfig.
	capiUser = "system:serviceaccount:" + installation.Namespace + ":" + capiAccount
)

// capiRequests returns the requests with the kubeconfig since from.
func capiRequests(t testing.TB, from controlplane.Position, match ...testcluster.Match) []controlplane.Request {
	t.Helper()
	return env.Requests(t, from, append(match, func(r controlplane.Request) bool { return r.User == capiUser })...)
}

// restartCAPI restarts Cluster API, so that it reads the kubeconfig again, with
// variables added to its environment until the end of the test.
func restartCAPI(t testing.TB, variables ...string) {
	t.Helper()
	component := env.Component(controlplane.CAPI)
	before := component.Env
	t.Cleanup(func() { component.Env = before })
	component.Env = append(slices.Clip(before), variables...)
	require.NoError(t, component.Stop(t.Context()))
	require.NoError(t, component.Start(t.Context()))
}

// connected succeeds when Cluster API reports that the Cluster is available, and that
// its API server can be reached.
func connected(ctx context.Context) error {
	cluster, err := env.Clusters().Get(ctx, installation.ClusterName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if cluster.Status.Phase != string(clusterv1.ClusterPhaseProvisioned) {
		return fmt.Errorf("phase %s", cluster.Status.Phase)
	}
	for _, kind := range []string{clusterv1.ClusterAvailableCondition, clusterv1.ClusterRemoteConnectionProbeCondition} {
		if !meta.IsStatusConditionTrue(cluster.Status.Conditions, kind) {
			return fmt.Errorf("condition %s is %+v", kind, meta.FindStatusCondition(cluster.Status.Conditions, kind))
		}
	}
	return nil
}

func kubeconfigSecret(ctx context.Context) (*corev1.Secret, error) {
	return env.Kube.CoreV1().Secrets(installation.Namespace).Get(ctx, installation.ClusterName+"-kubeconfig", metav1.GetOptions{})
}

func eventuallyConnected(t testing.TB) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "Cluster API is connected", connected)
}

// Cluster API deletes a Cluster with all its objects. Then the operator creates it
// again: a cluster exists as long as the operator runs.
func TestClusterIsRecreatedAfterDeletion(t *testing.T) {
	const name = "deleted"
	eventuallyConnected(t)
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), name, 3))
	env.UntilRunning(t, name, 3)
	clusters, nstanceClusters := env.Clusters(), env.NstanceClusters()
	before, err := clusters.Get(t.Context(), installation.ClusterName, metav1.GetOptions{})
	require.NoError(t, err)
	nstanceCluster, err := nstanceClusters.Get(t.Context(), installation.ClusterName, metav1.GetOptions{})
	require.NoError(t, err)

	require.NoError(t, clusters.Delete(t.Context(), installation.ClusterName, metav1.DeleteOptions{}))
	testcluster.Eventually(t, 3*time.Minute, "there is another Cluster", func(ctx context.Context) error {
		now, err := clusters.Get(ctx, installation.ClusterName, metav1.GetOptions{})
		if err == nil && now.UID == before.UID {
			err = errors.New("it is the same")
		}
		return err
	})
	eventuallyConnected(t)
	if now, err := nstanceClusters.Get(t.Context(), installation.ClusterName, metav1.GetOptions{}); err != nil || now.UID == nstanceCluster.UID {
		t.Errorf("the NstanceCluster is the same, error %v", err)
	}
	if err := env.PoolDeleted(t.Context(), name); err != nil {
		t.Error(err)
	}
	testcluster.Eventually(t, time.Minute, "no Node is left", func(ctx context.Context) error {
		nodes, err := env.ReadyNodeIDs(ctx, name)
		if err == nil && len(nodes) > 0 {
			err = fmt.Errorf("%d are left", len(nodes))
		}
		return err
	})
}
