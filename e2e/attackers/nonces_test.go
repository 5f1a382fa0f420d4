// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage/file"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// elsewhere is the address of a host that is no machine of the cloud.
const elsewhere = "127.0.0.9"

// registerCall is one of the calls of RegistrationService.
type registerCall = func(nstancev1.RegistrationServiceClient, context.Context, *nstancev1.RegisterClientRequest, ...grpc.CallOption) (*nstancev1.RegisterClientResponse, error)

// A nonce gives nobody a certificate but the client that it is for: not a second time, not with
// another key or another role, not from elsewhere, and not after its time.
func TestNonce(t *testing.T) {
	t.Parallel()
	agent, operator := nstancev1.RegistrationServiceClient.RegisterAgent, nstancev1.RegistrationServiceClient.RegisterOperator

	// The nonce of a machine that has registered, and of one that has not.
	_, folder := machineOf(t, victims, "identity/identity.crt")
	used := nonceOf(t, folder)
	_, err := register(t, used, newKey(t), agent)
	expectRefused(t, err, codes.Unauthenticated, "nonce is not valid")
	owner := nstancev1.NewOperatorServiceClient(dial(t, at(machines.operator), issue(t, installation.Tenant, time.Hour)))
	_, err = owner.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: stolen, Config: &nstancev1.GroupConfig{Template: stolen, Size: 1},
	})
	require.NoError(t, err)
	stolenID, folder := machineOf(t, stolen, "userdata")
	unused := nonceOf(t, folder)
	_, err = register(t, unused, newKey(t), operator)
	expectRefused(t, err, codes.Unauthenticated, `kind "agent"`)
	_, err = registerFrom(t, elsewhere, unused, newKey(t), agent)
	expectRefused(t, err, codes.PermissionDenied, "comes from "+elsewhere)
	_, err = register(t, changed(t, unused, func(claims object) { claims["tenant"] = otherTenant }), newKey(t), agent)
	expectRefused(t, err, codes.Unauthenticated, "nonce is not valid")

	// The nonce of an operator.
	nonce, first := adminNonce(t, otherTenant), newKey(t)
	_, err = register(t, nonce, first, agent)
	expectRefused(t, err, codes.Unauthenticated, `kind "operator"`)
	_, err = register(t, nonce, first, operator)
	require.NoError(t, err)
	_, err = register(t, nonce, newKey(t), operator)
	expectRefused(t, err, codes.Unauthenticated, "nonce is not valid")
	// Who has the nonce and the public key of the first client locks it out if that is enough.
	proof := newKey(t)
	_, err = registerWith(t, nonce, first.Public().(ed25519.PublicKey), proof, operator)
	expectRefused(t, err, codes.InvalidArgument, "certificate_request")

	// Nonces with the right signature, as somebody makes who had the key once.
	key := nonceKey(t)
	now := time.Now()
	for name, c := range map[string]struct {
		claims object
		code   codes.Code
		part   string
	}{
		"ten years":       {object{"exp": now.AddDate(10, 0, 0).Unix()}, codes.Unauthenticated, "valid for"},
		"without an end":  {object{"exp": nil}, codes.Unauthenticated, "exp"},
		"expired":         {object{"exp": now.Add(-time.Hour).Unix()}, codes.Unauthenticated, "expired"},
		"another cluster": {object{"cluster_id": "foreign", "sub": "foreign"}, codes.InvalidArgument, "foreign"},
	} {
		claims := object{
			"kind": pki.RoleOperator, "cluster_id": installation.ClusterID, "tenant": otherTenant, "sub": installation.ClusterID,
			"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(), "jti": name,
		}
		for claim, value := range c.claims {
			if claims[claim] = value; value == nil {
				delete(claims, claim)
			}
		}
		_, err := register(t, sign(t, claims, key), newKey(t), operator)
		require.NoError(t, refused(err, c.code, c.part), name)
		_, err = register(t, sign(t, claims, newKey(t)), newKey(t), operator)
		require.NoError(t, refused(err, codes.Unauthenticated, "nonce is not valid"), "%s, with another key", name)
	}

	// After all these attempts, the machine that the nonce is for registers.
	_, err = register(t, unused, newKey(t), agent)
	require.NoError(t, err, "instance %s", stolenID)
}

