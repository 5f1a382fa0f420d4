// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
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

func (b *backend) Calls() (creates, deletes int) {
	verbs := calls(b.client)
	return verbs["create"], verbs["delete"]
}
