// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/identity"
)

func startConfiguration(t *testing.T) (c *configuration, recorder *events.FakeRecorder, ctx context.Context) {
	t.Helper()
	id := &identity.Identity{}
	recorder = events.NewFakeRecorder(10)
	c = &configuration{connections: connpool.New(connpool.Options{Credentials: id.Credentials("prod")}), identity: id, recorder: recorder}
	return c, recorder, klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig()))
}

func shardsOf(entries ...string) *corev1.ConfigMap {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "nstance-system", Name: "nstance-shards", UID: "uid-1"}, Data: map[string]string{}}
	for _, entry := range entries {
		id, endpoint, _ := strings.Cut(entry, "=")
		object.Data[id] = endpoint
	}
	return object
}

func expectShards(t *testing.T, c *configuration, want ...string) {
	t.Helper()
	assert.Equal(t, want, c.connections.Shards(), "the shards")
}

func TestShardsFollowTheConfigMap(t *testing.T) {
	c, recorder, ctx := startConfiguration(t)
	c.lead()
	var changed []string
	c.connections.AddHandler(func(shard string) { changed = append(changed, shard) })

	c.setEndpoints(ctx, shardsOf("a=host-a:8993", "b=host-b:8993"))
	expectShards(t, c, "a", "b")
	c.setEndpoints(ctx, shardsOf("b=host-b:8993", "c=host-c:8993"))
	expectShards(t, c, "b", "c")
	if want := []string{"a", "b", "a", "c"}; !slices.Equal(changed, want) {
		t.Errorf("told of %q, want %q", changed, want)
	}
	if got := controllertest.Recorded(recorder); len(got) > 0 {
		t.Errorf("recorded %q", got)
	}
}

func TestBadEntryKeepsTheLastEndpointAndTellsOnce(t *testing.T) {
	c, recorder, ctx := startConfiguration(t)
	c.lead()
	c.setEndpoints(ctx, shardsOf("a=host-a:8993", "b=host-b:8993"))
	bad := shardsOf("a=nowhere", "b=host-b:8993", "c=host-c:8993")
	c.setEndpoints(ctx, bad)
	expectShards(t, c, "a", "b", "c")
	if got := c.endpoints["a"].Operator; got != "host-a:8993" {
		t.Errorf("shard a is at %q", got)
	}
	// A resync, and an update of something else.
	c.setEndpoints(ctx, bad)
	touched := bad.DeepCopy()
	touched.Labels = map[string]string{"touched": "yes"}
	c.setEndpoints(ctx, touched)
	got := controllertest.Recorded(recorder)
	if len(got) != 1 || !strings.Contains(got[0], `Warning InvalidEndpoint entry "a" with value "nowhere"`) {
		t.Errorf("recorded %q, want one event about shard a", got)
	}

	c.setEndpoints(ctx, shardsOf("b=host-b:8993", "c=host-c:8993"))
	expectShards(t, c, "b", "c")
}

func TestEntryThatWasNeverGoodIsNoShard(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	c.setEndpoints(ctx, shardsOf("a=nowhere", "b=host-b:8993"))
	expectShards(t, c, "b")
}

// Only a leader writes to the API server.
func TestStandbyRecordsWhatIsWrongWhenItLeads(t *testing.T) {
	c, recorder, ctx := startConfiguration(t)
	c.setEndpoints(ctx, shardsOf("a=nowhere"))
	if got := controllertest.Recorded(recorder); len(got) > 0 {
		t.Errorf("a standby recorded %q", got)
	}
	c.lead()
	if got := controllertest.Recorded(recorder); len(got) != 1 {
		t.Errorf("recorded %q, want one event", got)
	}
}

func TestStandbyRecordsNothingThatWasPutRight(t *testing.T) {
	c, recorder, ctx := startConfiguration(t)
	c.setEndpoints(ctx, shardsOf("a=nowhere"))
	c.setEndpoints(ctx, shardsOf("a=host-a:8993"))
	c.lead()
	if got := controllertest.Recorded(recorder); len(got) > 0 {
		t.Errorf("recorded %q", got)
	}
}

