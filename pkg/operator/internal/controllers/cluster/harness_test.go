// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller/apitest"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

const (
	namespace = controllertest.Namespace
	name      = controllertest.ClusterName

	requestToken  = "create serviceaccounts/token nstance-capi-workload"
	writeSecret   = "apply secrets " + name + "-kubeconfig"
	writeCluster  = "apply nstanceclusters " + name
	writeStatus   = "apply nstanceclusters/status " + name
	createCluster = "create clusters " + name
)

// harness is a controller and the API server. Granted tokens are "token-1", "token-2"
// and so on.
type harness struct {
	*controllertest.Harness
	controller *Controller
	identity   *certificate

	// tokenLifetime is the lifetime of granted tokens.
	tokenLifetime time.Duration
	// tokenError is the error of requests for a token; it may be nil.
	tokenError error
	tokens     int
	// refused are the tokens that the API server does not accept, reviewError the error of reviews, which may
	// be nil, and reviews counts them.
	refused     []string
	reviewError error
	reviews     int
	// writes are the writes to all API groups in order.
	writes []string
	// created counts the objects of Cluster API in writes.
	created int
	// secretVersion is the resource version of the last write to a Secret.
	secretVersion int
}

// certificate implements ConditionSource for Options.Identity.
type certificate struct {
	state   metav1.Condition
	handler func()
}

func (c *certificate) State() metav1.Condition   { return c.state }
func (c *certificate) AddHandler(handler func()) { c.handler = handler }

func source() *KubeconfigSource {
	return &KubeconfigSource{Server: "https://kubernetes.default.svc:443", CAData: []byte("CA"), ServiceAccount: "nstance-capi-workload"}
}

func newHarness(t *testing.T, kubeconfig *KubeconfigSource) *harness {
	t.Helper()
	h := &harness{Harness: controllertest.NewHarness(t, shardtest.New()), tokenLifetime: time.Hour, secretVersion: 1, identity: &certificate{}}
	h.SyncKey = func() (time.Duration, error) { return h.controller.sync(h.Ctx, controllertest.Key(name)) }
	h.KubeClient.PrependReactor("create", "serviceaccounts", h.createToken)
	h.KubeClient.PrependReactor("create", "tokenreviews", h.reviewToken)
	h.KubeClient.PrependReactor("patch", "secrets", h.applySecret)
	for _, fake := range []*clienttesting.Fake{&h.API.Fake, &h.KubeClient.Fake} {
		fake.PrependReactor("*", "*", h.recordWrite)
	}
	h.restart(kubeconfig)
	return h
}

// restart creates a new controller with a source of the kubeconfig.
func (h *harness) restart(kubeconfig *KubeconfigSource) {
	h.T.Helper()
	c, err := New(h.Dependencies, Options{Endpoint: v1beta1.APIEndpoint{Host: "kubernetes.default.svc", Port: 443}, Kubeconfig: kubeconfig, Identity: h.identity})
	require.NoError(h.T, err)
	h.controller = c
}

func (h *harness) createToken(action clienttesting.Action) (bool, runtime.Object, error) {
	if action.GetSubresource() != "token" {
		return false, nil, nil
	}
	if h.tokenError != nil {
		return true, nil, h.tokenError
	}
	h.tokens++
	return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
		Token:               fmt.Sprintf("token-%d", h.tokens),
		ExpirationTimestamp: metav1.NewTime(h.FakeClock.Now().Add(h.tokenLifetime)),
	}}, nil
}

func (h *harness) reviewToken(action clienttesting.Action) (bool, runtime.Object, error) {
	if h.reviewError != nil {
		return true, nil, h.reviewError
	}
	h.reviews++
	review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
	review.Status.Authenticated = !slices.Contains(h.refused, review.Spec.Token)
	return true, review, nil
}

// applySecret sets the resource version of a Secret, by which the controller detects a stale
// cache.
func (h *harness) applySecret(action clienttesting.Action) (bool, runtime.Object, error) {
	_, object, err := clienttesting.ObjectReaction(h.KubeClient.Tracker())(action)
	if err != nil {
		return true, nil, err
	}
	h.secretVersion++
	secret := object.(*corev1.Secret)
	secret.ResourceVersion = strconv.Itoa(h.secretVersion)
	return true, secret, h.KubeClient.Tracker().Update(action.GetResource(), secret, action.GetNamespace())
}

