// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"errors"
	"maps"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/puidv7"
)

func TestConformance(t *testing.T) {
	providertest.Test(t, providertest.Config{
		Run:            synctest.Test,
		NewBackend:     func(t *testing.T) providertest.Backend { return newBackend(t) },
		Type:           instanceTypes["m7i.large"],
		OtherType:      instanceTypes["c7i.large"],
		Subnet:         "subnet-a",
		LimitedSubnet:  "small",
		RejectedSubnet: "rejected",
		QuietPeriod:    time.Hour,
		Markets:        options(),
	})
}

// backend is a cluster in memory whose calls can fail.
type backend struct {
	t      *testing.T
	client *fake.Clientset

	// mu guards the fields below.
	mu            sync.Mutex
	failures      map[string]int
	loseResponses int
}

func newBackend(t *testing.T) *backend {
	b := &backend{t: t, client: kwoktest.NewClientset(), failures: map[string]int{}}
	rejectSubnet(b.client, "rejected", apierrors.NewForbidden(corev1.Resource("nodes"), "name", nil))
	b.client.PrependReactor("create", "nodes", b.create)
	for _, verb := range []string{"create", "delete"} {
		b.client.PrependReactor(verb, "nodes", b.fail)
	}
	return b
}

func (b *backend) fail(action clienttesting.Action) (handled bool, _ runtime.Object, _ error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures[action.GetVerb()] == 0 {
		return false, nil, nil
	}
	b.failures[action.GetVerb()]--
	return true, nil, apierrors.NewServiceUnavailable("try later")
}

func (b *backend) create(action clienttesting.Action) (handled bool, _ runtime.Object, _ error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loseResponses == 0 {
		return false, nil, nil
	}
	b.loseResponses--
	assert.NoError(b.t, b.client.Tracker().Create(action.GetResource(), action.(clienttesting.CreateAction).GetObject(), ""))
	return true, nil, errors.New("the connection was lost")
}

func (b *backend) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) provider.Provider {
	p, err := kwok.New(kwok.Config{Shard: shard, Options: options(), Client: kwoktest.Nodes(b.client), CallContext: callContext})
	require.NoError(b.t, err)
	return p
}

func (b *backend) Instances() []string {
	nodes, err := b.client.CoreV1().Nodes().List(b.t.Context(), metav1.ListOptions{})
	require.NoError(b.t, err)
	var ids []string
	for _, node := range nodes.Items {
		ids = append(ids, node.Name)
	}
	return ids
}

func (b *backend) Delete(id string) {
	require.NoError(b.t, b.client.CoreV1().Nodes().Delete(b.t.Context(), id, metav1.DeleteOptions{}))
}

func (b *backend) FailCreate(times int) { b.setFailures("create", times) }
func (b *backend) FailDelete(times int) { b.setFailures("delete", times) }

func (b *backend) setFailures(verb string, times int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures[verb] = times
}

func (b *backend) LoseResponse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.loseResponses = 1
}

// SetStock limits a market with its quota, which is a part of the type.
func (b *backend) SetStock(t provider.InstanceType, market string, available bool) provider.InstanceType {
	t.MarketQuotas = map[string]int32{market: 0}
	if available {
		t.MarketQuotas[market] = 10
	}
	return t
}

func (b *backend) Calls() (creates, deletes int) {
	verbs := calls(b.client)
	return verbs["create"], verbs["delete"]
}

// TestTheNodeIsAsExpected compares the expected Node with the Node: they differ only
// in what differs per instance.
func TestTheNodeIsAsExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		spec := provider.Spec{
			Group: group, Template: "worker", Kind: "knd", Type: instanceTypes["m7i.large"],
			Args: map[string]any{"labels": map[string]any{"pool": "gold", "empty": ""}, "taints": map[string]any{"b": "NoExecute", "a": "gold:NoSchedule"}},
		}
		expected := p.ExpectedNode(spec)
		spec.ID, spec.Subnet = providertest.NewID(t), "subnet-a"
		require.NoError(t, p.Create(t.Context(), spec))
		p.Await(group, map[string]instance.State{spec.ID: instance.Running})
		node, err := client.CoreV1().Nodes().Get(t.Context(), spec.ID, metav1.GetOptions{})
		require.NoError(t, err)
		own := map[string]string{"nstance.dev/instance-id": spec.ID, "nstance.dev/subnet": "subnet-a", "kubernetes.io/hostname": spec.ID}
		labels := maps.Clone(expected.Labels)
		maps.Copy(labels, own)
		if diff := cmp.Diff(node.Labels, labels); diff != "" || len(labels) != len(expected.Labels)+len(own) {
			t.Errorf("the labels of the Node, and those expected with its own (-got +expected):\n%s", diff)
		}
		if diff := cmp.Diff(node.Status.Capacity, expected.Status.Capacity); diff != "" {
			t.Errorf("capacity (-got +expected):\n%s", diff)
		}
		if diff := cmp.Diff(node.Status.NodeInfo, expected.Status.NodeInfo); diff != "" {
			t.Errorf("node info (-got +expected):\n%s", diff)
		}
		taints := []corev1.Taint{{Key: "a", Value: "gold", Effect: corev1.TaintEffectNoSchedule}, {Key: "b", Effect: corev1.TaintEffectNoExecute}}
		assert.Equal(t, taints, node.Spec.Taints)
		assert.Equal(t, taints, expected.Spec.Taints)
		if quantity := expected.Status.Capacity[corev1.ResourcePods]; quantity.String() != "110" {
			t.Errorf("%s Pods are expected", quantity.String())
		}
		if expected.Name != "" || expected.Spec.ProviderID != "" {
			t.Errorf("the expected Node has a name: %v", expected)
		}
	})
}

// TestDocumentedMetadata: the table of docs/providers.md has what a Node stores, and no more.
func TestDocumentedMetadata(t *testing.T) {
	const prefix = "nstance.dev/"
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		h := start(t, client, "a")
		s := providertest.MetadataSpec(t)
		s.Type, s.Subnet = instanceTypes["m7i.large"], "subnet"
		id := h.MustRun(s)
		node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
		require.NoError(t, err)
		stored := maps.Clone(node.Labels)
		maps.Copy(stored, node.Annotations)
		maps.DeleteFunc(stored, func(key, _ string) bool { return !strings.HasPrefix(key, prefix) })
		assert.Equal(t, providertest.DocumentedMetadata(t, kwok.Name), providertest.MetadataNames(prefix, stored))
	})
}

// TestProviderIDsEndInTheInstanceID has two clusters with shards of the same zones,
// and groups of one name. Some clients compare only the last segment of provider
// ids, which must therefore be unique.
func TestProviderIDsEndInTheInstanceID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[string]string{}
		for _, cluster := range []string{"first", "second"} {
			client := kwoktest.NewClientset()
			for _, shard := range []string{"a", "b"} {
				p := start(t, client, shard)
				for range 100 {
					id := p.MustRun(spec())
					vm, _ := p.Get(id)
					segment := path.Base(vm.ProviderID)
					if _, err := puidv7.Parse(segment); err != nil || segment != id {
						t.Errorf("provider id %q of instance %s: %v", vm.ProviderID, id, err)
					}
					if other, taken := seen[segment]; taken {
						t.Errorf("%q in cluster %s has the last segment of %q", vm.ProviderID, cluster, other)
					}
					seen[segment] = vm.ProviderID
				}
			}
		}
	})
}
