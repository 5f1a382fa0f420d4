// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withSecrets parses the example with other secrets.
func withSecrets(secrets string) (*Config, error) {
	begin := strings.Index(example, `"secrets": {`)
	end := begin + strings.Index(example[begin:], "},\n\t}")
	return Parse([]byte(example[:begin]+`"secrets": {`+secrets+example[end:]), providers)
}

func TestSecrets(t *testing.T) {
	key := KeySource{Env: "K"}
	for _, tc := range []struct {
		secrets string
		want    Secrets
	}{
		{`"encryption_key": {"env": "K"}`, Secrets{Provider: SecretsInStorage, EncryptionKey: key}},
		{`"encryption_key": {"env": "K"}, "cache_ttl": "5s"`, Secrets{Provider: SecretsInStorage, EncryptionKey: key, CacheTTL: 5 * time.Second}},
		{`"encryption_key": {"aws_secrets_manager": "arn:aws:x"}`, Secrets{Provider: SecretsInStorage, EncryptionKey: KeySource{SecretsManager: "arn:aws:x"}}},
		{`"encryption_key": {"aws_parameter_store": "/x"}`, Secrets{Provider: SecretsInStorage, EncryptionKey: KeySource{ParameterStore: "/x"}}},
		{
			`"encryption_key": {"google_secret_manager": "projects/p/secrets/s/versions/3"}`,
			Secrets{Provider: SecretsInStorage, EncryptionKey: KeySource{GoogleSecret: "projects/p/secrets/s/versions/3"}},
		},
		{
			`"encryption_key": {"aws_kms": {"ciphertext": "` + kmsCiphertext + `", "key_id": "alias/a", "region": "eu-north-1"}}`,
			Secrets{Provider: SecretsInStorage, EncryptionKey: KeySource{KMS: &KMSKey{kmsCiphertext, "alias/a", "eu-north-1", "prod"}}},
		},
		{
			`"encryption_key": {"env": "K"}, "old_encryption_keys": [{"aws_kms": {"ciphertext": "` + kmsCiphertext + `", "key_id": "` + kmsARN + `"}}]`,
			Secrets{Provider: SecretsInStorage, EncryptionKey: key, OldEncryptionKeys: []KeySource{{KMS: &KMSKey{kmsCiphertext, kmsARN, "us-west-2", "prod"}}}},
		},
		{
			`"encryption_key": {"aws_kms": {"ciphertext": "` + kmsCiphertext + `", "key_id": "mrk-0123456789abcdef0123456789abcdef"}}`,
			Secrets{Provider: SecretsInStorage, EncryptionKey: KeySource{KMS: &KMSKey{kmsCiphertext, "mrk-0123456789abcdef0123456789abcdef", "", "prod"}}},
		},
		{`"provider": "aws-secrets-manager"`, Secrets{Provider: SecretsInSecretsManager, Prefix: "nstance/prod/", CacheTTL: time.Minute}},
		{`"provider": "aws-secrets-manager", "prefix": "a", "cache_ttl": "0s"`, Secrets{Provider: SecretsInSecretsManager, Prefix: "a"}},
		{`"provider": "aws-parameter-store"`, Secrets{Provider: SecretsInParameterStore, Prefix: "/nstance/prod/", CacheTTL: time.Minute}},
		{
			`"provider": "google-secret-manager", "project": "my-project"`,
			Secrets{Provider: SecretsInGoogle, Prefix: "nstance-prod__", Project: "my-project", CacheTTL: time.Minute},
		},
		{
			`"provider": "google-secret-manager", "project": "my-project", "locations": ["europe-west1"]`,
			Secrets{Provider: SecretsInGoogle, Prefix: "nstance-prod__", Project: "my-project", Locations: []string{"europe-west1"}, CacheTTL: time.Minute},
		},
	} {
		c, err := withSecrets(tc.secrets)
		if assert.NoError(t, err, tc.secrets) {
			assert.Equal(t, tc.want, c.Secrets, tc.secrets)
		}
	}
}

// kmsCiphertext has 66 bytes.
var kmsCiphertext = strings.Repeat("AQIC", 22)

const kmsARN = "arn:aws:kms:us-west-2:123456789012:key/11111111-2222-3333-4444-555555555555"

func kmsSecrets(ciphertext, keyID, region string) string {
	return `"encryption_key": {"aws_kms": {"ciphertext": "` + ciphertext + `", "key_id": "` + keyID + `", "region": "` + region + `"}}`
}

// TestKMSKeysAreCompared: another ciphertext is another key, and no text shows it.
func TestKMSKeysAreCompared(t *testing.T) {
	texts := map[string]bool{}
	for _, key := range []KMSKey{
		{Ciphertext: kmsCiphertext, KeyID: "alias/a"}, {Ciphertext: kmsCiphertext + "AAAA", KeyID: "alias/a"},
		{Ciphertext: kmsCiphertext, KeyID: "alias/b"}, {Ciphertext: kmsCiphertext, KeyID: "alias/a", Region: "eu-north-1"},
	} {
		text := KeySource{KMS: &key}.String()
		assert.NotContains(t, text, "AQIC")
		texts[text] = true
	}
	assert.Len(t, texts, 4)
}

