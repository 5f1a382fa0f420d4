// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package operatorinstall implements nstance-admin operator install: it prints the objects that the
// operator needs before it starts (docs/install.md#install).
package operatorinstall

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/admin/identityfolder"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
)

// issuedAnnotation is on a certificate that the operator renews (docs/certificates.md#identity).
const issuedAnnotation = "nstance.dev/certificate-issued"

// operatorLabel is on the namespace of an operator (docs/install.md#install).
const operatorLabel = "nstance.dev/operator"

// ParseServers returns the addresses of shards of a flag: shard=host:port,...
type ParseServers func(flag string) (map[string]string, error)

// options are the values of the flags.
type options struct {
	identity, servers, namespace string
}

// NewCommand returns the command install.
func NewCommand(parse ParseServers) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "install --identity-dir DIR --servers SHARD=HOST:PORT,...",
		Short: "Print the namespace, ConfigMaps and Secrets of the operator, for kubectl apply -f -",
		Long: "Print the objects that the operator needs before it starts: its namespace, the ConfigMaps with the addresses of the " +
			"shards and their CA, and a Secret with what it registers with.\n\n" +
			"The folder is one of \"cluster init\", with ca.crt and nonce.jwt, or of \"cluster register-operator\", with ca.crt, " +
			"identity.key and identity.crt. The output has the nonce or the key: do not keep it.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			objects, err := o.objects(parse, time.Now())
			if err != nil {
				return err
			}
			text, err := encode(objects)
			if err != nil {
				return err
			}
			_, err = command.OutOrStdout().Write(text)
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.identity, identityfolder.Flag, "", "folder with ca.crt, and nonce.jwt or identity.key and identity.crt (required)")
	flags.StringVar(&o.servers, "servers", "", "addresses for operators, shard=host:port,... (required)")
	flags.StringVar(&o.namespace, "namespace", "nstance-system", "namespace of the operator")
	return command
}

// objects returns the objects, or an error with all mistakes.
func (o *options) objects(parse ParseServers, now time.Time) ([]any, error) {
	var mistakes []error
	add := func(flag string, err error) {
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	if reasons := validation.IsDNS1123Label(o.namespace); len(reasons) > 0 {
		add("namespace", fmt.Errorf("%q must be the name of a namespace: %s", o.namespace, strings.Join(reasons, "; ")))
	}
	shards, err := parse(o.servers)
	add("servers", err)
	var authority []byte
	var secrets []any
	if o.identity == "" {
		add(identityfolder.Flag, errors.New("must be a folder of \"cluster init\" or \"cluster register-operator\""))
	} else {
		authority, err = o.authority()
		add(identityfolder.Flag, err)
		if err == nil {
			secrets, err = o.secrets(now)
			add(identityfolder.Flag, err)
		}
	}
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	return append([]any{
		&corev1.Namespace{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: o.namespace, Labels: map[string]string{
				operatorLabel:                        "true",
				"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted",
			}},
		},
		o.configMap("nstance-shards", shards),
		o.configMap("nstance-cluster-ca", map[string]string{identityfolder.AuthorityFile: string(authority)}),
	}, secrets...), nil
}

func (o *options) configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: o.namespace},
		Data:       data,
	}
}

func (o *options) secret(name string, kind corev1.SecretType, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: o.namespace},
		Type:       kind,
		Data:       data,
	}
}

func (o *options) authority() ([]byte, error) {
	authority, err := os.ReadFile(filepath.Join(o.identity, identityfolder.AuthorityFile))
	if err != nil {
		return nil, err
	}
	if _, err := pki.ParseCertificate(authority); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(o.identity, identityfolder.AuthorityFile), err)
	}
	return authority, nil
}

// secrets returns the Secrets with which the operator registers, or with the certificate of a
// registration.
func (o *options) secrets(now time.Time) ([]any, error) {
	path := filepath.Join(o.identity, identityfolder.NonceFile)
	nonce, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return o.registered(now)
	}
	if err != nil {
		return nil, err
	}
	var claims jwt.RegisteredClaims
	// The error of the parser may contain the nonce. Only servers verify it.
	if _, _, err := jwt.NewParser().ParseUnverified(string(bytes.TrimSpace(nonce)), &claims); err != nil {
		return nil, fmt.Errorf("%s: must be the output of \"cluster nonce\"", path)
	}
	if claims.ExpiresAt != nil && now.After(claims.ExpiresAt.Time) {
		return nil, fmt.Errorf("%s: the nonce expired at %s: make another one with \"cluster nonce\"", path, claims.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return []any{o.secret("nstance-operator-nonce", corev1.SecretTypeOpaque, map[string][]byte{identityfolder.NonceFile: nonce})}, nil
}

// registered returns the Secrets as the operator stores them itself after its registration.
func (o *options) registered(now time.Time) ([]any, error) {
	keyPath, certificatePath := filepath.Join(o.identity, identityfolder.KeyFile), filepath.Join(o.identity, identityfolder.CertificateFile)
	privateKey, err := os.ReadFile(keyPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has neither %s of \"cluster init\" nor %s of \"cluster register-operator\"", o.identity, identityfolder.NonceFile, identityfolder.KeyFile)
	}
	if err != nil {
		return nil, err
	}
	certificate, err := os.ReadFile(certificatePath)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, privateKey)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", certificatePath, keyPath, err)
	}
	if now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("%s: the certificate expired at %s: register again", certificatePath, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	// The client id of an operator is the cluster id (docs/protocol.md#authentication).
	if client := pair.Leaf.Subject.CommonName; client != pair.Leaf.Issuer.CommonName {
		return nil, fmt.Errorf("%s: it is of client %q, and an operator of the cluster is client %q: use a folder of \"cluster init\" or \"cluster register-operator\"",
			certificatePath, client, pair.Leaf.Issuer.CommonName)
	}
	key, err := keys.ParsePrivate(privateKey)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyPath, err)
	}
	publicKey, err := keys.EncodePublic(key.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyPath, err)
	}
	ownKey := o.secret("nstance-operator-key", corev1.SecretTypeOpaque, map[string][]byte{
		"private.key": privateKey, "public.key": publicKey,
	})
	ownKey.Immutable = ptr.To(true)
	ownCertificate := o.secret("nstance-operator-cert", corev1.SecretTypeTLS, map[string][]byte{
		corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: privateKey,
	})
	ownCertificate.Annotations = map[string]string{issuedAnnotation: pair.Leaf.NotBefore.UTC().Format(time.RFC3339Nano)}
	return []any{ownKey, ownCertificate}, nil
}

// encode returns the objects as documents of YAML.
func encode(objects []any) ([]byte, error) {
	var documents [][]byte
	for _, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		// Empty fields that clients of Kubernetes leave out too.
		documents = append(documents, bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("status: {}\n"), nil), []byte("spec: {}\n"), nil))
	}
	return bytes.Join(documents, []byte("---\n")), nil
}
