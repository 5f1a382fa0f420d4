// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func TestSyncWritesTheKubeconfigBeforeTheEndpointAndThenIsQuiet(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster(false)
	h.expect()
	h.expect()
}

func TestSyncWithoutAKubeconfigPublishesNoEndpoint(t *testing.T) {
	h := newHarness(t, source())
	refused := errors.New("refused")
	h.kube.PrependReactor("create", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, refused
	})
	did, _, err := h.sync()
	if !errors.Is(err, refused) || len(did) > 0 {
		t.Errorf("wrote %q, error %v", did, err)
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
	for _, kind := range []string{"Ready", "Available"} {
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
	h.showCluster(false)
	object := h.nstanceCluster()
	object.Spec.ControlPlaneEndpoint.Host = "somewhere.else"
	if err := h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstanceclusters"), object, namespace); err != nil {
		t.Fatal(err)
	}
	h.expect(writeCluster, writeStatus)
	if got := h.nstanceCluster().Spec.ControlPlaneEndpoint.Host; got != "kubernetes.default.svc" {
		t.Errorf("the endpoint is %q", got)
	}
}

func TestSyncLeavesAClusterThatIsThereAlone(t *testing.T) {
	h := newHarness(t, source())
	h.showCluster(false)
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
	h.showCluster(true)
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

func TestSyncOfAnotherObjectDoesNothing(t *testing.T) {
	h := newHarness(t, source())
	if _, err := h.controller.sync(t.Context(), cache.NewObjectName(namespace, "another")); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(h.did, nil) {
		t.Errorf("wrote %q", h.did)
	}
}

func TestExternalModeLeavesTheSecretAlone(t *testing.T) {
	h := newHarness(t, nil)
	if requeue := h.expect(writeCluster, writeStatus, createCluster); requeue != 0 {
		t.Errorf("requeued after %s", requeue)
	}
	for _, action := range h.kube.Actions() {
		t.Errorf("asked for %s %s", action.GetVerb(), action.GetResource().Resource)
	}
}