func (h *harness) recordWrite(action clienttesting.Action) (bool, runtime.Object, error) {
	// A review changes nothing.
	verb := action.GetVerb()
	if verb != "get" && verb != "list" && verb != "watch" && action.GetResource().Resource != "tokenreviews" {
		h.writes = append(h.writes, apitest.Describe(action))
	}
	return false, nil, nil
}

// sync updates the caches of our kinds and of Secrets, syncs once and returns the
// writes in order.
func (h *harness) sync() (writes []string, requeue time.Duration, err error) {
	h.T.Helper()
	h.Show()
	h.showSecrets()
	return h.syncStale()
}

// syncStale syncs without an update of the caches.
func (h *harness) syncStale() (writes []string, requeue time.Duration, err error) {
	h.T.Helper()
	_, requeue, err = h.SyncStale()
	writes, h.writes = h.writes, nil
	for _, object := range h.CAPI.Created[h.created:] {
		writes = append(writes, "create clusters "+object.GetName())
	}
	h.created = len(h.CAPI.Created)
	return writes, requeue, err
}

// expect syncs once, which must succeed, and compares the writes.
func (h *harness) expect(want ...string) time.Duration {
	h.T.Helper()
	writes, requeue, err := h.sync()
	require.NoError(h.T, err)
	assert.Equal(h.T, want, writes, "wrote")
	return requeue
}

func (h *harness) showSecrets() {
	h.T.Helper()
	list, err := h.KubeClient.CoreV1().Secrets(namespace).List(context.Background(), metav1.ListOptions{})
	require.NoError(h.T, err)
	objects := make([]any, len(list.Items))
	for i := range list.Items {
		objects[i] = &list.Items[i]
	}
	require.NoError(h.T, h.Informers.Kubeconfig.GetIndexer().Replace(objects, strconv.Itoa(h.secretVersion)))
}

// showCluster puts a changed Cluster into the cache.
func (h *harness) showCluster(changes ...func(*clusterv1.Cluster)) {
	h.T.Helper()
	cluster := newCluster(namespace, name)
	for _, change := range changes {
		change(cluster)
	}
	h.Put(h.Informers.Clusters, cluster)
}

// forgetCluster removes the Cluster from the cache and from the API server.
func (h *harness) forgetCluster() {
	h.T.Helper()
	h.Remove(h.Informers.Clusters, newCluster(namespace, name))
	h.CAPI.Taken = nil
}

func deleting(cluster *clusterv1.Cluster) { controllertest.Deleting(cluster) }

func paused(cluster *clusterv1.Cluster) { cluster.Spec.Paused = ptr.To(true) }

// changeSecret changes the Secret as another client does.
func (h *harness) changeSecret(change func(*corev1.Secret)) {
	h.T.Helper()
	secret := h.secret()
	change(secret)
	h.secretVersion++
	secret.ResourceVersion = strconv.Itoa(h.secretVersion)
	require.NoError(h.T, h.KubeClient.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), secret, namespace))
}

// changeNstanceCluster changes the NstanceCluster as another client does.
func (h *harness) changeNstanceCluster(change func(*v1beta1.NstanceCluster)) {
	h.T.Helper()
	controllertest.Change(h.API, name, change)
}

func (h *harness) secret() *corev1.Secret {
	h.T.Helper()
	secret, err := h.KubeClient.CoreV1().Secrets(namespace).Get(context.Background(), name+"-kubeconfig", metav1.GetOptions{})
	require.NoError(h.T, err)
	return secret
}

// bearerToken returns the token in the Secret.
func (h *harness) bearerToken() string {
	h.T.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(h.secret().Data["value"])
	require.NoError(h.T, err)
	return config.BearerToken
}

// condition returns a condition of the NstanceCluster.
func (h *harness) condition(conditionType string) metav1.Condition {
	h.T.Helper()
	condition := meta.FindStatusCondition(h.nstanceCluster().Status.Conditions, conditionType)
	if condition == nil {
		h.T.Fatalf("there is no condition %s", conditionType)
	}
	return *condition
}

func (h *harness) nstanceCluster() *v1beta1.NstanceCluster {
	return controllertest.Get[*v1beta1.NstanceCluster](h.API, name)
}
