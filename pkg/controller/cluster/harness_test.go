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

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller/controllertest"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
)

const (
	namespace = "default"
	name      = "prod--default"

	requestToken  = "create serviceaccounts/token nstance-capi-workload"
	writeSecret   = "apply secrets prod--default-kubeconfig"
	writeCluster  = "apply nstanceclusters prod--default"
	writeStatus   = "apply nstanceclusters/status prod--default"
	createCluster = "create clusters prod--default"
)

// harness is a controller of one cluster. Tokens are "token-1", "token-2" and so
// on, and live for life.
type harness struct {
	*controllertest.API

	t          *testing.T
	controller *Controller
	kube       *kubefake.Clientset
	capi       *controllertest.CAPI
	informers  infrastructure.Interface
	clusters   *capi.Informer[*clusterv1.Cluster]
	secrets    cache.SharedIndexInformer
	clock      *clocktesting.FakePassiveClock
	life       time.Duration
	// noToken, when not nil, is the answer to requests for a token.
	noToken error
	tokens  int
	// did are the writes to all three API groups in their order.
	did     []string
	created int
	// secretVersion is the resource version of what was last written to a Secret.
	secretVersion int
}

func source() *KubeconfigSource {
	return &KubeconfigSource{Server: "https://kubernetes.default.svc:443", CAData: []byte("CA"), ServiceAccount: "nstance-capi-workload"}
}

func newHarness(t *testing.T, kubeconfig *KubeconfigSource) *harness {
	t.Helper()
	h := &harness{
		API: controllertest.NewAPI(t), t: t, kube: kubefake.NewClientset(), capi: controllertest.NewCAPI(t),
		clock: clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)), life: time.Hour,
		secretVersion: 1,
	}
	h.informers = h.Informers()
	h.clusters = capi.NewClusterInformer(h.capi.Client, namespace, 0)
	h.secrets = kubeinformers.NewSharedInformerFactory(h.kube, 0).Core().V1().Secrets().Informer()
	h.kube.PrependReactor("create", "serviceaccounts", h.createToken)
	h.kube.PrependReactor("patch", "secrets", h.applySecret)
	for _, fake := range []*clienttesting.Fake{&h.Fake, &h.kube.Fake} {
		fake.PrependReactor("*", "*", h.writeDown)
	}
	h.restart(kubeconfig)
	return h
}

// restart makes a new controller with this source.
func (h *harness) restart(kubeconfig *KubeconfigSource) {
	h.t.Helper()
	config := Config{Namespace: namespace, Name: name, Endpoint: v1beta1.APIEndpoint{Host: "kubernetes.default.svc", Port: 443}, Kubeconfig: kubeconfig}
	c, _, err := New(config, h.InfrastructureV1beta1(), h.capi.Client, h.kube, h.informers.NstanceClusters(), h.clusters, h.secrets, h.clock)
	if err != nil {
		h.t.Fatal(err)
	}
	h.controller = c
}

func (h *harness) createToken(action clienttesting.Action) (bool, runtime.Object, error) {
	if action.GetSubresource() != "token" {
		return false, nil, nil
	}
	if h.noToken != nil {
		return true, nil, h.noToken
	}
	h.tokens++
	return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
		Token:               fmt.Sprintf("token-%d", h.tokens),
		ExpirationTimestamp: metav1.NewTime(h.clock.Now().Add(h.life)),
	}}, nil
}

// applySecret gives a Secret a resource version, by which the controller knows
// whether its cache is stale.
func (h *harness) applySecret(action clienttesting.Action) (bool, runtime.Object, error) {
	_, object, err := clienttesting.ObjectReaction(h.kube.Tracker())(action)
	if err != nil {
		return true, nil, err
	}
	h.secretVersion++
	secret := object.(*corev1.Secret)
	secret.ResourceVersion = strconv.Itoa(h.secretVersion)
	return true, secret, h.kube.Tracker().Update(action.GetResource(), secret, action.GetNamespace())
}

