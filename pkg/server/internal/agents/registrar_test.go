// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"crypto/ed25519"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage/file"
)

// newKey returns a key of its own for each seed, and the public part as PEM.
func newKey(t testing.TB, seed byte) (ed25519.PrivateKey, []byte) {
	t.Helper()
	private := ed25519.NewKeyFromSeed([]byte{seed, 31: 0})
	publicPEM, err := keys.EncodePublic(private.Public().(ed25519.PublicKey))
	require.NoError(t, err)
	return private, publicPEM
}

// newRegistrar returns a registrar of shard "a" of cluster "test", and the id of an
// instance of tenant "default". Nonces are signed with key 0.
func newRegistrar(t testing.TB) (*Registrar, string) {
	t.Helper()
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
	c := &config.Config{ClusterID: "test", Shard: config.Shard{ID: "a"}, AgentCertificateTTL: time.Hour}
	wanted, err := groups.Open(t.Context(), nil, c, store)
	require.NoError(t, err)
	cached, err := cache.Open(t.Context(), filepath.Join(t.TempDir(), "cache"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cached.Close() })
	instances, err := instancestore.Open(t.Context(), instancestore.Options{
		Storage: store, Cache: cached, Provider: providertest.NewInstances(), Shard: "a", Clock: clock.RealClock{},
	})
	require.NoError(t, err)
	id, err := puidv7.New("knd")
	require.NoError(t, err)
	require.NoError(t, instances.Add(t.Context(), instance.Record{ID: id.String(), Tenant: "default", Group: "main", CreatedAt: time.Now()}))
	authority, err := pki.NewAuthority("test")
	require.NoError(t, err)
	nonceKey, _ := newKey(t, 0)
	return &Registrar{
		Authority: authority, NonceKey: nonceKey.Public().(ed25519.PublicKey), Instances: instances, Groups: wanted,
		Registered: func(instance.Instance) {},
	}, id.String()
}

// FuzzRegister registers with arbitrary claims that are signed, and with arbitrary
// tokens. Only a nonce of the instance is accepted, and only with the first key.
func FuzzRegister(f *testing.F) {
	r, id := newRegistrar(f)
	nonceKey, _ := newKey(f, 0)
	f.Add("agent", id, "test", "default", "a", int64(60), byte(1), "10.0.0.1", "host", "")
	f.Add("agent", id, "test", "default", "a", int64(60), byte(2), "", "", "a.b.c")
	f.Add("operator", id, "test", "default", "a", int64(60), byte(1), "", "", "")
	f.Add("operator", "test", "test", "default", "", int64(60), byte(1), "", "", "..")
	f.Add("agent", "abc"+id[3:], "test", "default", "a", int64(-60), byte(1), "::1", "a b", "")
	bound := ""
	f.Fuzz(func(t *testing.T, kind, subject, cluster, tenant, shard string, lifetime int64, seed byte, ipv4, hostname, token string) {
		_, keyPEM := newKey(t, seed)
		machine := Machine{IPv4: ipv4, Hostname: hostname}
		if _, err := r.Register(t.Context(), Request{Token: token, PublicKeyPEM: keyPEM}); err == nil {
			t.Errorf("the token %q is accepted", token)
		}
		signed, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
			"kind": kind, "sub": subject, "cluster_id": cluster, "tenant": tenant, "shard": shard, "exp": time.Now().Unix() + lifetime%1000,
		}).SignedString(nonceKey)
		require.NoError(t, err)
		certificate, err := r.Register(t.Context(), Request{Token: signed, PublicKeyPEM: keyPEM, Machine: machine})
		if err != nil {
			return
		}
		if kind != pki.RoleAgent || subject != id || cluster != "test" || tenant != "default" || shard != "a" || lifetime%1000 < 0 {
			t.Errorf("accepted %q", []string{kind, subject, cluster, tenant, shard})
		}
		if bound != "" && bound != string(keyPEM) {
			t.Error("accepted with a second key")
		}
		bound = string(keyPEM)
		if i, _ := r.Instances.Get(id); i.Registration == nil || i.Registration.PublicKeyPEM != string(keyPEM) {
			t.Errorf("the registration is %+v, the certificate for another key", i.Registration)
		}
		if client, err := pki.PeerClient(certificate); err != nil || client != (pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}) {
			t.Errorf("the certificate has %+v, %v", client, err)
		}
	})
}

// TestAnInstanceThatIsBeingDeletedDoesNotRegister, nor is its certificate renewed.
func TestAnInstanceThatIsBeingDeletedDoesNotRegister(t *testing.T) {
	r, id := newRegistrar(t)
	nonceKey, _ := newKey(t, 0)
	_, keyPEM := newKey(t, 1)
	token, err := registration.NewNonceSigner(nonceKey).Agent(registration.AgentNonce{InstanceID: id, ClusterID: "test", Tenant: "default", Shard: "a"})
	require.NoError(t, err)
	certificate, err := r.Register(t.Context(), Request{Token: token, PublicKeyPEM: keyPEM})
	require.NoError(t, err)
	client := pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}
	_, err = r.Renew(t.Context(), client, certificate, keyPEM)
	require.NoError(t, err)
	require.NoError(t, r.Instances.(*instancestore.Store).SetDeleting(t.Context(), id, instance.ReasonExpired))
	_, err = r.Register(t.Context(), Request{Token: token, PublicKeyPEM: keyPEM})
	require.ErrorIs(t, err, registration.ErrInvalidNonce)
	require.ErrorContains(t, err, "is being deleted")
	_, err = r.Renew(t.Context(), client, certificate, keyPEM)
	require.ErrorIs(t, err, ErrInstance)
	// The agent reports until its instance is deleted.
	_, err = r.Admit(t.Context(), client, certificate)
	require.NoError(t, err)
}

// lateInstances do not show a registration before it is to be replaced.
type lateInstances struct{ Instances }

func (l lateInstances) Get(id string) (instance.Instance, bool) {
	i, found := l.Instances.Get(id)
	i.Registration = nil
	return i, found
}

// TestACertificateDoesNotReplaceARegistration that another call has stored meanwhile: a
// certificate only fills in a registration that is lost.
func TestACertificateDoesNotReplaceARegistration(t *testing.T) {
	r, id := newRegistrar(t)
	nonceKey, _ := newKey(t, 0)
	_, keyPEM := newKey(t, 1)
	token, err := registration.NewNonceSigner(nonceKey).Agent(registration.AgentNonce{InstanceID: id, ClusterID: "test", Tenant: "default", Shard: "a"})
	require.NoError(t, err)
	certificate, err := r.Register(t.Context(), Request{Token: token, PublicKeyPEM: keyPEM})
	require.NoError(t, err)
	before, _ := r.Instances.Get(id)

	client := pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}
	otherKey, _ := newKey(t, 2)
	other, err := r.Authority.SignClient(client, otherKey.Public().(ed25519.PublicKey), time.Hour)
	require.NoError(t, err)
	present := r.Instances
	r.Instances = lateInstances{present}
	_, err = r.Admit(t.Context(), client, other)
	require.ErrorIs(t, err, ErrInstance)
	require.ErrorIs(t, err, instancestore.ErrOtherKey)
	_, err = r.Admit(t.Context(), client, certificate)
	require.NoError(t, err)
	after, _ := present.Get(id)
	require.Equal(t, before.Registration, after.Registration)
}
