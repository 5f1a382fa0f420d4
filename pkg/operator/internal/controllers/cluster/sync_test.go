// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

func TestSyncWritesTheKubeconfigBeforeTheEndpointAndThenNothing(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster()
	h.expect()
	h.expect()
}

func TestSyncWaitsForTheCachesToShowItsWrites(t *testing.T) {
	stale := func(h *harness) {
		t.Helper()
		if writes, requeue, err := h.syncStale(); len(writes) > 0 || requeue != controller.StaleRetry || err != nil {
			t.Errorf("with a stale cache it wrote %q, requeue after %s, error %v", writes, requeue, err)
		}
	}
	t.Run("of the Secret", func(t *testing.T) {
		h := newHarness(t, source())
		h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
		h.showCluster()
		h.Show()
		stale(h)
		h.expect()
	})
	t.Run("of the NstanceCluster", func(t *testing.T) {
		h, _ := newSyncedHarness(t, time.Hour)
		h.expect()
		h.changeNstanceCluster(func(n *v1beta1.NstanceCluster) { n.Spec.ControlPlaneEndpoint.Host = "somewhere.else" })
		h.expect(writeCluster, writeStatus)
		stale(h)
		h.expect()
	})
}

func TestSyncWithoutATokenPublishesNoEndpointAndReportsTheError(t *testing.T) {
	h := newHarness(t, source())
	h.tokenError = apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "nstance-capi-workload")
	writes, _, err := h.sync()
	if !apierrors.IsNotFound(err) || !slices.Equal(writes, []string{requestToken, writeCluster, writeStatus}) {
		t.Errorf("wrote %q, error %v", writes, err)
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

	// A second failure changes nothing; a success continues.
	if writes, _, err := h.sync(); !apierrors.IsNotFound(err) || !slices.Equal(writes, []string{requestToken}) {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.tokenError = nil
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	if available := h.condition(v1beta1.ConditionKubeconfigAvailable); available.Status != metav1.ConditionTrue {
		t.Errorf("the condition is %+v", available)
	}
}

// A published endpoint is not removed.
func TestTokenThatCannotBeReplacedIsReported(t *testing.T) {
	h, requeue := newSyncedHarness(t, time.Hour)
	h.Advance(requeue)
	h.tokenError = apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "nstance-capi-workload", errors.New("not allowed"))
	if writes, _, err := h.sync(); !apierrors.IsForbidden(err) || !slices.Equal(writes, []string{requestToken, writeStatus}) {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	if available := h.condition(v1beta1.ConditionKubeconfigAvailable); available.Status != metav1.ConditionFalse {
		t.Errorf("the condition is %+v", available)
	}
	if got := h.nstanceCluster().Spec.ControlPlaneEndpoint.Host; got != "kubernetes.default.svc" {
		t.Errorf("the endpoint is %q", got)
	}
}

func TestNstanceClusterIsWhatClusterAPINeeds(t *testing.T) {
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
	for _, conditionType := range []string{"Ready", "Available", "KubeconfigAvailable"} {
		if !meta.IsStatusConditionTrue(status.Conditions, conditionType) {
			t.Errorf("%s is not true", conditionType)
		}
	}

	created := &clusterv1.Cluster{}
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(h.CAPI.Created[0].Object, created))
	want := clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: "NstanceCluster", Name: name}
	if created.Spec.InfrastructureRef != want || created.Spec.ControlPlaneRef != want {
		t.Errorf("the Cluster refers to %+v and %+v", created.Spec.InfrastructureRef, created.Spec.ControlPlaneRef)
	}
}

func TestSyncRevertsTheEndpoint(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster()
	h.changeNstanceCluster(func(n *v1beta1.NstanceCluster) { n.Spec.ControlPlaneEndpoint.Host = "somewhere.else" })
	h.expect(writeCluster, writeStatus)
	if got := h.nstanceCluster().Spec.ControlPlaneEndpoint.Host; got != "kubernetes.default.svc" {
		t.Errorf("the endpoint is %q", got)
	}
}

func TestSyncDoesNotChangeAnExistingCluster(t *testing.T) {
	h := newHarness(t, source())
	h.showCluster()
	h.expect(requestToken, writeSecret, writeCluster, writeStatus)
}

func TestSyncAcceptsAClusterThatAnotherClientCreated(t *testing.T) {
	h := newHarness(t, source())
	h.CAPI.Taken = []string{"clusters/" + name}
	h.expect(requestToken, writeSecret, writeCluster, writeStatus)
}

// Cluster API waits until the NstanceCluster is deleted.
func TestSyncDoesNotCreateAClusterThatIsBeingDeleted(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster(deleting)
	require.NoError(t, h.Tracker().Delete(v1beta1.SchemeGroupVersion.WithResource("nstanceclusters"), namespace, name))
	h.expect()
	h.Advance(h.tokenLifetime)
	h.expect(requestToken, writeSecret)

	h.forgetCluster()
	h.expect(writeCluster, writeStatus, createCluster)
}

// A finalizer of another client delays the deletion.
func TestSyncDoesNotChangeAnNstanceClusterThatIsBeingDeleted(t *testing.T) {
	h, _ := newSyncedHarness(t, time.Hour)
	h.changeNstanceCluster(func(n *v1beta1.NstanceCluster) {
		controllertest.Deleting(n)
		n.Spec.ControlPlaneEndpoint.Host = "somewhere.else"
	})
	h.expect()
}

func TestSyncOfAnotherObjectDoesNothing(t *testing.T) {
	h := newHarness(t, source())
	_, err := h.controller.sync(t.Context(), cache.NewObjectName(namespace, "another"))
	require.NoError(t, err)
	if !slices.Equal(h.writes, nil) {
		t.Errorf("wrote %q", h.writes)
	}
}
