// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/auditlog"
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
	"nstance.dev/operator/pkg/server/storage/storagetest"
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
	return newRegistrarWith(t, providertest.NewInstances())
}

// newRegistrarWith is like newRegistrar with the instances of a provider.
func newRegistrarWith(t testing.TB, provider *providertest.Instances) (*Registrar, string) {
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
		Storage: store, Cache: cached, Provider: provider, Shard: "a", Clock: clock.RealClock{},
	})
	require.NoError(t, err)
	id, err := puidv7.New("knd")
	require.NoError(t, err)
	require.NoError(t, instances.Add(t.Context(), instance.Record{ID: id.String(), Tenant: "default", Group: "main", CreatedAt: time.Now()}))
	authority, err := pki.NewAuthority("test")
	require.NoError(t, err)
	nonceKey, _ := newKey(t, 0)
	return &Registrar{
		Authority: authority, Instances: instances, Groups: wanted,
		Nonces:   &registration.NonceVerifier{Key: nonceKey.Public().(ed25519.PublicKey), Authority: authority, Store: store},
		AuditLog: auditlog.Log{Store: store, Scope: "a"},
		Revoked: func(ctx context.Context) (*registration.RevokedAgents, error) {
			return registration.ReadRevokedAgents(ctx, store, "a")
		},
		Registered: func(instance.Instance) {},
		Refused:    func(string, string) {},
		Refresh:    func(string) {},
		Failed:     func(instance.GroupKey, string, error) {},
	}, id.String()
}

// newNonce returns a nonce of an instance of newRegistrar.
func newNonce(t testing.TB, id string) string {
	t.Helper()
	nonceKey, _ := newKey(t, 0)
	token, err := registration.NewNonceSigner(nonceKey).Agent(registration.AgentNonce{InstanceID: id, ClusterID: "test", Tenant: "default", Shard: "a"})
	require.NoError(t, err)
	return token
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
		r.limits = auditlog.Limits{} // of all inputs together
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
	token := newNonce(t, id)
	_, keyPEM := newKey(t, 1)
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

// TestWhyAnAgentIsRefused: the reason is recorded for the instance whose nonce the caller has, and
// for nobody who has no nonce, or whose agent has registered.
func TestWhyAnAgentIsRefused(t *testing.T) {
	r, id := newRegistrar(t)
	var refused []string
	r.Refused = func(id, reason string) { refused = append(refused, id+": "+reason) }
	nonceKey, keyPEM := newKey(t, 0)
	otherKey, _ := newKey(t, 9)
	sign := func(key ed25519.PrivateKey, subject string, expires time.Time) string {
		signed, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
			"kind": "agent", "sub": subject, "cluster_id": "test", "tenant": "default", "shard": "a", "exp": expires.Unix(),
		}).SignedString(key)
		require.NoError(t, err)
		return signed
	}
	past, future := time.Unix(1700000000, 0), time.Now().Add(time.Minute)
	for _, test := range []struct {
		name, token string
		key         []byte
		want        []string
	}{
		{"an expired nonce", sign(nonceKey, id, past), keyPEM, []string{id + ": registration nonce is not valid: it expired at 2023-11-14T22:13:20Z"}},
		{"a key that is none", sign(nonceKey, id, future), []byte("x"), []string{id + ": " + registration.ErrPublicKey.Error()}},
		{"an expired nonce that nobody has signed", sign(otherKey, id, past), keyPEM, nil},
		{"a nonce that nobody has signed", sign(otherKey, id, future), keyPEM, nil},
		{"an instance that is not there", sign(nonceKey, "knd"+id[3:20]+"0000000000", past), keyPEM, nil},
	} {
		refused = nil
		_, err := r.Register(t.Context(), Request{Token: test.token, PublicKeyPEM: test.key})
		require.Error(t, err, test.name)
		require.Len(t, refused, len(test.want), test.name)
		for n := range test.want {
			require.True(t, strings.HasPrefix(refused[n], test.want[n]), "%s: %s", test.name, refused[n])
		}
	}
	_, err := r.Register(t.Context(), Request{Token: newNonce(t, id), PublicKeyPEM: keyPEM})
	require.NoError(t, err)
	refused = nil
	_, err = r.Register(t.Context(), Request{Token: sign(nonceKey, id, past), PublicKeyPEM: keyPEM})
	require.Error(t, err)
	require.Empty(t, refused, "its agent has registered")
}

// The audit log has each certificate of an agent, and no certificate is issued without an entry.
func TestEachCertificateIsInTheAuditLog(t *testing.T) {
	r, id := newRegistrar(t)
	token := newNonce(t, id)
	_, keyPEM := newKey(t, 1)
	log := audittest.NewLog()
	expect := func(certificate *x509.Certificate, reason string) {
		t.Helper()
		log.Expect(t, fmt.Sprintf("Audit: issue certificate instance=%s kind=Certificate name=%x to=valid until %s reason=%s result=accepted",
			id, certificate.SerialNumber, certificate.NotAfter.Format(time.RFC3339), reason))
	}
	certificate, err := r.Register(log.Context(t.Context()), Request{Token: token, PublicKeyPEM: keyPEM})
	require.NoError(t, err)
	expect(certificate, "registration")
	renewed, err := r.Renew(log.Context(t.Context()), pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}, certificate, keyPEM)
	require.NoError(t, err)
	expect(renewed, "renewal")
	infos, err := r.AuditLog.Store.List(t.Context(), "audit-log/a/")
	require.NoError(t, err)
	require.Len(t, infos, 2)
	object, err := r.AuditLog.Store.Get(t.Context(), infos[0].Key)
	require.NoError(t, err)
	var entry auditlog.Entry
	require.NoError(t, json.Unmarshal(object.Data, &entry))
	require.Equal(t, auditlog.Entry{
		At: entry.At, Action: audit.IssueCertificate, Name: certificate.SerialNumber.Text(16), Tenant: "default", Instance: id,
		ExpiresAt: certificate.NotAfter, Reason: "registration",
	}, entry)

	failure := errors.New("no space left on device")
	r.AuditLog.Store = storagetest.Intercepted{Intercept: func(context.Context, storagetest.Call, func(context.Context) error) error { return failure }}
	_, err = r.Renew(t.Context(), pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}, certificate, keyPEM)
	require.ErrorIs(t, err, failure)
}

// An agent that asks for many certificates waits: the storage has an object for each.
func TestManyCertificatesOfAnAgent(t *testing.T) {
	r, id := newRegistrar(t)
	token := newNonce(t, id)
	_, keyPEM := newKey(t, 1)
	var err error
	for count := 0; err == nil; count++ {
		require.Less(t, count, 1000, "there is no limit")
		_, err = r.Register(t.Context(), Request{Token: token, PublicKeyPEM: keyPEM})
	}
	require.ErrorIs(t, err, auditlog.ErrTooMany)
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
	token := newNonce(t, id)
	_, keyPEM := newKey(t, 1)
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