func TestInvalidSecrets(t *testing.T) {
	for secrets, want := range map[string]string{
		`"provider": "aws-secrets-manager", "encryption_key": {"env": "K"}`:                     `cluster.secrets.encryption_key: Forbidden: is for provider object-storage only: the service encrypts`,
		`"provider": "aws-parameter-store", "old_encryption_keys": []`:                          `cluster.secrets.old_encryption_keys: Forbidden: is for provider object-storage only: the service encrypts`,
		`"provider": "aws-secrets-manager", "prefix": ""`:                                       `cluster.secrets.prefix: Invalid value: must consist of letters, digits and /_+=.@-`,
		`"provider": "aws-secrets-manager", "prefix": "a b"`:                                    `cluster.secrets.prefix: Invalid value: must consist of letters, digits and /_+=.@-`,
		`"provider": "aws-parameter-store", "prefix": "/a"`:                                     `cluster.secrets.prefix: Invalid value: must begin and end with a slash, between letters, digits and _.-`,
		`"provider": "google-secret-manager", "project": "p", "prefix": "a/"`:                   `cluster.secrets.prefix: Invalid value: must consist of letters, digits, underscores and hyphens`,
		`"provider": "google-secret-manager"`:                                                   `cluster.secrets.project: Invalid value: must be the id of a project`,
		`"provider": "aws-secrets-manager", "locations": ["europe-west1"]`:                      `cluster.secrets.locations: Forbidden: is for provider google-secret-manager only`,
		`"provider": "google-secret-manager", "project": "my-project", "locations": ["Europe"]`: `cluster.secrets.locations[0]: Invalid value: must be a region, such as europe-west1`,
		`"provider": "aws-secrets-manager", "project": "p"`:                                     `cluster.secrets.project: Forbidden: is for provider google-secret-manager only`,
		`"encryption_key": {"env": "K"}, "prefix": "a"`:                                         `cluster.secrets.prefix: Invalid value: is for other providers only: the storage has a prefix of its own`,
		`"encryption_key": {"google_secret_manager": "s"}`:                                      `cluster.secrets.encryption_key.google_secret_manager: Invalid value: must be projects/PROJECT/secrets/NAME`,
		kmsSecrets(``, `alias/a`, ``):                                                           `cluster.secrets.encryption_key.aws_kms.ciphertext: Required value: must be the base64 of a key that KMS has encrypted`,
		kmsSecrets(`AA`, `alias/a`, ``):                                                         `cluster.secrets.encryption_key.aws_kms.ciphertext: Invalid value: must be the base64 of a key`,
		kmsSecrets(strings.Repeat("AAAA", 2049), `alias/a`, ``):                                 `cluster.secrets.encryption_key.aws_kms.ciphertext: Invalid value: must be the base64 of a key`,
		kmsSecrets(strings.Repeat("AAAA", 10)+"AAA=", `alias/a`, ``):                            `cluster.secrets.encryption_key.aws_kms.ciphertext: Invalid value: is too short for a key that KMS has encrypted: do not write the key itself`,
		kmsSecrets(kmsCiphertext, ``, ``):                                                       `cluster.secrets.encryption_key.aws_kms.key_id: Invalid value: must be the id, the ARN or the alias of a key of KMS`,
		kmsSecrets(kmsCiphertext, `arn:aws:kms:us-west-2:1:key/a`, ``):                          `cluster.secrets.encryption_key.aws_kms.key_id: Invalid value`,
		kmsSecrets(kmsCiphertext, `alias/a`, `west`):                                            `cluster.secrets.encryption_key.aws_kms.region: Invalid value: must be a region, such as us-west-2`,
		kmsSecrets(kmsCiphertext, kmsARN, `us-west-1`):                                          `cluster.secrets.encryption_key.aws_kms.region: Invalid value: must be the region of the ARN in key_id`,
		`"encryption_key": {"aws_kms": "a"}`:                                                    `cluster.secrets.encryption_key.aws_kms: Invalid value: must be an object`,
		`"encryption_key": {"env": "K", "aws_kms": {}}`:                                         `cluster.secrets.encryption_key: Invalid value: ["env","aws_kms"]: must have exactly one of`,
		`"encryption_key": {"env": "K"}, "cache_ttl": "-1s"`:                                    `cluster.secrets.cache_ttl: Invalid value: "-1s": must be a duration that is not negative, such as`,
		`"encryption_key": {"aws_parameter_store": "/a", "aws_secrets_manager": "hunter"}`:      `cluster.secrets.encryption_key: Invalid value: ["aws_secrets_manager","aws_parameter_store"]: must have exactly one of env, file, aws_secrets_manager`,
	} {
		_, err := withSecrets(secrets)
		require.Error(t, err, secrets)
		if !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s\ngot  %v\nwant %s", secrets, err, want)
		}
	}
}