func TestDeletedConfigMapKeepsTheShards(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	c.setEndpoints(ctx, shardsOf("a=host-a:8993"))
	c.setEndpoints(ctx, nil)
	expectShards(t, c, "a")

	again := shardsOf("b=host-b:8993")
	again.UID = "uid-2"
	c.setEndpoints(ctx, again)
	expectShards(t, c, "b")
}

// What is on a shard whose endpoint cannot be read is not known, and nobody may
// take it for nothing.
func TestShardsWithoutAReadableEndpointAreConfigured(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	told := 0
	c.AddHandler(func(string) {
		told++
		c.Shards()
	})
	if got := c.Shards(); len(got) > 0 {
		t.Errorf("the shards are %q before there is a ConfigMap", got)
	}
	c.setEndpoints(ctx, shardsOf("b=host-b:8993", "b.registration=host-b:8992", "a=nowhere", "Not-an-id=host:1"))
	expectShards(t, c, "b")
	if got, want := c.Shards(), []string{"a", "b"}; !slices.Equal(got, want) {
		t.Errorf("the shards are %q, want %q", got, want)
	}
	c.setEndpoints(ctx, shardsOf("b=host-b:8993"))
	if got, want := c.Shards(), []string{"b"}; !slices.Equal(got, want) {
		t.Errorf("the shards are %q, want %q", got, want)
	}
	c.setEndpoints(ctx, shardsOf("b=host-b:8993"))
	if told != 2 {
		t.Errorf("told %d times of new shards, want 2", told)
	}
	c.setEndpoints(ctx, nil)
	if got, want := c.Shards(), []string{"b"}; !slices.Equal(got, want) {
		t.Errorf("without the ConfigMap the shards are %q, want %q", got, want)
	}
}

func TestTroubleOfAShardIsToldOnTheConfigMapThatNamesIt(t *testing.T) {
	c, recorder, ctx := startConfiguration(t)
	c.errorReported("a", shard.ErrorEvent{Message: "configuration a.jsonc: unknown key"})
	c.setEndpoints(ctx, shardsOf("a=host-a:8993"))
	c.errorReported("a", shard.ErrorEvent{Message: "configuration a.jsonc: unknown key"})
	want := []string{"Warning ShardError a: configuration a.jsonc: unknown key"}
	if got := controllertest.Recorded(recorder); !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

// The annotation may be set alone, and must not outlive the address.
func TestConfirmedAddress(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	c.AddHandler(func(string) {})
	expect := func(when, id, address string, want bool, message string) {
		t.Helper()
		confirmed, how := c.confirmed(id, address)
		assert.Equal(t, want, confirmed, when)
		assert.Contains(t, how, message, when)
	}
	expect("without a ConfigMap", "a", "host-a:8993", false, "")
	object := shardsOf("a=host-a:08993", "b=host-b:8993")
	c.setEndpoints(ctx, object)
	expect("without the annotation", "a", "host-a:8993", false, "the annotation nstance.dev/confirmed-address.a=host-a:8993 of the ConfigMap nstance-shards")

	object = object.DeepCopy()
	object.Annotations = map[string]string{"nstance.dev/confirmed-address.a": "host-a:8993"}
	c.setEndpoints(ctx, object)
	expect("with the annotation alone", "a", "host-a:8993", true, "")
	expect("another shard", "b", "host-b:8993", false, "")
	expect("a connection to a former address", "a", "host-x:8993", false, "")

	moved := shardsOf("a=host-x:8993")
	moved.Annotations = object.Annotations
	c.setEndpoints(ctx, moved)
	expect("another address", "a", "host-x:8993", false, "nstance.dev/confirmed-address.a=host-x:8993")
	expect("a connection to the former address", "a", "host-a:8993", false, "")
}