// nonceOf returns the nonce in the userdata of a machine.
func nonceOf(t *testing.T, folder string) string {
	t.Helper()
	nonce := regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`).FindString(readFile(t, folder, "userdata"))
	require.NotEmpty(t, nonce)
	return nonce
}

// adminNonce returns a new nonce of the operator of a tenant.
func adminNonce(t *testing.T, tenant string) string {
	t.Helper()
	return strings.TrimSpace(env.Admin(t, "cluster", "nonce", "--tenant", tenant))
}

// register registers at the machine shard, from the address of its machines.
func register(t *testing.T, nonce string, key ed25519.PrivateKey, call registerCall) (*nstancev1.RegisterClientResponse, error) {
	t.Helper()
	return registerFrom(t, loopback, nonce, key, call)
}

func registerFrom(t *testing.T, source, nonce string, key ed25519.PrivateKey, call registerCall) (*nstancev1.RegisterClientResponse, error) {
	t.Helper()
	return registerPublic(t, source, nonce, key.Public().(ed25519.PublicKey), key, call)
}

func registerWith(t *testing.T, nonce string, public ed25519.PublicKey, proof ed25519.PrivateKey, call registerCall) (*nstancev1.RegisterClientResponse, error) {
	t.Helper()
	return registerPublic(t, loopback, nonce, public, proof, call)
}

// registerPublic registers a public key at the leader, with a request that proof signs.
func registerPublic(
	t *testing.T, source, nonce string, public ed25519.PublicKey, proof ed25519.PrivateKey, call registerCall,
) (*nstancev1.RegisterClientResponse, error) {
	t.Helper()
	publicPEM, err := keys.EncodePublic(public)
	require.NoError(t, err)
	request, err := keys.NewRequest(proof)
	require.NoError(t, err)
	// Only the leader of the cluster registers operators, and agents register at their shard.
	for _, address := range []string{
		at(machines.registration), shardAddress(t, honestShard+".registration"), shardAddress(t, evilShard+".registration"),
	} {
		connection := dial(t, address, clientConfig(t, nil, nil), from(source))
		response, err := call(nstancev1.NewRegistrationServiceClient(connection), t.Context(), &nstancev1.RegisterClientRequest{
			RegistrationNonceJwt: nonce, PublicKeyPem: publicPEM, CertificateRequest: request.CertificateRequest,
		})
		if status.Code(err) != codes.FailedPrecondition {
			return response, err
		}
	}
	t.Fatal("no server leads the cluster")
	return nil, nil
}

// from has a client connect from an address of this host.
func from(source string) grpc.DialOption {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	})
}

// nonceKey returns the key of nonces, for which one needs the encryption key.
func nonceKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	stored, err := openSecrets()
	require.NoError(t, err)
	store, err := file.Open(env.Installation.Bucket())
	require.NoError(t, err)
	cluster, err := clusterkeys.Load(t.Context(), store, stored)
	require.NoError(t, err)
	// The key is right: with it, a nonce of the product is valid.
	token, err := registration.NewNonceSigner(cluster.Nonce).Operator(registration.OperatorNonce{
		ClusterID: installation.ClusterID, Tenant: otherTenant, Lifetime: time.Hour,
	})
	require.NoError(t, err)
	_, err = register(t, token, newKey(t), nstancev1.RegistrationServiceClient.RegisterOperator)
	require.NoError(t, err)
	return cluster.Nonce
}

// sign returns a JSON web token (https://www.rfc-editor.org/rfc/rfc7519) with claims, and with the
// certificates of a nonce issuer if there are any.
func sign(t *testing.T, claims object, key ed25519.PrivateKey, issuer ...*x509.Certificate) string {
	t.Helper()
	header := object{"alg": "EdDSA", "typ": "JWT"}
	if len(issuer) > 0 {
		var chain []string
		for _, certificate := range issuer {
			chain = append(chain, base64.StdEncoding.EncodeToString(certificate.Raw))
		}
		header["x5c"] = chain
	}
	encode := func(part object) string {
		data, err := json.Marshal(part)
		require.NoError(t, err)
		return base64.RawURLEncoding.EncodeToString(data)
	}
	signed := encode(header) + "." + encode(claims)
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(signed)))
}

// changed returns a nonce with other claims and the same signature.
func changed(t *testing.T, nonce string, change func(object)) string {
	t.Helper()
	parts := strings.Split(nonce, ".")
	require.Len(t, parts, 3)
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	require.NoError(t, err)
	claims := object{}
	require.NoError(t, json.Unmarshal(data, &claims))
	change(claims)
	data, err = json.Marshal(claims)
	require.NoError(t, err)
	return strings.Join([]string{parts[0], base64.RawURLEncoding.EncodeToString(data), parts[2]}, ".")
}
