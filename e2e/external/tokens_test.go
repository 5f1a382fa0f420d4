// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package external

import (
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/runbook"
)

// The tokens of the operator and of Cluster API for the workload cluster expire, and the procedure
// replaces them.
func testTokensAreRenewed(t *testing.T) {
	// The operator of this test is a process that does not read the Secret.
	const operatorSecret, lifetime = "nstance-workload", 2 * time.Hour
	secrets := env.Kube.CoreV1().Secrets(installation.Namespace)
	_, err := secrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: operatorSecret},
		Data:       map[string][]byte{"kubeconfig": []byte("of the operator"), "token": []byte("expired")},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	p := runbook.StartProcedure(t, "Renew the tokens of a workload cluster", env.Tools(t), map[string]string{
		"NAMESPACE":  installation.Namespace,
		"WORKLOAD":   env.Workload.KubeconfigPath(),
		"MANAGEMENT": env.KubeconfigPath(),
		"CLUSTER":    installation.ClusterName,
		"LIFETIME":   lifetime.String(),
	})
	p.Run("Replace the token of the operator")
	p.Run("Replace the token of Cluster API in its kubeconfig")
	p.Run("Check that the operator reaches the workload cluster")

	stored, err := secrets.Get(t.Context(), operatorSecret, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "of the operator", string(stored.Data["kubeconfig"]))
	config := rest.AnonymousClientConfig(env.Workload.AdminConfig())
	config.BearerToken = string(stored.Data["token"])
	expectToken(t, config, "nstance-operator", lifetime)

	stored, err = secrets.Get(t.Context(), installation.ClusterName+"-kubeconfig", metav1.GetOptions{})
	require.NoError(t, err)
	config, err = clientcmd.RESTConfigFromKubeConfig(stored.Data["value"])
	require.NoError(t, err)
	expectToken(t, config, installation.CAPIAccount, lifetime)

	unlimited, err := env.NodeKube.CoreV1().Secrets(installation.Namespace).List(t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String(),
	})
	require.NoError(t, err)
	assert.Empty(t, unlimited.Items, "tokens that do not expire")
}

// expectToken fails the test unless the token of a configuration belongs to a ServiceAccount, has
// this lifetime, and lists Nodes of the workload cluster.
func expectToken(t *testing.T, config *rest.Config, account string, lifetime time.Duration) {
	t.Helper()
	claims := &jwt.RegisteredClaims{}
	_, _, err := jwt.NewParser().ParseUnverified(config.BearerToken, claims)
	require.NoError(t, err)
	assert.Equal(t, "system:serviceaccount:"+installation.Namespace+":"+account, claims.Subject)
	assert.Equal(t, lifetime, claims.ExpiresAt.Sub(claims.IssuedAt.Time))
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	_, err = client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{Limit: 1})
	require.NoError(t, err, account)
}
