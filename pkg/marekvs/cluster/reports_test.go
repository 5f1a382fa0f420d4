// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/storetest"
)

// What users of other operators and of Kubernetes have reported, each of which an operator of a store can do wrong,
// too. The name of each test begins with the report.
func TestPublicReports(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"kubernetes/kubernetes#67250, #60164: a template that does not start can be taken back": func(t *testing.T) {
			h := newHarness(t, nil)
			h.broken["wrong"] = true
			h.change(imaged("wrong"))
			h.settle()
			require.Equal(t, []string{"i", "i", "wrong"}, h.revisions())
			h.change(imaged("i"))
			h.settle()
			h.settle()
			assert.Equal(t, []string{"i", "i", "i"}, h.revisions())
			assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
		},
		"strimzi/strimzi-kafka-operator#6203: a new cluster that cannot start is corrected by its spec": func(t *testing.T) {
			h := newEmpty(t, imaged("too-small"))
			h.broken["too-small"] = true
			h.settle()
			require.Equal(t, []string{"too-small", "too-small", "too-small"}, h.revisions())
			h.change(imaged("larger"))
			h.settle()
			h.settle()
			assert.Equal(t, []string{"larger", "larger", "larger"}, h.revisions())
			assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
		},
		"elastic/cloud-on-k8s#2627: no node is removed before its data has moved": func(t *testing.T) {
			h := newHarness(t, func(c *v1alpha1.MarekvsCluster) { c.Spec.Nodes = 5 })
			h.change(sized(4))
			for range 30 { // rounds begin all the time, and the gauges show nothing
				h.moved++
				h.pass()
			}
			assert.Equal(t, int32(5), *h.set().Spec.Replicas)
			h.settle()
			assert.Equal(t, int32(4), *h.set().Spec.Replicas)
		},
		"kubernetes/kubernetes#137409: a Pod that fails is replaced although the StatefulSet controller waits for it": func(t *testing.T) {
			h := newHarness(t, nil)
			h.waits, h.broken["wrong"] = true, true
			h.change(imaged("wrong"))
			h.settle()
			require.Equal(t, []string{"i", "i", "wrong"}, h.revisions())
			h.change(imaged("right"))
			h.settle()
			h.settle()
			assert.Equal(t, []string{"right", "right", "right"}, h.revisions())
			assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
		},
		"redpanda-data/redpanda-operator#126: kubectl rollout restart restarts the Pods, one at a time": func(t *testing.T) {
			h := newHarness(t, nil)
			set := h.set()
			set.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "2030-01-01T00:00:00Z"}
			h.builtIn.Update(setResource, set)
			set = h.set()
			set.Status.UpdateRevision, set.Status.ObservedGeneration = "restarted", set.Generation
			h.builtIn.Update(setResource, set)
			for _, step := range []struct {
				under     int64
				partition int32
			}{{1, 3}, {1, 3}, {0, 2}} {
				h.under = step.under
				h.show()
				_, err := h.syncStale(t.Context())
				require.NoError(t, err)
				assert.Equal(t, step.partition, *h.set().Spec.UpdateStrategy.RollingUpdate.Partition)
				h.advance(period)
			}
		},
		"grafana/prometheus-alertmanager#44: nodes do not meet those of other clusters at addresses that are used again": func(t *testing.T) {
			var network storetest.Network
			gossip := func(uid string) string {
				cluster := demo()
				cluster.UID = types.UID(uid)
				return children.GossipCluster(cluster)
			}
			network.Start(&storetest.Peer{Cluster: gossip("1"), Node: 0, Address: "a"})
			left := &storetest.Peer{Cluster: gossip("1"), Node: 1, Address: "b"}
			network.Start(left, "a")
			network.Stop("a")
			other := &storetest.Peer{Cluster: gossip("2"), Node: 0, Address: "a"}
			network.Start(other)
			network.Gossip()
			assert.Equal(t, map[int32]string{1: "b"}, network.Members(left))
			assert.Equal(t, map[int32]string{0: "a"}, network.Members(other))
		},
		"slauger/openvox-operator#556: an error of the API server is not published as nodes that are not ready": func(t *testing.T) {
			h := newHarness(t, nil)
			h.builtIn.Remove(serviceResource, "ns", "demo")
			h.builtIn.Fail(applyClient, apierrors.NewInternalError(errors.New("a moment")))
			h.show()
			_, err := h.syncStale(t.Context())
			require.ErrorContains(t, err, "a moment")
			status := h.cluster().Status
			assert.Equal(t, ptr.To[int32](3), status.ReadyNodes)
			assert.Equal(t, v1alpha1.PhaseHealthy, status.Phase)
			assert.Equal(t, "True AsExpected", reason(status, v1alpha1.ConditionAvailable))
		},
	} {
		t.Run(name, test)
	}
}
