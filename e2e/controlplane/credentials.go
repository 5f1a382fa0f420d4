// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// certificateLifetime is longer than any cluster that this package starts.
const certificateLifetime = 365 * 24 * time.Hour

// authority is the cluster's certificate authority. It signs the API server's
// and the webhooks' serving certificates and the components' client
// certificates. Its key leaves the program only for the controller manager that signs the
// certificates of kubelets.
type authority struct {
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority creates a certificate authority with its files below dir.
func newAuthority(dir string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "nstance-devcluster"},
		NotBefore:             time.Now().Add(-time.Hour), // for processes whose clock is behind
		NotAfter:              time.Now().Add(certificateLifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the cluster's certificate authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making the cluster's certificate authority: %w", err)
	}
	a := &authority{dir: dir, certificate: certificate, key: key}
	return a, replaceFile(a.caFile(), a.caPEM())
}

func (a *authority) caFile() string { return filepath.Join(a.dir, "ca.crt") }

func (a *authority) caPEM() []byte { return certificatePEM(a.certificate.Raw) }

// serving writes tls.crt and tls.key for a server on this machine, which others reach at
// addresses too, to a folder of its own, which it returns.
func (a *authority) serving(name string, addresses ...net.IP) (string, error) {
	certPEM, keyPEM, err := a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: append([]net.IP{net.IPv4(127, 0, 0, 1)}, addresses...),
	})
	if err != nil {
		return "", fmt.Errorf("issuing the serving certificate of %s: %w", name, err)
	}
	folder := filepath.Join(a.dir, name)
	if err := replaceFile(filepath.Join(folder, "tls.crt"), certPEM); err != nil {
		return "", err
	}
	return folder, replaceFile(filepath.Join(folder, "tls.key"), keyPEM)
}

// client issues a certificate by which the API server authenticates the user and groups.
func (a *authority) client(user string, groups ...string) (certPEM, keyPEM []byte, err error) {
	certPEM, keyPEM, err = a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("issuing the client certificate of %s: %w", user, err)
	}
	return certPEM, keyPEM, nil
}

// issue completes the template and signs it for a new key.
func (a *authority) issue(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template.NotBefore = a.certificate.NotBefore
	template.NotAfter = a.certificate.NotAfter
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = privateKeyPEM(key)
	return certificatePEM(der), keyPEM, err
}

// serviceAccountKeys writes the pair that signs and verifies ServiceAccount
// tokens and returns the two files.
func (a *authority) serviceAccountKeys() (private, public string, err error) {
	key, err := newKey()
	if err != nil {
		return "", "", err
	}
	privatePEM, err := privateKeyPEM(key)
	if err != nil {
		return "", "", err
	}
	publicDER, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", "", err
	}
	private, public = a.serviceAccountKeyFile(), filepath.Join(a.dir, "service-account.pub")
	if err := replaceFile(private, privatePEM); err != nil {
		return "", "", err
	}
	return private, public, replaceFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER}))
}

func (a *authority) serviceAccountKeyFile() string {
	return filepath.Join(a.dir, "service-account.key")
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating a key: %w", err)
	}
	return key, nil
}

func privateKeyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// ServingCertificate issues a certificate for a server on this machine. Every client
// with one of the cluster's kubeconfig files trusts it.
func (cp *ControlPlane) ServingCertificate(name string) (tls.Certificate, error) {
	dir, err := cp.authority.serving(name)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("reading back the serving certificate of %s: %w", name, err)
	}
	return pair, nil
}

// mastersGroup bypasses authorization
// (https://kubernetes.io/docs/concepts/security/rbac-good-practices/).
const mastersGroup = "system:masters"

// Kubeconfig writes a kubeconfig file for a user with administrator rights
// and returns its path. The name identifies the user in the audit log.
func (cp *ControlPlane) Kubeconfig(user string) (string, error) {
	return cp.kubeconfigFor(user, mastersGroup)
}

