// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package files

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/internal/atomicfile"
	"nstance.dev/operator/pkg/agent/internal/identity"
	"nstance.dev/operator/pkg/agent/internal/retry"
	"nstance.dev/operator/pkg/base/keys"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Extensions of the files of a key pair.
const (
	privateExtension = ".key"
	publicExtension  = ".pub"
)

// KeyStore creates key pairs in a folder. The private keys stay on the machine.
type KeyStore struct {
	folder string
	mode   fs.FileMode
}

// OpenKeys returns the store in a folder. It creates a missing folder.
func OpenKeys(folder string, mode fs.FileMode) (*KeyStore, error) {
	if err := atomicfile.MakeFolder(folder, mode); err != nil {
		return nil, err
	}
	if err := atomicfile.RemoveTemporary(folder); err != nil {
		return nil, err
	}
	return &KeyStore{folder: folder, mode: mode}, nil
}

// PublicKey returns the public key of a name, PKIX in base64 without PEM armour, as servers
// expect it. It creates a missing key pair. A missing public key file is written again from
// the private key.
func (s *KeyStore) PublicKey(name string) ([]byte, error) {
	if err := validateBaseName(name); err != nil {
		return nil, err
	}
	private, err := s.private(name)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", name, err)
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, fmt.Errorf("key %s: encode the public key: %w", name, err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	path := filepath.Join(s.folder, name+publicExtension)
	if present, err := os.ReadFile(path); err != nil || string(present) != string(publicPEM) {
		if err := atomicfile.Write(path, publicPEM, s.mode); err != nil {
			return nil, fmt.Errorf("key %s: %w", name, err)
		}
	}
	return []byte(base64.StdEncoding.EncodeToString(der)), nil
}

// private returns the private key of a name. It creates a missing key.
func (s *KeyStore) private(name string) (crypto.Signer, error) {
	path := filepath.Join(s.folder, name+privateExtension)
	data, err := os.ReadFile(path)
	if err == nil {
		return parseKey(data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create it: %w", err)
	}
	if data, err = keys.EncodePrivate(key); err != nil {
		return nil, fmt.Errorf("encode it: %w", err)
	}
	return key, atomicfile.Write(path, data, s.mode)
}

// parseKey parses a private key of any type: another program may have written it. The error
// contains no part of it.
func parseKey(data []byte) (crypto.Signer, error) {
	der, err := keys.DecodeBlock(data, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.New("the private key is not PKCS #8")
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the private key is %T, which cannot sign", parsed)
	}
	return signer, nil
}

const (
	submitTimeout = 10 * time.Second
	// maxKeys is the maximum number of keys of one request.
	maxKeys = 100
	// maxError is the maximum length, in bytes, of the reason why there is no key of a name.
	maxError = 200
)

// KeyCreator creates the key pairs that the server requests, and sends the public keys.
type KeyCreator struct {
	Connection *identity.Connection
	Store      *KeyStore
	InstanceID string
}

// Run serves requests until ctx is done.
func (c *KeyCreator) Run(ctx context.Context) {
	retry.Loop(ctx, "Creating keys", c.serve)
}

// serve serves the requests of one stream. The server repeats a request whose public keys it
// did not receive.
func (c *KeyCreator) serve(ctx context.Context) error {
	conn := c.Connection.Acquire()
	defer conn.Release()
	ctx, cancel := conn.UntilReplaced(ctx)
	defer cancel()
	stream, err := conn.ReceiveKeyRequests(ctx, &emptypb.Empty{})
	if err != nil {
		return identity.StreamError(ctx, err)
	}
	for {
		request, err := stream.Recv()
		if err != nil {
			return identity.StreamError(ctx, err)
		}
		if err := c.answer(ctx, conn, request); err != nil {
			return identity.StreamError(ctx, err)
		}
	}
}

func (c *KeyCreator) answer(ctx context.Context, conn *identity.Conn, request *nstancev1.KeyGenerationRequest) error {
	logger := klog.FromContext(ctx)
	if count := len(request.GetKeyNames()); count > maxKeys {
		return fmt.Errorf("the server requested %d keys, at most %d are allowed", count, maxKeys)
	}
	submission := c.submission(ctx, request.GetKeyNames())
	if len(submission.Keys) == 0 && len(submission.Errors) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, submitTimeout)
	defer cancel()
	_, err := conn.SubmitPublicKeys(ctx, submission)
	if status.Code(err) == codes.InvalidArgument {
		// The server would reject some of them again; it has stored the others, and other
		// requests can be served.
		logger.Error(err, "The server rejected public keys", "keys", request.GetKeyNames())
		return nil
	}
	if err != nil {
		return fmt.Errorf("submit %d public keys: %w", len(submission.Keys), err)
	}
	logger.Info("Submitted public keys", "keys", request.GetKeyNames(), "failed", len(submission.Errors))
	return nil
}

// submission returns the public keys of names, and why there is none of others: one key that
// cannot be read must not keep the others from being sent.
func (c *KeyCreator) submission(ctx context.Context, names []string) *nstancev1.PublicKeysRequest {
	logger := klog.FromContext(ctx)
	submission := &nstancev1.PublicKeysRequest{InstanceId: c.InstanceID, Errors: map[string]string{}}
	for _, name := range names {
		public, err := c.Store.PublicKey(name)
		if err != nil {
			logger.Error(err, "Failed to create a requested key")
			submission.Errors[name] = strings.ToValidUTF8(err.Error()[:min(len(err.Error()), maxError)], "")
			continue
		}
		submission.Keys = append(submission.Keys, &nstancev1.PublicKeySubmission{Filename: name, PublicKeyPem: public})
	}
	return submission
}
