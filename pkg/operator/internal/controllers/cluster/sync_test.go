// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
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

	// A second failure changes nothing; after a success the sync continues.
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
	h, _ := newSyncedHarness(t, time.Hour)
	h.Advance(time.Hour)
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

// A Machine may be placed in any configured shard. A configuration that is missing removes
// none.
func TestStatusHasTheShards(t *testing.T) {
	h := newHarness(t, source())
	h.Fake.ByID["b"], h.Fake.ByID["a"] = shardtest.NewShard(), shardtest.NewShard()
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	want := []v1beta1.FailureDomain{{Name: "a", ControlPlane: ptr.To(false)}, {Name: "b", ControlPlane: ptr.To(false)}}
	require.Equal(t, want, h.nstanceCluster().Status.FailureDomains)
	require.Equal(t, h.nstanceCluster().Generation, h.nstanceCluster().Status.ObservedGeneration)
	h.showCluster()
	delete(h.Fake.ByID, "a")
	h.expect(writeStatus)
	require.Equal(t, want[1:], h.nstanceCluster().Status.FailureDomains)
	delete(h.Fake.ByID, "b")
	h.expect()
	require.Equal(t, want[1:], h.nstanceCluster().Status.FailureDomains)
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

func pausedByAnnotation(nstanceCluster *v1beta1.NstanceCluster) {
	nstanceCluster.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
}

// While a cluster is paused no spec is written. Its status is updated, and the token is
// replaced, because a credential is not a spec.
func TestPause(t *testing.T) {
	for name, test := range map[string]struct{ pause, unpause func(*harness) }{
		"by the Cluster": {
			func(h *harness) { h.showCluster(paused) },
			func(h *harness) { h.showCluster() },
		},
		"by the annotation": {
			func(h *harness) { h.changeNstanceCluster(pausedByAnnotation) },
			func(h *harness) {
				h.changeNstanceCluster(func(n *v1beta1.NstanceCluster) { n.Annotations = nil })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := newSyncedHarness(t, time.Hour)
			if got := h.condition(v1beta1.ConditionPaused); got.Status != metav1.ConditionFalse {
				t.Errorf("before, Paused is %+v", got)
			}
			test.pause(h)
			h.changeNstanceCluster(func(n *v1beta1.NstanceCluster) { n.Spec.ControlPlaneEndpoint.Host = "somewhere.else" })
			h.expect(writeStatus)
			if got := h.condition(v1beta1.ConditionPaused); got.Status != metav1.ConditionTrue || got.Message == "" {
				t.Errorf("Paused is %+v", got)
			}
			h.Advance(time.Hour)
			h.expect(requestToken, writeSecret)

			test.unpause(h)
			h.expect(writeCluster, writeStatus)
		})
	}
}

func TestPausedClusterIsNotCreated(t *testing.T) {
	h, _ := newSyncedHarness(t, time.Hour)
	h.changeNstanceCluster(pausedByAnnotation)
	h.forgetCluster()
	h.expect(writeStatus)
	h.expect()
}

func TestPausedNstanceClusterIsNotCreated(t *testing.T) {
	h := newHarness(t, source())
	h.showCluster(paused)
	h.expect(requestToken, writeSecret)
	h.expect()
}

// The condition IdentityReady follows the certificate, and a problem causes one event.
func TestIdentityReady(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	assert.Nil(t, h.identityReady(), "before the first sync of the certificate")

	for _, test := range []struct {
		state  metav1.Condition
		events []string
	}{
		{metav1.Condition{Status: metav1.ConditionFalse, Reason: "NonceRejected", Message: "it expired"}, []string{"Warning NonceRejected it expired"}},
		{metav1.Condition{Status: metav1.ConditionFalse, Reason: "NonceRejected", Message: "it was used"}, nil},
		{metav1.Condition{Status: metav1.ConditionTrue, Reason: "Ready"}, nil},
		{metav1.Condition{Status: metav1.ConditionTrue, Reason: "RenewalOverdue", Message: "soon"}, nil},
		{metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonCertificateExpiring, Message: "very soon"}, []string{"Warning CertificateExpiring very soon"}},
		{metav1.Condition{Status: metav1.ConditionFalse, Reason: "NotRegistered", Message: "the operator is registering"}, nil},
	} {
		h.identity.state = test.state
		h.expect(writeStatus)
		h.ExpectEvents(test.events...)
		condition := h.identityReady()
		require.NotNil(t, condition)
		assert.Equal(t, test.state, metav1.Condition{Status: condition.Status, Reason: condition.Reason, Message: condition.Message})
	}
	// The next leader keeps the condition until it knows the state of the certificate.
	h.identity = &certificate{}
	h.restart(source())
	h.expect()
	assert.NotNil(t, h.identityReady())
}

func TestChangeOfTheIdentityEnqueues(t *testing.T) {
	h := newHarness(t, source())
	enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { h.identity.handler() })
	assert.Equal(t, []string{name + " at 0s"}, enqueued)
}

// identityReady returns the condition IdentityReady, nil if it is not set.
func (h *harness) identityReady() *metav1.Condition {
	h.T.Helper()
	cluster, err := h.InfrastructureV1beta1().NstanceClusters(namespace).Get(h.Ctx, name, metav1.GetOptions{})
	require.NoError(h.T, err)
	return meta.FindStatusCondition(cluster.Status.Conditions, v1beta1.ConditionIdentityReady)
}

// The condition exists while the Nodes are in another cluster, and follows its API server.
func TestWorkloadClusterReachable(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	reachable := func() *metav1.Condition {
		cluster, err := h.InfrastructureV1beta1().NstanceClusters(namespace).Get(h.Ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		return meta.FindStatusCondition(cluster.Status.Conditions, v1beta1.ConditionWorkloadClusterReachable)
	}
	assert.Nil(t, reachable(), "with one cluster")

	workload := &certificate{}
	h.controller.options.Workload = workload
	h.expect()
	assert.Nil(t, reachable(), "before the first request")
	workload.state = metav1.Condition{Status: metav1.ConditionFalse, Reason: "WorkloadClusterUnreachable", Message: "connection refused"}
	h.expect(writeStatus)
	require.NotNil(t, reachable())
	assert.Equal(t, "connection refused", reachable().Message)

	h.controller.options.Workload = nil
	h.expect(writeStatus)
	assert.Nil(t, reachable(), "with one cluster again")
}

func TestWhichChangesOfAClusterAreRelevant(t *testing.T) {
	with := func(changes ...func(*clusterv1.Cluster)) *clusterv1.Cluster {
		cluster := newCluster(namespace, name)
		for _, change := range changes {
			change(cluster)
		}
		return cluster
	}
	for name, test := range map[string]struct {
		before, after *clusterv1.Cluster
		want          int
	}{
		"created":        {nil, with(), 1},
		"deleted":        {with(deleting), nil, 1},
		"paused":         {with(), with(paused), 1},
		"unpaused":       {with(paused), with(), 1},
		"being deleted":  {with(), with(deleting), 0},
		"status changed": {with(), with(func(c *clusterv1.Cluster) { c.Status.Phase = "Provisioned" }), 0},
		"stays paused":   {with(paused), with(paused), 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, source())
			synctest.Test(t, func(t *testing.T) {
				syncs := 0
				h.controller.queue = controller.NewQueue("test", func(context.Context, cache.ObjectName) (time.Duration, error) {
					syncs++
					return 0, nil
				})
				h.controller.clusterChanged(test.before, test.after)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				h.controller.queue.Run(ctx, 1)
				if syncs != test.want {
					t.Errorf("synced %d times, want %d", syncs, test.want)
				}
			})
		})
	}
}