// KubeconfigWithToken writes a kubeconfig file for the holder of a bearer
// token, for instance of a ServiceAccount, and returns its path.
func (cp *ControlPlane) KubeconfigWithToken(name, token string) (string, error) {
	return cp.KubeconfigThrough(cp.Server(), name, token)
}

// KubeconfigThrough is KubeconfigWithToken with another URL of the API server. The
// server at that URL needs a certificate of ServingCertificate.
func (cp *ControlPlane) KubeconfigThrough(server, name, token string) (string, error) {
	return cp.writeKubeconfig(cp.kubeconfigFile(name), server, name, "", &clientcmdapi.AuthInfo{Token: token})
}

// kubeconfigFor writes a kubeconfig file with a client certificate.
func (cp *ControlPlane) kubeconfigFor(user string, groups ...string) (string, error) {
	info, err := cp.certificateLogin(user, groups...)
	if err != nil {
		return "", err
	}
	return cp.writeKubeconfig(cp.kubeconfigFile(user), cp.Server(), user, "", info)
}

func (cp *ControlPlane) writeAdminKubeconfig(namespace string) error {
	const user = "admin"
	info, err := cp.certificateLogin(user, mastersGroup)
	if err != nil {
		return err
	}
	_, err = cp.writeKubeconfig(cp.KubeconfigPath(), cp.Server(), user, namespace, info)
	return err
}

func (cp *ControlPlane) certificateLogin(user string, groups ...string) (*clientcmdapi.AuthInfo, error) {
	certPEM, keyPEM, err := cp.authority.client(user, groups...)
	if err != nil {
		return nil, err
	}
	return &clientcmdapi.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}, nil
}

func (cp *ControlPlane) kubeconfigFile(user string) string {
	return filepath.Join(cp.dir, "kubeconfigs", user)
}

func (cp *ControlPlane) writeKubeconfig(path, server, user, namespace string, info *clientcmdapi.AuthInfo) (string, error) {
	const name = "devcluster"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   server,
		CertificateAuthorityData: cp.authority.caPEM(),
	}
	config.AuthInfos[user] = info
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user, Namespace: namespace}
	config.CurrentContext = name
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return path, nil
}

// serviceAccountIssuer is the issuer and the audience of the tokens that the API server
// accepts.
const serviceAccountIssuer = "https://kubernetes.default.svc"

// MintToken signs a token of a ServiceAccount as the API server does, with any lifetime. A
// TokenRequest has a minimum of ten minutes
// (https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-request-v1/).
// The API server accepts an expired token for a minute, and for some seconds more while it is
// cached.
func (cp *ControlPlane) MintToken(account *corev1.ServiceAccount, lifetime time.Duration) (string, error) {
	pem, err := os.ReadFile(cp.authority.serviceAccountKeyFile())
	if err != nil {
		return "", fmt.Errorf("reading the key for tokens: %w", err)
	}
	key, err := jwt.ParseECPrivateKeyFromPEM(pem)
	if err != nil {
		return "", fmt.Errorf("reading the key for tokens: %w", err)
	}
	now := time.Now()
	token, err := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
		"iss": serviceAccountIssuer,
		"aud": []string{serviceAccountIssuer},
		"sub": "system:serviceaccount:" + account.Namespace + ":" + account.Name,
		"iat": now.Unix(),
		"nbf": now.Unix(),
		"exp": now.Add(lifetime).Unix(),
		"jti": string(uuid.NewUUID()),
		"kubernetes.io": map[string]any{
			"namespace":      account.Namespace,
			"serviceaccount": map[string]any{"name": account.Name, "uid": account.UID},
		},
	}).SignedString(key)
	if err != nil {
		return "", fmt.Errorf("signing a token of ServiceAccount %s/%s: %w", account.Namespace, account.Name, err)
	}
	return token, nil
}

// Impersonate writes a copy of a kubeconfig with the rights of another user alone, and returns
// its path.
func Impersonate(from, to, user string) (string, error) {
	config, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return "", err
	}
	for _, info := range config.AuthInfos {
		info.Impersonate = user
	}
	return to, clientcmd.WriteToFile(*config, to)
}
