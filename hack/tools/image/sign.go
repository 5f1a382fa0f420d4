// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The form of signatures in a registry is cosign's
// (https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md).
const (
	// payloadType is the media type of a layer with what is signed, signatureAnnotation the annotation of
	// the layer with the signature, and claimType the type of what is signed.
	payloadType         types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation                 = "dev.cosignproject.cosign/signature"
	claimType                           = "cosign container image signature"
)

// claim is what is signed: that a repository has a digest.
type claim struct {
	Critical struct {
		Identity struct {
			Repository string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]string `json:"optional"`
}

// signer signs with a key of the curve P-256, as cosign does by default.
type signer struct{ key *ecdsa.PrivateKey }

// openSigner reads a key in PEM, as "openssl genpkey" or "openssl ecparam -genkey" writes it.
func openSigner(path string) (*signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		var parsed any
		switch block.Type {
		case "EC PRIVATE KEY":
			parsed, err = x509.ParseECPrivateKey(block.Bytes)
		case "PRIVATE KEY":
			parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		default: // such as the parameters of the curve
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("parse the key in %s: %w", path, err)
		}
		key, ok := parsed.(*ecdsa.PrivateKey)
		if !ok || key.Curve != elliptic.P256() {
			return nil, fmt.Errorf("the key in %s must be of the curve P-256", path)
		}
		return &signer{key: key}, nil
	}
	return nil, fmt.Errorf("%s has no private key in PEM without a password", path)
}

// sign returns the signature of data in base64, which is the same each time
// (https://www.rfc-editor.org/rfc/rfc6979).
func (s *signer) sign(data []byte) (string, error) {
	digest := sha256.Sum256(data)
	signature, err := s.key.Sign(nil, digest[:], crypto.SHA256)
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(signature), nil
}

// runSign prints the signature of a file.
func runSign(args []string, out io.Writer) error {
	var key string
	flags := flag.NewFlagSet("sign", flag.ContinueOnError)
	flags.StringVar(&key, "key", "", "file with the private key of the curve P-256")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if key == "" || flags.NArg() != 1 {
		return errors.New("-key and a file are mandatory")
	}
	s, err := openSigner(key)
	if err != nil {
		return fmt.Errorf("-key: %w", err)
	}
	data, err := os.ReadFile(flags.Arg(0))
	if err != nil {
		return err
	}
	signature, err := s.sign(data)
	if err != nil {
		return fmt.Errorf("sign %s: %w", flags.Arg(0), err)
	}
	_, err = fmt.Fprintln(out, signature)
	return err
}

// signatureTag is the tag with the signatures of a digest.
func signatureTag(repository name.Repository, digest v1.Hash) name.Tag {
	return repository.Tag(digest.Algorithm + "-" + digest.Hex + ".sig")
}

// push pushes the signature of what a repository has, beside the signatures of others.
func (s *signer) push(repository name.Repository, digest v1.Hash, options ...remote.Option) error {
	var c claim
	c.Critical.Identity.Repository, c.Critical.Image.Digest, c.Critical.Type = repository.Name(), digest.String(), claimType
	payload, err := json.Marshal(c)
	if err != nil {
		return err
	}
	signature, err := s.sign(payload)
	if err != nil {
		return err
	}
	tag := signatureTag(repository, digest)
	present, err := remote.Image(tag, options...)
	if isNotFound(err) {
		present, err = mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), nil
	}
	if err != nil {
		return err
	}
	manifest, err := present.Manifest()
	if err != nil {
		return err
	}
	for _, layer := range manifest.Layers {
		if layer.Annotations[signatureAnnotation] == signature {
			return nil
		}
	}
	signed, err := mutate.Append(present, mutate.Addendum{
		Layer: static.NewLayer(payload, payloadType), MediaType: payloadType, Annotations: map[string]string{signatureAnnotation: signature},
	})
	if err != nil {
		return err
	}
	return remote.Write(tag, signed, options...)
}
