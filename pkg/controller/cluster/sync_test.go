// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func TestSyncWritesTheKubeconfigBeforeTheEndpointAndThenIsQuiet(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster()
	h.expect()
	h.expect()
}

func TestSyncWaitsForTheCachesToShowItsWrites(t *testing.T) {
	stale := func(h *harness) {
		t.Helper()
		if did, requeue, err := h.syncStale(); len(did) > 0 || requeue != staleRetry || err != nil {
			t.Errorf("with a stale cache it wrote %q, requeue after %s, error %v", did, requeue, err)
		}
	}
	t.Run("of the Secret", func(t *testing.T) {
		h := newHarness(t, source())
		h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
		h.showCluster()
		h.Show(h.informers)
		stale(h)
		h.expect()
	})
	t.Run("of the NstanceCluster", func(t *testing.T) {
		h, _ := settled(t, time.Hour)
		h.expect()
		h.changeNstanceCluster(func(object *v1beta1.NstanceCluster) { object.Spec.ControlPlaneEndpoint.Host = "somewhere.else" })
		h.expect(writeCluster, writeStatus)
		stale(h)
		h.expect()
	})
}

func TestSyncWithoutATokenPublishesNoEndpointAndSaysWhy(t *testing.T) {
	h := newHarness(t, source())
	h.noToken = apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "nstance-capi-workload")
	did, _, err := h.sync()
	if !apierrors.IsNotFound(err) || !slices.Equal(did, []string{requestToken, writeCluster, writeStatus}) {
		t.Errorf("wrote %q, error %v", did, err)
	}
	if got := h.nstanceCluster().Spec.ControlPlaneEndpoint; got != (v1beta1.APIEndpoint{}) {
		t.Errorf("the endpoint is %+v", got)
	}
	available := h.condition(v1beta1.ConditionKubeconfigAvailable)
	if available.Status != metav1.ConditionFalse || available.Reason != "KubeconfigNotWritten" ||
		!strings.Contains(available.Message, "ServiceAccount default/nstance-capi-workload") {
		t.Errorf("the condition is %+v", available)
	}
	if ready := h.condition(v1beta1.ConditionReady); ready.Status != metav1.ConditionTrue {
		t.Errorf("Ready is %+v", ready)
	}

	// Another attempt has nothing new to say; one that succeeds goes on.
	if did, _, err := h.sync(); !apierrors.IsNotFound(err) || !slices.Equal(did, []string{requestToken}) {
		t.Errorf("wrote %q, error %v", did, err)
	}
	h.noToken = nil
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	if available := h.condition(v1beta1.ConditionKubeconfigAvailable); available.Status != metav1.ConditionTrue {
		t.Errorf("the condition is %+v", available)
	}
}

// An endpoint that is published already is not taken back.
func TestTokenThatCannotBeReplacedIsReported(t *testing.T) {
	h, requeue := settled(t, time.Hour)
	h.clock.SetTime(h.clock.Now().Add(requeue))
	h.noToken = apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "nstance-capi-workload", errors.New("no right"))
	if did, _, err := h.sync(); !apierrors.IsForbidden(err) || !slices.Equal(did, []string{requestToken, writeStatus}) {
		t.Errorf("wrote %q, error %v", did, err)
	}
	if available := h.condition(v1beta1.ConditionKubeconfigAvailable); available.Status != metav1.ConditionFalse {
		t.Errorf("the condition is %+v", available)
	}
	if got := h.nstanceCluster().Spec.ControlPlaneEndpoint.Host; got != "kubernetes.default.svc" {
		t.Errorf("the endpoint is %q", got)
	}
}

func TestNstanceClusterIsWhatClusterAPIWaitsFor(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	got := h.nstanceCluster()
	if want := (v1beta1.APIEndpoint{Host: "kubernetes.default.svc", Port: 443}); got.Spec.ControlPlaneEndpoint != want {
		t.Errorf("the endpoint is %+v", got.Spec.ControlPlaneEndpoint)
	}
	status := got.Status
	if !*status.Initialization.Provisioned || !*status.Initialization.ControlPlaneInitialized || !*status.ExternalManagedControlPlane {
		t.Errorf("the status is %+v", status)
	}
	for _, kind := range []string{"Ready", "Available", "KubeconfigAvailable"} {
		if !meta.IsStatusConditionTrue(status.Conditions, kind) {
			t.Errorf("%s is not true", kind)
		}
	}

	made := &clusterv1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(h.capi.Created[0].Object, made); err != nil {
		t.Fatal(err)
	}
	want := clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: "NstanceCluster", Name: name}
	if made.Spec.InfrastructureRef != want || made.Spec.ControlPlaneRef != want {
		t.Errorf("the Cluster refers to %+v and %+v", made.Spec.InfrastructureRef, made.Spec.ControlPlaneRef)
	}
}

func TestSyncTakesTheEndpointBack(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster()
	h.changeNstanceCluster(func(object *v1beta1.NstanceCluster) { object.Spec.ControlPlaneEndpoint.Host = "somewhere.else" })
	h.expect(writeCluster, writeStatus)
	if got := h.nstanceCluster().Spec.ControlPlaneEndpoint.Host; got != "kubernetes.default.svc" {
		t.Errorf("the endpoint is %q", got)
	}
}

func TestSyncLeavesAClusterThatIsThereAlone(t *testing.T) {
	h := newHarness(t, source())
	h.showCluster()
	h.expect(requestToken, writeSecret, writeCluster, writeStatus)
}

func TestSyncIsQuietWhenSomebodyElseCreatedTheCluster(t *testing.T) {
	h := newHarness(t, source())
	h.capi.Taken = []string{"clusters/" + name}
	h.expect(requestToken, writeSecret, writeCluster, writeStatus)
}

// Cluster API waits for the NstanceCluster to be gone.
func TestSyncDoesNotBringAClusterBackThatIsBeingDeleted(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster(deleting)
	if err := h.Tracker().Delete(v1beta1.SchemeGroupVersion.WithResource("nstanceclusters"), namespace, name); err != nil {
		t.Fatal(err)
	}
	h.expect()
	h.clock.SetTime(h.clock.Now().Add(h.life))
	h.expect(requestToken, writeSecret)

	if err := h.clusters.GetIndexer().Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	h.capi.Taken = nil
	h.expect(writeCluster, writeStatus, createCluster)
}

// Somebody holds it with a finalizer; it is made anew when it is gone.
func TestSyncLeavesAnNstanceClusterAloneThatIsBeingDeleted(t *testing.T) {
	h, _ := settled(t, time.Hour)
	h.changeNstanceCluster(func(object *v1beta1.NstanceCluster) {
		object.DeletionTimestamp = &metav1.Time{Time: h.clock.Now()}
		object.Finalizers = []string{"somebody/else"}
		object.Spec.ControlPlaneEndpoint.Host = "somewhere.else"
	})
	h.expect()
}

func TestSyncOfAnotherObjectDoesNothing(t *testing.T) {
	h := newHarness(t, source())
	if _, err := h.controller.sync(t.Context(), cache.NewObjectName(namespace, "another")); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(h.did, nil) {
		t.Errorf("wrote %q", h.did)
	}
}