func (h *harness) writeDown(action clienttesting.Action) (bool, runtime.Object, error) {
	if verb := action.GetVerb(); verb != "get" && verb != "list" && verb != "watch" {
		h.did = append(h.did, controllertest.Describe(action))
	}
	return false, nil, nil
}

// sync syncs once with up to date caches of our kinds and of Secrets, and
// returns the writes in their order.
func (h *harness) sync() (did []string, requeue time.Duration, err error) {
	h.t.Helper()
	h.Show(h.informers)
	h.showSecrets()
	return h.syncStale()
}

// syncStale syncs once with caches as they were.
func (h *harness) syncStale() (did []string, requeue time.Duration, err error) {
	h.t.Helper()
	ctx := klog.NewContext(h.t.Context(), ktesting.NewLogger(h.t, ktesting.NewConfig()))
	requeue, err = h.controller.sync(ctx, cache.NewObjectName(namespace, name))
	did, h.did = h.did, nil
	for _, object := range h.capi.Created[h.created:] {
		did = append(did, "create clusters "+object.GetName())
	}
	h.created = len(h.capi.Created)
	return did, requeue, err
}

// expect syncs once, without an error, and compares the writes.
func (h *harness) expect(want ...string) time.Duration {
	h.t.Helper()
	did, requeue, err := h.sync()
	if err != nil {
		h.t.Fatal(err)
	}
	if !slices.Equal(did, want) {
		h.t.Errorf("wrote %q, want %q", did, want)
	}
	return requeue
}

func (h *harness) showSecrets() {
	h.t.Helper()
	list, err := h.kube.CoreV1().Secrets(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	objects := make([]any, len(list.Items))
	for i := range list.Items {
		objects[i] = &list.Items[i]
	}
	if err := h.secrets.GetIndexer().Replace(objects, strconv.Itoa(h.secretVersion)); err != nil {
		h.t.Fatal(err)
	}
}

// showCluster has the cache show the Cluster, changed in some way.
func (h *harness) showCluster(changes ...func(*clusterv1.Cluster)) {
	h.t.Helper()
	cluster := newCluster(namespace, name)
	for _, change := range changes {
		change(cluster)
	}
	if err := h.clusters.GetIndexer().Add(cluster); err != nil {
		h.t.Fatal(err)
	}
}

func deleting(cluster *clusterv1.Cluster) {
	cluster.DeletionTimestamp = &metav1.Time{Time: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func paused(cluster *clusterv1.Cluster) { cluster.Spec.Paused = ptr.To(true) }

// changeSecret has somebody else change the Secret.
func (h *harness) changeSecret(change func(*corev1.Secret)) {
	h.t.Helper()
	secret := h.secret()
	change(secret)
	h.secretVersion++
	secret.ResourceVersion = strconv.Itoa(h.secretVersion)
	if err := h.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), secret, namespace); err != nil {
		h.t.Fatal(err)
	}
}

// changeNstanceCluster has somebody else change the NstanceCluster.
func (h *harness) changeNstanceCluster(change func(*v1beta1.NstanceCluster)) {
	h.t.Helper()
	object := h.nstanceCluster()
	change(object)
	if err := h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstanceclusters"), object, namespace); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) secret() *corev1.Secret {
	h.t.Helper()
	secret, err := h.kube.CoreV1().Secrets(namespace).Get(context.Background(), name+"-kubeconfig", metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return secret
}

// bearer is the token in the Secret.
func (h *harness) bearer() string {
	h.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(h.secret().Data["value"])
	if err != nil {
		h.t.Fatal(err)
	}
	return config.BearerToken
}

// condition is what the NstanceCluster says of the kubeconfig or of its pause.
func (h *harness) condition(kind string) metav1.Condition {
	h.t.Helper()
	condition := meta.FindStatusCondition(h.nstanceCluster().Status.Conditions, kind)
	if condition == nil {
		h.t.Fatalf("there is no condition %s", kind)
	}
	return *condition
}

func (h *harness) nstanceCluster() *v1beta1.NstanceCluster {
	h.t.Helper()
	object, err := h.InfrastructureV1beta1().NstanceClusters(namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return object
}
