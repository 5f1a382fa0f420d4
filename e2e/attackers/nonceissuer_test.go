// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// issuerName is a nonce issuer that an attacker controls, and issuedTenant its only tenant.
	issuerName, issuedTenant = "crooked", "issued"
)

// A holder of the key of a nonce issuer, and of the bucket, lets operators of its tenants register, which the
// audit log shows, and nothing else: no operator of another tenant, no agent, no other issuer, and
// nothing after the issuer was revoked.
func TestNonceIssuer(t *testing.T) {
	t.Parallel()
	expectAlive(t, machines.component)
	encryptionKey := bytes.Repeat([]byte{7}, 32)
	keyFile := filepath.Join(t.TempDir(), "issuer.key")
	require.NoError(t, os.WriteFile(keyFile, encryptionKey, 0o600))
	env.Admin(t, "nonce-issuer", "create", issuerName, "--tenant", issuedTenant, "--expiry", "24h",
		"--key-provider", "file", "--key", env.Installation.EncryptionKeyFile(), "--issuer-key-provider", "file", "--issuer-key", keyFile)
	operator, agent := nstancev1.RegistrationServiceClient.RegisterOperator, nstancev1.RegistrationServiceClient.RegisterAgent

	// What it has by right.
	nonce, err := asIssuer(t, keyFile, "cluster", "nonce", "--tenant", issuedTenant)
	require.NoError(t, err)
	key := newKey(t)
	response, err := register(t, nonce, key, operator)
	require.NoError(t, err)
	keyPEM, err := keys.EncodePrivate(key)
	require.NoError(t, err)
	client := nstancev1.NewOperatorServiceClient(dial(t, at(machines.operator), clientConfig(t, response.GetClientCertificatePem(), keyPEM)))
	groups, err := client.ListGroups(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	assert.Empty(t, groups.GetGroups(), "groups of a tenant that has none")

	// The commands refuse more.
	victim, _ := machineOf(t, victims, "identity/identity.crt")
	_, err = asIssuer(t, keyFile, "cluster", "nonce", "--tenant", installation.Tenant)
	require.ErrorContains(t, err, "may not make nonces of tenant")
	_, err = asIssuer(t, keyFile, "agent", "nonce", "--tenant", installation.Tenant, "--shard", machineShard, "--instance", victim)
	require.ErrorContains(t, err, "may not make nonces for role")
	unused, err := asIssuer(t, keyFile, "cluster", "nonce", "--tenant", issuedTenant)
	require.NoError(t, err)

	// The key opens no other secret.
	store, err := file.Open(env.Installation.Bucket())
	require.NoError(t, err)
	opened, err := secrets.New(store, encryptionKey)
	require.NoError(t, err)
	for _, name := range []string{storage.AuthoritySecret, storage.NonceSecret, "victim"} {
		_, err := opened.Get(t.Context(), name)
		require.ErrorContains(t, err, "encrypted with none of the 1 keys", name)
	}

	// Servers refuse what the commands would not make. A nonce of the issuer's tenant that no command has
	// made is in the audit log as soon as it is used.
	issuer := readIssuer(t, store, opened)
	forged, forgedKey := issuer.issue(t, installation.Tenant)
	foreign, foreignKey := foreignIssuer(t)
	now := time.Now()
	for name, c := range map[string]struct {
		claims object
		key    ed25519.PrivateKey
		chain  []*x509.Certificate
		call   registerCall
		code   codes.Code
		part   string
	}{
		"another tenant":          {claims: object{"tenant": installation.Tenant}, part: "may not make nonces of tenant"},
		"all tenants":             {claims: object{"tenant": pki.AllTenants}, part: "may not make nonces of tenant"},
		"an agent":                {claims: object{"kind": pki.RoleAgent, "sub": victim, "shard": machineShard}, call: agent, part: "may not make nonces for role"},
		"ten years":               {claims: object{"exp": now.AddDate(10, 0, 0).Unix()}, part: "valid for"},
		"another cluster":         {claims: object{"cluster_id": "foreign", "sub": "foreign"}, code: codes.InvalidArgument, part: "foreign"},
		"another key":             {key: newKey(t), part: "nonce is not valid"},
		"an issuer of the issuer": {claims: object{"tenant": installation.Tenant}, key: forgedKey, chain: []*x509.Certificate{forged}, part: "verify the certificate of the nonce issuer"},
		"both certificates":       {claims: object{"tenant": installation.Tenant}, key: forgedKey, chain: []*x509.Certificate{forged, issuer.certificate}, part: "a list with one certificate"},
		"an issuer of another CA": {claims: object{"tenant": installation.Tenant}, key: foreignKey, chain: []*x509.Certificate{foreign}, part: "verify the certificate of the nonce issuer"},
		"the key of the issuer is not the key of the cluster": {chain: []*x509.Certificate{}, part: "nonce is not valid"},
	} {
		claims := object{
			"kind": pki.RoleOperator, "cluster_id": installation.ClusterID, "tenant": issuedTenant, "sub": installation.ClusterID,
			"iat": now.Unix(), "exp": now.Add(time.Minute).Unix(), "jti": name,
		}
		for claim, value := range c.claims {
			claims[claim] = value
		}
		if c.key == nil {
			c.key = issuer.key
		}
		if c.chain == nil {
			c.chain = []*x509.Certificate{issuer.certificate}
		}
		if c.call == nil {
			c.call = operator
		}
		if c.code == codes.OK {
			c.code = codes.Unauthenticated
		}
		_, err := register(t, sign(t, claims, c.key, c.chain...), newKey(t), c.call)
		require.NoError(t, refused(err, c.code, c.part), name)
	}
	within := object{
		"kind": pki.RoleOperator, "cluster_id": installation.ClusterID, "tenant": issuedTenant, "sub": installation.ClusterID,
		"iat": now.Unix(), "exp": now.Add(30 * time.Minute).Unix(), "jti": "unseen",
	}
	_, err = register(t, sign(t, within, issuer.key, issuer.certificate), newKey(t), operator)
	require.NoError(t, err)
	assert.Len(t, registrationsBy(t, store, issuerName), 2, "registrations in the audit log")

	// A certificate that a writer of the bucket adds to the record is still of no authority.
	before := issuer.record(t, store)
	_, err = register(t, sign(t, within, forgedKey, forged), newKey(t), operator)
	require.NoError(t, refused(err, codes.Unauthenticated, "verify the certificate of the nonce issuer"))
	require.NoError(t, os.WriteFile(bucketObject(storage.NonceIssuerKey(issuerName)), before, 0o600))

	// The certificate is none of a client.
	certPEM := pki.EncodeCertificate(issuer.certificate)
	keyPEM, err = keys.EncodePrivate(issuer.key)
	require.NoError(t, err)
	for _, port := range []int{machines.operator, machines.agent} {
		_, err := nstancev1.NewOperatorServiceClient(dial(t, at(port), clientConfig(t, certPEM, keyPEM))).ListGroups(t.Context(), &emptypb.Empty{})
		require.NoError(t, refused(err, codes.Unavailable), "the certificate of the issuer as one of a client")
	}

	env.Admin(t, "nonce-issuer", "revoke", issuerName, "--all")
	_, err = register(t, unused, newKey(t), operator)
	expectRefused(t, err, codes.Unauthenticated, "was revoked")
	_, err = asIssuer(t, keyFile, "cluster", "nonce", "--tenant", issuedTenant)
	require.ErrorContains(t, err, "has no certificate that is accepted")
}

// asIssuer runs nstance-admin with the bucket and the key of the issuer, and without the encryption
// key of the cluster.
func asIssuer(t *testing.T, keyFile string, args ...string) (string, error) {
	t.Helper()
	command := admin.NewCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	command.SetErr(t.Output()) // notes, such as about a tenant without groups
	command.SetArgs(slices.Concat(args, []string{
		"--nonce-issuer", issuerName, "--storage", "file", "--storage-bucket", env.Installation.Bucket(), "--key-provider", "file", "--key", keyFile,
	}))
	err := command.ExecuteContext(t.Context())
	return strings.TrimSpace(output.String()), err
}

// stolenIssuer is what the key of an issuer opens.
type stolenIssuer struct {
	certificate *x509.Certificate
	key         ed25519.PrivateKey
	// others are certificates that the issuer has signed itself.
	others []*x509.Certificate
}

func readIssuer(t *testing.T, store storage.Store, opened secrets.Store) *stolenIssuer {
	t.Helper()
	record, err := registration.ReadNonceIssuer(t.Context(), store, issuerName)
	require.NoError(t, err)
	require.Len(t, record.Certificates, 1)
	certificate, err := pki.ParseCertificate([]byte(record.Certificates[0].CertificatePEM))
	require.NoError(t, err)
	keyPEM, err := opened.Get(t.Context(), storage.NonceIssuerSecret(issuerName, record.Certificates[0].Serial))
	require.NoError(t, err)
	key, err := keys.ParsePrivate(keyPEM)
	require.NoError(t, err)
	return &stolenIssuer{certificate: certificate, key: key}
}

// issue signs the certificate of an issuer for another tenant.
func (i *stolenIssuer) issue(t *testing.T, tenant string) (*x509.Certificate, ed25519.PrivateKey) {
	t.Helper()
	template := *i.certificate
	template.RawSubject, template.Subject.Organization, template.Subject.Names = nil, []string{tenant}, nil
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &template, i.certificate, key.Public(), i.key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	i.others = append(i.others, certificate)
	return certificate, key
}

// record adds the certificates that the issuer has signed itself to its record in the bucket, and
// returns the record as it was.
func (i *stolenIssuer) record(t *testing.T, store storage.Store) (before []byte) {
	t.Helper()
	object, err := store.Get(t.Context(), storage.NonceIssuerKey(issuerName))
	require.NoError(t, err)
	var record registration.NonceIssuerRecord
	require.NoError(t, json.Unmarshal(object.Data, &record))
	for _, other := range i.others {
		record.Certificates = append(record.Certificates, registration.NonceIssuerCertificate{
			Serial: other.SerialNumber.Text(16), CertificatePEM: string(pki.EncodeCertificate(other)),
			Authority: record.Certificates[0].Authority, ExpiresAt: other.NotAfter,
		})
	}
	data, err := json.Marshal(record)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bucketObject(storage.NonceIssuerKey(issuerName)), data, 0o600))
	return object.Data
}

