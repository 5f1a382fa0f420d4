// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
)

// Where secrets are stored.
const (
	// SecretsInStorage are encrypted objects in the storage.
	SecretsInStorage = "object-storage"
	// SecretsInSecretsManager and SecretsInParameterStore are services of AWS.
	SecretsInSecretsManager = "aws-secrets-manager"
	SecretsInParameterStore = "aws-parameter-store"
	// SecretsInGoogle is Google Secret Manager.
	SecretsInGoogle = "google-secret-manager"
)

// SecretsProviders are all values of cluster.secrets.provider.
var SecretsProviders = []string{SecretsInStorage, SecretsInSecretsManager, SecretsInParameterStore, SecretsInGoogle}

// defaultSecretsCacheTTL is the default for services: reading the files of many instances
// must not exceed their request limits, see
// https://docs.aws.amazon.com/secretsmanager/latest/userguide/reference_limits.html.
const defaultSecretsCacheTTL = time.Minute

// Secrets locates the secrets of the cluster.
type Secrets struct {
	// Provider is one of SecretsProviders.
	Provider string
	// Prefix begins the names of secrets in a service. It is empty in the storage.
	Prefix string
	// Project is the project of Google Secret Manager.
	Project string
	// Locations are where Google Secret Manager replicates new secrets, empty for automatic
	// replication.
	Locations []string
	// CacheTTL is how long a secret that was read is not read again. Zero means that nothing
	// is cached.
	CacheTTL time.Duration
	// EncryptionKey encrypts the secrets in the storage. It is not set for services.
	EncryptionKey KeySource
	// OldEncryptionKeys decrypt only.
	OldEncryptionKeys []KeySource
}

// KeySource locates a key. Exactly one field is set.
type KeySource struct {
	// Env is the name of an environment variable.
	Env string
	// File is the absolute path of a file.
	File string
	// SecretsManager is the name or ARN of a secret of AWS Secrets Manager.
	SecretsManager string
	// ParameterStore is the name or ARN of a parameter of AWS Parameter Store.
	ParameterStore string
	// KMS is a key that AWS KMS has encrypted, nil if the key is elsewhere.
	KMS *KMSKey
	// GoogleSecret is a secret of Google Secret Manager, projects/PROJECT/secrets/NAME, with
	// or without /versions/VERSION.
	GoogleSecret string
}

// keySources are the names of the fields above in the configuration.
var keySources = []string{"env", "file", "aws_secrets_manager", "aws_parameter_store", "aws_kms", "google_secret_manager"}

// String returns the location of the key.
func (k KeySource) String() string {
	switch {
	case k.File != "":
		return "file " + k.File
	case k.SecretsManager != "":
		return "aws_secrets_manager " + k.SecretsManager
	case k.ParameterStore != "":
		return "aws_parameter_store " + k.ParameterStore
	case k.KMS != nil:
		return "aws_kms " + k.KMS.String()
	case k.GoogleSecret != "":
		return "google_secret_manager " + k.GoogleSecret
	}
	return "env " + k.Env
}

// DefaultSecretsPrefix returns the prefix of a cluster's secrets in a service. Two clusters
// of one account must neither share secrets nor have a prefix that is the other's secret.
func DefaultSecretsPrefix(provider, cluster string) string {
	switch provider {
	case SecretsInSecretsManager:
		return "nstance/" + cluster + "/"
	case SecretsInParameterStore:
		return "/nstance/" + cluster + "/"
	case SecretsInGoogle:
		// Neither cluster ids nor encoded names contain two underscores.
		return "nstance-" + cluster + "__"
	}
	return ""
}

// readSecrets shows no value in an error: a user may have written the key itself
// instead of its location, and errors are logged.
func readSecrets(cluster *jsonc.Object, clusterID string) Secrets {
	o := cluster.ConfidentialObject("secrets")
	defer o.Finish()
	secrets := Secrets{
		Provider: cmp.Or(o.String("provider"), SecretsInStorage),
		Prefix:   o.String("prefix"),
		Project:  o.String("project"),
	}
	if o.Has("locations") {
		secrets.Locations = o.Strings("locations")
	}
	if o.Has("provider") && !slices.Contains(SecretsProviders, o.String("provider")) {
		o.Report(field.NotSupported(o.Child("provider"), field.OmitValueType{}, SecretsProviders))
		secrets.Provider = SecretsInStorage
	}
	ttl := time.Duration(0)
	if secrets.Provider == SecretsInStorage {
		secrets.EncryptionKey = readKeySource(o.Object("encryption_key"), clusterID)
		for _, key := range o.Objects("old_encryption_keys") {
			secrets.OldEncryptionKeys = append(secrets.OldEncryptionKeys, readKeySource(key, clusterID))
		}
	} else {
		ttl = defaultSecretsCacheTTL
		for _, name := range []string{"encryption_key", "old_encryption_keys"} {
			if o.Has(name) {
				o.Report(field.Forbidden(o.Child(name), "is for provider "+SecretsInStorage+" only: the service encrypts"))
			}
		}
		if !o.Has("prefix") {
			secrets.Prefix = DefaultSecretsPrefix(secrets.Provider, clusterID)
		}
	}
	secrets.CacheTTL = o.Duration("cache_ttl", ttl)
	return secrets
}

