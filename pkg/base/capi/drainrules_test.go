// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// newStatus returns the body of an error.
func newStatus(err *apierrors.StatusError) metav1.Status {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return status
}

// startRuleInformer runs an informer of MachineDrainRules. synced is closed when its handlers count
// as synced.
func startRuleInformer(t *testing.T, handler http.HandlerFunc) (informer cache.SharedIndexInformer, synced <-chan struct{}) {
	t.Helper()
	informer = NewMachineDrainRuleInformer(serve(t, handler), "default", 0)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{})
	require.NoError(t, err)
	go informer.RunWithContext(t.Context())
	return informer, registration.HasSyncedChecker().Done()
}

// A cluster may have an older Cluster API, and the operator an older role.
func TestAKindThatCannotBeReadHasNoObjects(t *testing.T) {
	rules := clusterv1.GroupVersion.WithResource("machinedrainrules").GroupResource()
	for name, err := range map[string]*apierrors.StatusError{
		"not found": apierrors.NewNotFound(rules, ""),
		"forbidden": apierrors.NewForbidden(rules, "", nil),
	} {
		t.Run(name, func(t *testing.T) {
			informer, synced := startRuleInformer(t, func(w http.ResponseWriter, _ *http.Request) {
				answer(t, w, int(err.ErrStatus.Code), newStatus(err))
			})
			<-synced
			assert.Empty(t, informer.GetStore().List())
		})
	}
}

// Rules that exist must not be ignored.
func TestAKindThatCannotBeReadNowIsWaitedFor(t *testing.T) {
	asked := make(chan struct{})
	_, synced := startRuleInformer(t, func(w http.ResponseWriter, r *http.Request) {
		answer(t, w, http.StatusInternalServerError, newStatus(apierrors.NewInternalError(assert.AnError)))
		select {
		case asked <- struct{}{}:
		case <-r.Context().Done():
		}
	})
	for range 3 {
		<-asked
	}
	select {
	case <-synced:
		t.Error("the operator does not wait")
	default:
	}
}

func TestMachineDrainRulesAreRead(t *testing.T) {
	informer, synced := startRuleInformer(t, func(w http.ResponseWriter, r *http.Request) {
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") != "":
			answer(t, w, http.StatusUnprocessableEntity, newStatus(apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("MachineDrainRule").GroupKind(), "", nil)))
		case query.Get("watch") != "":
			sendHeader(w, http.StatusOK)
			<-r.Context().Done()
		default:
			answer(t, w, http.StatusOK, clusterv1.MachineDrainRuleList{
				TypeMeta: metav1.TypeMeta{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "MachineDrainRuleList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "7"},
				Items:    []clusterv1.MachineDrainRule{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agents"}}},
			})
		}
	})
	<-synced
	assert.Len(t, informer.GetStore().List(), 1)
}
