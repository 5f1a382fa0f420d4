// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secretstest

import (
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// KMS responds like AWS Key Management Service, for the operations that the product needs.
type KMS struct {
	// URL is its address, and Faults are injected into its requests.
	URL    string
	Faults *Faults

	mu sync.Mutex
	// keys have the state of each key by its ARN, and aliases the ARN by alias.
	keys    map[string]string
	aliases map[string]string
	// ciphertexts are the ciphertexts that it has made.
	ciphertexts map[string]ciphertext
}

// ciphertext is the plaintext of a ciphertext, with its key and context.
type ciphertext struct {
	arn       string
	context   map[string]string
	plaintext []byte
}

// The states of keys.
const (
	KeyEnabled         = "Enabled"
	KeyDisabled        = "Disabled"
	KeyPendingDeletion = "PendingDeletion"
)

// KeyARN returns the ARN of a key.
func KeyARN(id string) string { return "arn:aws:kms:" + awsRegion + ":123456789012:key/" + id }

// StartKMS starts a server without keys. It stops with the test.
func StartKMS(t testing.TB) *KMS {
	t.Helper()
	k := &KMS{keys: map[string]string{}, aliases: map[string]string{}, ciphertexts: map[string]ciphertext{}}
	k.URL, k.Faults = start(t, &awsService{
		target: "TrentService", name: "kms", operations: map[string]func([]byte) (any, error){"Decrypt": k.decrypt},
	})
	return k
}

// SetKey sets the state of a key, and an alias for it unless that is empty.
func (k *KMS) SetKey(id, state, alias string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys[KeyARN(id)] = state
	if alias != "" {
		k.aliases["alias/"+alias] = KeyARN(id)
	}
}

// Encrypt returns a ciphertext of a key.
func (k *KMS) Encrypt(id string, context map[string]string, plaintext []byte) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	blob := slices.Concat([]byte{1, 2, 2, 0}, []byte(rand.Text()+rand.Text()+rand.Text()))
	k.ciphertexts[string(blob)] = ciphertext{KeyARN(id), maps.Clone(context), slices.Clone(plaintext)}
	return blob
}

// find returns the ARN of a key that is named by its id, its ARN or an alias.
func (k *KMS) find(name string) (arn string, found bool) {
	name = strings.TrimPrefix(name, strings.TrimSuffix(KeyARN(""), "key/"))
	if id, isKey := strings.CutPrefix(name, "key/"); isKey {
		name = id
	}
	if arn, found = k.aliases[name]; !found {
		arn = KeyARN(name)
	}
	_, found = k.keys[arn]
	return arn, found
}

func (k *KMS) decrypt(body []byte) (any, error) {
	var request struct {
		CiphertextBlob    []byte
		EncryptionContext map[string]string
		KeyId             string
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(request.CiphertextBlob) == 0 || len(request.CiphertextBlob) > 6144 {
		return nil, rejected(validation, "Value at 'ciphertextBlob' failed to satisfy constraint: length between 1 and 6144")
	}
	if request.KeyId == "" {
		return nil, rejected(validation, "the test expects a KeyId: without one any key of the account decrypts")
	}
	arn, found := k.find(request.KeyId)
	if !found {
		return nil, rejected("NotFoundException", "Key '%s' does not exist", request.KeyId)
	}
	switch k.keys[arn] {
	case KeyDisabled:
		return nil, rejected("DisabledException", "%s is disabled.", arn)
	case KeyPendingDeletion:
		return nil, rejected("KMSInvalidStateException", "%s is pending deletion.", arn)
	}
	encrypted, known := k.ciphertexts[string(request.CiphertextBlob)]
	switch {
	case known && encrypted.arn != arn:
		return nil, rejected("IncorrectKeyException", "The key ID in the request does not identify a CMK that can perform this operation.")
	case !known, !maps.Equal(encrypted.context, request.EncryptionContext):
		return nil, rejected("InvalidCiphertextException", "")
	}
	return map[string]any{"KeyId": arn, "Plaintext": encrypted.plaintext, "EncryptionAlgorithm": "SYMMETRIC_DEFAULT"}, nil
}