func readKeySource(o *jsonc.Object, cluster string) KeySource {
	defer o.Finish()
	source := KeySource{
		Env: o.String("env"), File: o.String("file"),
		SecretsManager: o.String("aws_secrets_manager"), ParameterStore: o.String("aws_parameter_store"),
		GoogleSecret: o.String("google_secret_manager"),
	}
	if o.Has("aws_kms") {
		source.KMS = readKMSKey(o.Object("aws_kms"), cluster)
	}
	o.ExactlyOneOf(keySources...)
	return source
}

// prefixes are the valid prefixes by provider, and the rule that an error quotes.
var prefixes = map[string]struct {
	pattern *regexp.Regexp
	rule    string
}{
	SecretsInStorage:        {regexp.MustCompile(`^$`), "is for other providers only: the storage has a prefix of its own"},
	SecretsInSecretsManager: {regexp.MustCompile(`^[A-Za-z0-9/_+=.@-]{1,128}$`), "must consist of letters, digits and /_+=.@-"},
	SecretsInParameterStore: {regexp.MustCompile(`^/([A-Za-z0-9_.-]{1,64}/){1,8}$`), "must begin and end with a slash, between letters, digits and _.-"},
	SecretsInGoogle:         {regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`), "must consist of letters, digits, underscores and hyphens"},
}

// ValidateSecretsPrefix returns the rule that a prefix breaks, "" if it is valid.
func ValidateSecretsPrefix(provider, prefix string) string {
	if p := prefixes[provider]; p.pattern != nil && !p.pattern.MatchString(prefix) {
		return p.rule
	}
	return ""
}

var (
	projectPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.:-]*[a-z0-9])?$`)
	// googleSecretPattern is the name of a secret of Google Secret Manager, with or without a
	// version.
	googleSecretPattern = regexp.MustCompile(`^projects/[a-z0-9.:-]+/secrets/[A-Za-z0-9_-]+(/versions/([0-9]+|latest))?$`)
)

// ValidateSecretsProject reports whether a Google project id is valid.
func ValidateSecretsProject(project string) bool { return projectPattern.MatchString(project) }

// ValidateSecretsLocation reports whether a location of Google is valid.
func ValidateSecretsLocation(location string) bool { return regions.MatchString(location) }

// validate shows no value, which may be a key.
func (s Secrets) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	hidden := field.OmitValueType{}
	if rule := ValidateSecretsPrefix(s.Provider, s.Prefix); rule != "" {
		errs = append(errs, field.Invalid(path.Child("prefix"), hidden, rule))
	}
	switch isGoogle := s.Provider == SecretsInGoogle; {
	case isGoogle && !ValidateSecretsProject(s.Project):
		errs = append(errs, field.Invalid(path.Child("project"), hidden, "must be the id of a project"))
	case !isGoogle && s.Project != "":
		errs = append(errs, field.Forbidden(path.Child("project"), "is for provider "+SecretsInGoogle+" only"))
	}
	if len(s.Locations) > 0 && s.Provider != SecretsInGoogle {
		errs = append(errs, field.Forbidden(path.Child("locations"), "is for provider "+SecretsInGoogle+" only"))
	}
	for i, location := range s.Locations {
		if !ValidateSecretsLocation(location) {
			errs = append(errs, field.Invalid(path.Child("locations").Index(i), hidden, "must be a region, such as europe-west1"))
		}
	}
	errs = append(errs, s.EncryptionKey.validate(path.Child("encryption_key"))...)
	for i, key := range s.OldEncryptionKeys {
		errs = append(errs, key.validate(path.Child("old_encryption_keys").Index(i))...)
	}
	return errs
}

func (k KeySource) validate(path *field.Path) field.ErrorList {
	// The value may be the key itself.
	hidden := field.OmitValueType{}
	switch {
	case k.File != "" && !filepath.IsAbs(k.File):
		return field.ErrorList{field.Invalid(path.Child("file"), hidden, validation.NotAbsolute)}
	case k.KMS != nil:
		return k.KMS.validate(path.Child("aws_kms"))
	case k.GoogleSecret != "" && !googleSecretPattern.MatchString(k.GoogleSecret):
		return field.ErrorList{field.Invalid(path.Child("google_secret_manager"), hidden, "must be projects/PROJECT/secrets/NAME")}
	}
	return nil
}

// KMSKey is a key that AWS Key Management Service (KMS) has encrypted.
type KMSKey struct {
	// Ciphertext is the encrypted key in base64.
	Ciphertext string
	// KeyID is the id, the ARN, or the alias of the key of KMS that has encrypted it.
	KeyID string
	// Region is the region of the KMS key. If empty, it comes from the ARN or the
	// environment.
	Region string
	// Cluster is the id of the cluster, part of the encryption context: a ciphertext of
	// another cluster is rejected.
	Cluster string
}

// kmsContextKey is the key of the encryption context, whose value is the id of the cluster.
const kmsContextKey = "nstance:cluster-id"

// maxCiphertext is the limit of KMS for Decrypt, in bytes
// (https://docs.aws.amazon.com/kms/latest/APIReference/API_Decrypt.html).
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

// ParseKMSKey parses a text in the form of aws_kms in the configuration of a cluster. The
// error shows no value of it.
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

// EncryptionContext returns the context that KMS binds the ciphertext to
// (https://docs.aws.amazon.com/kms/latest/developerguide/encrypt_context.html).
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

// String leaves the ciphertext out: by mistake it may be the key itself.
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
