// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/generated/clientset/versioned/fake"
	"nstance.dev/operator/pkg/generated/informers/externalversions"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/identity"
	"nstance.dev/operator/pkg/operator/shard/informer"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
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
		t.Errorf("calls of %q, want %q", changed, want)
	}
	if got := controllertest.Recorded(recorder); len(got) > 0 {
		t.Errorf("recorded %q", got)
	}
}

func TestInvalidEntryKeepsTheLastEndpointAndIsRecordedOnce(t *testing.T) {
	c, recorder, ctx := startConfiguration(t)
	c.lead()
	c.setEndpoints(ctx, shardsOf("a=host-a:8993", "b=host-b:8993"))
	bad := shardsOf("a=nowhere", "b=host-b:8993", "c=host-c:8993")
	c.setEndpoints(ctx, bad)
	expectShards(t, c, "a", "b", "c")
	if got := c.endpoints["a"].Operator; got != "host-a:8993" {
		t.Errorf("shard a is at %q", got)
	}
	// Neither a resync nor an unrelated update is recorded.
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

func TestEntryThatWasNeverValidIsNoShard(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	c.setEndpoints(ctx, shardsOf("a=nowhere", "b=host-b:8993"))
	expectShards(t, c, "b")
}

// Only a leader writes to the API server.
func TestStandbyRecordsTheProblemWhenItLeads(t *testing.T) {
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

// The groups of a shard with an invalid endpoint are unknown. They must not count as missing.
func TestShardsWithoutAReadableEndpointAreConfigured(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	calls := 0
	c.AddHandler(func(string) {
		calls++
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
	if calls != 2 {
		t.Errorf("handlers were called %d times about new shards, want 2", calls)
	}
	c.setEndpoints(ctx, nil)
	if got, want := c.Shards(), []string{"b"}; !slices.Equal(got, want) {
		t.Errorf("without the ConfigMap the shards are %q, want %q", got, want)
	}
}

func TestErrorOfAShardIsRecordedForItsConfigMap(t *testing.T) {
	c, recorder, ctx := startConfiguration(t)
	c.errorReported("a", shard.ErrorEvent{Message: "configuration a.jsonc: unknown key"})
	c.setEndpoints(ctx, shardsOf("a=host-a:8993"))
	c.errorReported("a", shard.ErrorEvent{Message: "configuration a.jsonc: unknown key"})
	want := []string{"Warning ShardError a: configuration a.jsonc: unknown key"}
	if got := controllertest.Recorded(recorder); !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

// The annotation alone may be set, and must not remain valid for another address.
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
	expect("without the annotation", "a", "host-a:8993", false, "the annotation nstance.dev/confirm-address.a=host-a:8993 of the ConfigMap nstance-shards")

	object = object.DeepCopy()
	object.Annotations = map[string]string{"nstance.dev/confirm-address.a": "host-a:8993"}
	c.setEndpoints(ctx, object)
	expect("with the annotation alone", "a", "host-a:8993", true, "")
	expect("another shard", "b", "host-b:8993", false, "")
	expect("a connection to a former address", "a", "host-x:8993", false, "")

	moved := shardsOf("a=host-x:8993")
	moved.Annotations = object.Annotations
	c.setEndpoints(ctx, moved)
	expect("another address", "a", "host-x:8993", false, "nstance.dev/confirm-address.a=host-x:8993")
	expect("a connection to the former address", "a", "host-a:8993", false, "")
}

// issuer creates the objects with the operator's identity.
type issuer struct {
	t         *testing.T
	authority *pki.Authority
}

func newIssuer(t *testing.T) issuer {
	t.Helper()
	return issuer{t, pkitest.NewAuthority(t)}
}

func (i issuer) ca() *corev1.ConfigMap {
	return &corev1.ConfigMap{Data: map[string]string{caKey: string(i.authority.CertificatePEM())}}
}

// cert returns a client certificate for the name id.
func (i issuer) cert(id string) *corev1.Secret {
	i.t.Helper()
	cert, key := pkitest.Operator(i.t, i.authority, id, "default")
	return &corev1.Secret{Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}}
}

// clientOf returns the name in the client certificate that a server of this issuer receives,
// "" if the handshake fails.
func (i issuer) clientOf(c *configuration) string {
	i.t.Helper()
	config := pki.NewServing(i.authority, pki.Names{Hosts: []string{"127.0.0.1"}}).Config()
	config.ClientAuth = tls.RequireAnyClientCert
	address, clients := pkitest.Listen(i.t, config)
	conn, err := net.Dial("tcp", address)
	require.NoError(i.t, err)
	defer func() { _ = conn.Close() }()
	if _, _, err := c.identity.Credentials("prod")("a").ClientHandshake(i.t.Context(), address, conn); err != nil {
		return ""
	}
	return <-clients
}

func TestIdentityFollowsTheCertificate(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	issuer := newIssuer(t)
	c.setCert(ctx, issuer.cert("first"))
	if got := issuer.clientOf(c); got != "" {
		t.Errorf("without a CA the server saw %q", got)
	}
	c.setCA(ctx, issuer.ca())
	if got := issuer.clientOf(c); got != "first" {
		t.Errorf("the server saw %q", got)
	}
	c.setCert(ctx, issuer.cert("second"))
	if got := issuer.clientOf(c); got != "second" {
		t.Errorf("after the rotation the server saw %q", got)
	}
}

func TestIdentityStaysWhenItsObjectsAreMissingOrInvalid(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	issuer := newIssuer(t)
	c.setCA(ctx, issuer.ca())
	c.setCert(ctx, issuer.cert("first"))
	mixed := issuer.cert("mixed")
	mixed.Data[corev1.TLSCertKey] = issuer.cert("other").Data[corev1.TLSCertKey]
	for name, change := range map[string]func(){
		"the Secret was deleted":                 func() { c.setCert(ctx, nil) },
		"the ConfigMap was deleted":              func() { c.setCA(ctx, nil) },
		"the Secret is empty":                    func() { c.setCert(ctx, &corev1.Secret{}) },
		"the ConfigMap is empty":                 func() { c.setCA(ctx, &corev1.ConfigMap{}) },
		"the key belongs to another certificate": func() { c.setCert(ctx, mixed) },
		"the certificate is not one": func() {
			c.setCert(ctx, &corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("x"), "tls.key": []byte("y")}})
		},
	} {
		change()
		if got := issuer.clientOf(c); got != "first" {
			t.Errorf("%s: the server saw %q", name, got)
		}
	}
	// An object that was missing for a while does not prevent a later rotation.
	c.setCA(ctx, &corev1.ConfigMap{})
	c.setCert(ctx, issuer.cert("second"))
	if got := issuer.clientOf(c); got != "second" {
		t.Errorf("the server saw %q", got)
	}
}

func TestIdentityFollowsTheCA(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	before, after := newIssuer(t), newIssuer(t)
	c.setCA(ctx, before.ca())
	c.setCert(ctx, before.cert("client"))
	if got := after.clientOf(c); got != "" {
		t.Errorf("a server of another CA saw %q", got)
	}
	c.setCA(ctx, after.ca())
	if got := after.clientOf(c); got != "client" {
		t.Errorf("a server of the new CA saw %q", got)
	}
}

func TestKnownInstancesAreThoseOfTheObjects(t *testing.T) {
	const namespace = "nstance-system"
	shardGroup := func(group, shard string, ids ...string) *v1beta1.NstanceShardGroup {
		object := &v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1beta1.ShardGroupName(group, shard)}}
		object.Spec.Shard, object.Status.ProviderIDs = v1beta1.Identifier(shard), ids
		return object
	}
	machine := func(name string, change func(*v1beta1.NstanceMachine)) *v1beta1.NstanceMachine {
		object := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		change(object)
		return object
	}
	onDemand := func(m *v1beta1.NstanceMachine) {
		m.Status.Shard, m.Status.RequestID, m.Status.InstanceID = "a", "request", "i-"+m.Name
	}
	nstance := externalversions.NewSharedInformerFactory(fake.NewClientset(), 0).Infrastructure().V1beta1()
	for _, object := range []runtime.Object{
		shardGroup("workers", "a", "a1", "a2"), shardGroup("others", "a", "a3"), shardGroup("workers", "b", "b1"), shardGroup("workers", "c"),
	} {
		require.NoError(t, nstance.NstanceShardGroups().Informer().GetIndexer().Add(object))
	}
	for _, object := range []runtime.Object{
		machine("requested", onDemand),
		machine("deleted", func(m *v1beta1.NstanceMachine) {
			onDemand(m)
			m.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionServerDeleted, Status: metav1.ConditionTrue}}
		}),
		machine("restored", func(m *v1beta1.NstanceMachine) {
			m.Annotations = map[string]string{v1beta1.AnnotationRequest: "b/request", v1beta1.AnnotationInstanceID: "i-restored"}
		}),
		machine("of-a-pool", func(m *v1beta1.NstanceMachine) { m.Spec.Shard = "b" }),
		machine("not-requested", func(*v1beta1.NstanceMachine) {}),
	} {
		require.NoError(t, nstance.NstanceMachines().Informer().GetIndexer().Add(object))
	}
	got := knownInstances(nstance, namespace)()
	for id, known := range got {
		slices.Sort(known.ProviderIDs)
		got[id] = known
	}
	assert.Equal(t, map[string]informer.Known{
		"a": {ProviderIDs: []string{"a1", "a2", "a3"}, OnDemand: []string{"i-requested"}},
		"b": {ProviderIDs: []string{"b1"}, OnDemand: []string{"i-restored"}},
		"c": {},
	}, got)
}
