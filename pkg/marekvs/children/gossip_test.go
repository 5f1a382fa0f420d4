// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package children

import (
	"cmp"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	appsv1 "k8s.io/api/apps/v1"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/storetest"
)

// Nodes remember the addresses of dead nodes, and the Pod network gives these addresses to Pods of
// other clusters, whose nodes have the same ordinals. Clusters that share a gossip cluster become one
// there, and replicate to each other.
func TestClustersDoNotMeetAtReusedAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		gossip func(*v1alpha1.MarekvsCluster) string
		meet   bool
	}{
		"a gossip cluster each":                    {GossipCluster, false},
		"the default of the store, as in the past": {func(*v1alpha1.MarekvsCluster) string { return "" }, true},
	} {
		network := &storetest.Network{}
		first, second := demo(), demo()
		second.UID = "2" // the same names, in another Kubernetes cluster
		peers := map[string]*storetest.Peer{}
		clusters := map[string]*v1alpha1.MarekvsCluster{} // by address
		start := func(cluster *v1alpha1.MarekvsCluster, node int32, address, seed string) {
			set := decode[appsv1.StatefulSet](t, StatefulSet(cluster, options, c.gossip(cluster), Size{Replicas: 3}))
			gossip := cmp.Or(GossipClusterOf(&set.Spec.Template.Spec), storetest.DefaultGossipCluster)
			peers[address], clusters[address] = &storetest.Peer{Cluster: gossip, Node: node, Address: address}, cluster
			network.Start(peers[address], seed)
		}
		met := func() (met bool) {
			network.Gossip()
			for address, p := range peers {
				members := network.Members(p)
				assert.Len(t, members, 3, "%s: the number of members shows nothing", name)
				for _, member := range members {
					met = met || clusters[member] != clusters[address]
				}
			}
			return met
		}
		for node := range int32(3) {
			start(first, node, fmt.Sprintf("10.0.0.%d", node), "10.0.0.0")
			start(second, node, fmt.Sprintf("10.0.1.%d", node), "10.0.1.0")
		}
		assert.False(t, met(), name)

		// Node 2 of each cluster is replaced. Node 2 of the first cluster gets the address that
		// node 2 of the second cluster had.
		for _, address := range []string{"10.0.0.2", "10.0.1.2"} {
			network.Stop(address)
			delete(peers, address)
		}
		start(second, 2, "10.0.1.3", "10.0.1.0")
		start(first, 2, "10.0.1.2", "10.0.0.0")
		assert.Equal(t, c.meet, met(), name)
	}
}