// foreignIssuer is an issuer of another cluster with the same name, for all tenants.
func foreignIssuer(t *testing.T) (*x509.Certificate, ed25519.PrivateKey) {
	t.Helper()
	authority, err := pki.NewAuthority(installation.ClusterID)
	require.NoError(t, err)
	certificate, key, err := registration.NewNonceIssuer(authority, pki.NonceIssuer{
		Name: issuerName, Tenants: []string{pki.AllTenants}, Roles: []string{pki.RoleOperator},
	}, time.Hour)
	require.NoError(t, err)
	return certificate, key
}

// registrationsBy returns the entries of the audit log about certificates for nonces of an issuer.
func registrationsBy(t *testing.T, store storage.Store, issuer string) []auditlog.Entry {
	t.Helper()
	infos, err := store.List(t.Context(), "audit-log/"+storage.ClusterAuditLog+"/")
	require.NoError(t, err)
	var found []auditlog.Entry
	for _, info := range infos {
		object, err := store.Get(t.Context(), info.Key)
		require.NoError(t, err)
		var entry auditlog.Entry
		require.NoError(t, json.Unmarshal(object.Data, &entry))
		if entry.Reason == "registration, nonce issuer "+issuer {
			assert.Equal(t, issuedTenant, entry.Tenant, info.Key)
			found = append(found, entry)
		}
	}
	return found
}
