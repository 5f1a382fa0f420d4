// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
)

// KMSKey is a key that AWS Key Management Service (KMS) has encrypted.
type KMSKey struct {
	// Ciphertext is the encrypted key in base64.
	Ciphertext string
	// KeyID is the id, the ARN, or the alias of the key of KMS that has encrypted it.
	KeyID string
	// Region is that of the key of KMS. If it is empty, the ARN has it, or the environment.
	Region string
	// Cluster is the id of the cluster, which the encryption context has: a ciphertext of
	// another cluster is refused.
	Cluster string
}

// kmsContextKey is the key of the encryption context, whose value is the id of the cluster.
const kmsContextKey = "nstance:cluster-id"

// maxCiphertext is the limit of KMS, in bytes.
const maxCiphertext = 6144

var (
	kmsKeyIDs = regexp.MustCompile(`^(arn:aws[a-z-]*:kms:([a-z0-9-]+):[0-9]{12}:(key/[A-Za-z0-9-]+|alias/[A-Za-z0-9/_-]+)|alias/[A-Za-z0-9/_-]+|[A-Za-z0-9-]{1,64})$`)
	regions   = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)
)

// readKMSKey reads the value of aws_kms.
func readKMSKey(o *jsonc.Object, cluster string) *KMSKey {
	defer o.Finish()
	key := &KMSKey{Ciphertext: o.String("ciphertext"), KeyID: o.String("key_id"), Region: o.String("region"), Cluster: cluster}
	if match := kmsKeyIDs.FindStringSubmatch(key.KeyID); match != nil && key.Region == "" {
		key.Region = match[2]
	}
	return key
}

// ParseKMSKey returns the key of a text that has the form of aws_kms in the configuration of
// a cluster. The error shows no value of it.
func ParseKMSKey(text, cluster string) (*KMSKey, error) {
	var errs field.ErrorList
	o, err := jsonc.ParseConfidential([]byte(text), &errs)
	if err != nil {
		return nil, err
	}
	key := readKMSKey(o, cluster)
	if len(errs) == 0 {
		errs = key.validate(nil)
	}
	if err := errs.ToAggregate(); err != nil {
		return nil, err
	}
	return key, nil
}

// EncryptionContext returns what KMS binds the ciphertext to.
func (k *KMSKey) EncryptionContext() map[string]string {
	return map[string]string{kmsContextKey: k.Cluster}
}

// Blob returns the bytes of the ciphertext, nil if it is not base64.
func (k *KMSKey) Blob() []byte {
	blob, err := base64.StdEncoding.Strict().DecodeString(k.Ciphertext)
	if err != nil {
		return nil
	}
	return blob
}

// String has no ciphertext: instead of it a user may have written the key.
func (k *KMSKey) String() string {
	sum := sha256.Sum256([]byte(k.Ciphertext))
	text := "ciphertext " + hex.EncodeToString(sum[:4]) + " of key " + k.KeyID
	if k.Region != "" {
		text += " in region " + k.Region
	}
	return text
}

func (k *KMSKey) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	hidden := field.OmitValueType{}
	switch blob := k.Blob(); {
	case k.Ciphertext == "":
		errs = append(errs, field.Required(path.Child("ciphertext"), "must be the base64 of a key that KMS has encrypted"))
	case len(blob) == 0 || len(blob) > maxCiphertext:
		errs = append(errs, field.Invalid(path.Child("ciphertext"), hidden, "must be the base64 of a key that KMS has encrypted"))
	case len(blob) <= 32:
		errs = append(errs, field.Invalid(path.Child("ciphertext"), hidden, "is too short for a key that KMS has encrypted: do not write the key itself, and replace it if it was here"))
	}
	match := kmsKeyIDs.FindStringSubmatch(k.KeyID)
	if match == nil {
		errs = append(errs, field.Invalid(path.Child("key_id"), hidden, "must be the id, the ARN or the alias of a key of KMS, such as alias/nstance"))
	}
	switch {
	case k.Region == "":
	case !regions.MatchString(k.Region):
		errs = append(errs, field.Invalid(path.Child("region"), hidden, "must be a region, such as us-west-2"))
	case match != nil && match[2] != "" && match[2] != k.Region:
		errs = append(errs, field.Invalid(path.Child("region"), hidden, "must be the region of the ARN in key_id"))
	}
	return errs
}
