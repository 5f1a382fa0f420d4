// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	issuerFlag = "nonce-issuer"
	// defaultIssuerKey is the default environment variable of the key that the key of a nonce
	// issuer is encrypted with.
	defaultIssuerKey = "NSTANCE_NONCE_ISSUER_KEY"
	// defaultIssuerLifetime is the default lifetime of the certificate of a nonce issuer.
	defaultIssuerLifetime = 90 * 24 * time.Hour
)

// nonceOptions has the flags of a command that makes nonces.
type nonceOptions struct {
	clusterOptions
	issuer string
}

func (o *nonceOptions) addFlags(flags *pflag.FlagSet) {
	o.clusterOptions.addFlags(flags)
	flags.StringVar(&o.issuer, issuerFlag, "", "sign with the key of this nonce issuer; --key is then the key of the issuer, and no key of the cluster is needed")
}

func (o *nonceOptions) validate(wrong *mistakes) {
	o.clusterOptions.validate(wrong)
	if o.issuer != "" {
		wrong.add(issuerFlag, identifier.Validate(o.issuer))
	}
}

// signer returns a signer with the cluster's nonce key, or with the key of the nonce issuer. It
// sets clusterID unless --cluster-id is set.
func (o *nonceOptions) signer(ctx context.Context) (*registration.NonceSigner, error) {
	if o.issuer == "" {
		loaded, err := o.loadKeys(ctx)
		if err != nil {
			return nil, err
		}
		return registration.NewNonceSigner(loaded.Nonce), nil
	}
	if o.provider == config.SecretsInStorage && o.keyProvider == keyProviderEnv {
		o.key = cmp.Or(o.key, defaultIssuerKey)
	}
	store, opened, err := o.openStores(ctx)
	if err != nil {
		return nil, err
	}
	if o.clusterID == "" {
		if o.clusterID, err = readClusterID(ctx, store); err != nil {
			return nil, err
		}
	}
	signer, err := registration.OpenNonceIssuer(ctx, store, opened, o.issuer)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", issuerFlag, err)
	}
	return signer, nil
}

// reason is the reason of an entry of the audit log about a nonce.
func (o *nonceOptions) reason() string {
	if o.issuer == "" {
		return "command"
	}
	return "command, nonce issuer " + o.issuer
}

// authorityPEM returns the certificates that clients trust. It needs no key.
func (o *nonceOptions) authorityPEM(ctx context.Context) ([]byte, error) {
	store, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	authorities, _, err := clusterkeys.ReadAuthorities(ctx, store)
	if err != nil {
		return nil, err
	}
	var caPEM []byte
	for _, accepted := range authorities.Accepted {
		caPEM = append(caPEM, accepted.CertificatePEM...)
	}
	return caPEM, nil
}

// issuerKeyOptions has the flags that select the key of a nonce issuer's own: the key that the
// issuer's key is encrypted with.
type issuerKeyOptions struct{ keyProvider, key string }

func (o *issuerKeyOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.keyProvider, "issuer-key-provider", keyProviderEnv, "like --key-provider, for --issuer-key")
	flags.StringVar(&o.key, "issuer-key", "", "like --key (default "+defaultIssuerKey+"), the key that the issuer has: the key that signs is encrypted with it")
}

// newIssuerOptions has the flags of nonce-issuer create.
type newIssuerOptions struct {
	keyOptions
	issuerKey  issuerKeyOptions
	tenants    []string
	allTenants bool
	agents     bool
	lifetime   time.Duration
}

func newNonceIssuerCreateCommand() *cobra.Command {
	var options newIssuerOptions
	command := &cobra.Command{
		Use:   "create NAME --storage-bucket BUCKET {--tenant TENANT | --all-tenants}",
		Short: "Create a nonce issuer, or replace the key of one",
		Long: "Create a key that signs nonces of some tenants, with a certificate of the cluster's CA. " +
			"Who has the key of the issuer, --issuer-key, makes nonces with the flag --" + issuerFlag + " and needs no key of the cluster. " +
			"If the issuer exists, its nonces are signed with the new key from now on, and nonces of the present key stay valid until its certificate expires or is revoked.",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			name := args[0]
			if err := options.validate(name); err != nil {
				return err
			}
			return options.create(command, name)
		},
	}
	options.addFlags(command.Flags())
	options.issuerKey.addFlags(command.Flags())
	command.Flags().StringSliceVar(&options.tenants, "tenant", nil, "id of a tenant whose nonces the issuer may make; may be repeated")
	command.Flags().BoolVar(&options.allTenants, "all-tenants", false, "let the issuer make nonces of every tenant, also of new ones")
	command.Flags().BoolVar(&options.agents, "agents", false, "let the issuer make nonces of agents too, for \"agent nonce\"")
	command.Flags().DurationVar(&options.lifetime, "expiry", defaultIssuerLifetime, "how long the certificate of the issuer is valid, at most "+pki.MaxNonceIssuerLifetime.String())
	return command
}

// identity returns the identity of the certificate.
func (o *newIssuerOptions) identity(name string) pki.NonceIssuer {
	issuer := pki.NonceIssuer{Name: name, Tenants: slices.Clone(o.tenants), Roles: []string{pki.RoleOperator}}
	if o.allTenants {
		issuer.Tenants = []string{pki.AllTenants}
	}
	if o.agents {
		issuer.Roles = append(issuer.Roles, pki.RoleAgent)
	}
	return issuer
}

func (o *newIssuerOptions) validate(name string) error {
	var wrong mistakes
	o.keyOptions.validate(&wrong)
	if (len(o.tenants) == 0) != o.allTenants {
		wrong.addf("tenant", "must be given, or --all-tenants, but not both")
	}
	for _, tenant := range o.tenants {
		wrong.add("tenant", identifier.Validate(tenant))
	}
	if o.lifetime <= 0 || o.lifetime > pki.MaxNonceIssuerLifetime {
		wrong.addf("expiry", "%s must be greater than zero and at most %s", o.lifetime, pki.MaxNonceIssuerLifetime)
	}
	switch {
	case o.provider != config.SecretsInStorage:
		if o.issuerKey.key != "" {
			wrong.addf("issuer-key", "is for --secrets-provider %s only: the service encrypts, and decides who may read the key", config.SecretsInStorage)
		}
	case !slices.Contains(keyProviders, o.issuerKey.keyProvider):
		wrong.addf("issuer-key-provider", "%q is unknown, known are %q", o.issuerKey.keyProvider, keyProviders)
	case o.issuerKey.keyProvider != keyProviderEnv && o.issuerKey.key == "":
		wrong.addf("issuer-key", "must be given when --issuer-key-provider is %q", o.issuerKey.keyProvider)
	}
	if err := errors.Join(identifier.Validate(name), wrong.join()); err != nil {
		return err
	}
	return o.identity(name).Validate()
}

func (o *newIssuerOptions) create(command *cobra.Command, name string) error {
	ctx := command.Context()
	store, err := o.open(ctx)
	if err != nil {
		return err
	}
	opened, loaded, err := o.openSecrets(ctx)
	if err != nil {
		return err
	}
	if o.provider == config.SecretsInStorage {
		if opened, err = o.openIssuerSecrets(ctx, store); err != nil {
			return err
		}
	}
	certificate, key, err := registration.NewNonceIssuer(loaded.Authority, o.identity(name), o.lifetime)
	if err != nil {
		return err
	}
	serial := certificate.SerialNumber.Text(16)
	// Nobody gets a right that the audit log does not have.
	err = o.audit(ctx, auditlog.Entry{
		Action: audit.IssueCertificate, Name: serial, Tenant: strings.Join(certificate.Subject.Organization, ", "),
		ExpiresAt: certificate.NotAfter.UTC(), Reason: "command, nonce issuer " + name,
	})
	if err != nil {
		return err
	}
	expired, err := registration.AddNonceIssuer(ctx, store, opened, loaded.Authority, certificate, key)
	if err != nil {
		return err
	}
	if err := deleteIssuerSecrets(ctx, opened, name, expired); err != nil {
		return err
	}
	_, err = fmt.Fprintf(command.OutOrStdout(), "Nonce issuer %s has certificate %s, which is valid until %s.\n",
		name, serial, certificate.NotAfter.UTC().Format(time.RFC3339))
	return err
}

// openIssuerSecrets opens the secrets in the storage with the key of the issuer.
func (o *newIssuerOptions) openIssuerSecrets(ctx context.Context, store storage.Store) (secrets.Store, error) {
	clusterKey, err := o.readKey(ctx, store, cmp.Or(o.key, defaultKey))
	if err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	issuerKeys := o.keyOptions
	issuerKeys.keyProvider = o.issuerKey.keyProvider
	key, err := issuerKeys.readKey(ctx, store, cmp.Or(o.issuerKey.key, defaultIssuerKey))
	if err != nil {
		return nil, fmt.Errorf("--issuer-key: %w", err)
	}
	if bytes.Equal(key, clusterKey) {
		return nil, errors.New("--issuer-key: must be another key than --key, with which the issuer could read the key of the CA")
	}
	encrypted, err := secrets.New(store, key)
	if err != nil {
		return nil, fmt.Errorf("--issuer-key: %w", err)
	}
	return encrypted, nil
}

// deleteIssuerSecrets deletes the keys of certificates that are not accepted any more.
func deleteIssuerSecrets(ctx context.Context, opened secrets.Store, name string, serials []string) error {
	for _, serial := range serials {
		err := opened.Delete(ctx, storage.NonceIssuerSecret(name, serial))
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
	}
	return nil
}

func newNonceIssuerListCommand() *cobra.Command {
	var options storageOptions
	command := &cobra.Command{
		Use:     "list --storage-bucket BUCKET",
		Short:   "List the nonce issuers and their certificates",
		Args:    cobra.NoArgs,
		PreRunE: checkFormat,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			options.validate(&wrong)
			if err := wrong.join(); err != nil {
				return err
			}
			store, err := options.open(command.Context())
			if err != nil {
				return err
			}
			rows, err := listNonceIssuers(command.Context(), store)
			if err != nil {
				return err
			}
			return rows.write(command)
		},
	}
	options.addFlags(command.Flags())
	addFormatFlag(command.Flags())
	return command
}

func listNonceIssuers(ctx context.Context, store storage.Store) (*table, error) {
	objects, err := store.List(ctx, storage.NonceIssuerPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the nonce issuers: %w", err)
	}
	rows := newTable("NAME", "SERIAL", "STATE", "TENANTS", "ROLES", "EXPIRES")
	for _, object := range objects {
		name := strings.TrimSuffix(strings.TrimPrefix(object.Key, storage.NonceIssuerPrefix), ".json")
		record, err := registration.ReadNonceIssuer(ctx, store, name)
		if err != nil {
			return nil, err
		}
		if record == nil {
			continue // deleted since
		}
		for _, stored := range record.Certificates {
			state := "valid"
			switch {
			case !stored.RevokedAt.IsZero():
				state = "revoked"
			case !stored.Usable(time.Now()):
				state = "expired"
			}
			tenants, roles := noValue, noValue
			if certificate, err := pki.ParseCertificate([]byte(stored.CertificatePEM)); err == nil {
				if issuer, err := pki.ReadNonceIssuer(certificate); err == nil {
					tenants, roles = strings.Join(issuer.Tenants, ","), strings.Join(issuer.Roles, ",")
				}
			}
			rows.add(name, stored.Serial, state, tenants, roles, timeText(stored.ExpiresAt))
		}
	}
	return rows, nil
}

// revokeIssuerOptions has the flags of nonce-issuer revoke.
type revokeIssuerOptions struct {
	secretOptions
	all    bool
	serial string
}

func newNonceIssuerRevokeCommand() *cobra.Command {
	var options revokeIssuerOptions
	command := &cobra.Command{
		Use:   "revoke NAME --storage-bucket BUCKET {--all | --serial SERIAL}",
		Short: "Revoke certificates of a nonce issuer",
		Long: "Revoke certificates of a nonce issuer, and delete their keys. Nonces that were made with them and not used are refused at once. " +
			"Clients that have registered keep their certificates: the audit log names them.",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			name := args[0]
			if err := options.validate(name); err != nil {
				return err
			}
			revoked, err := options.revoke(command.Context(), name)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "Revoked the certificates %s of nonce issuer %s.\n", strings.Join(revoked, ", "), name)
			return err
		},
	}
	options.addFlags(command.Flags())
	command.Flags().BoolVar(&options.all, allFlag, false, "revoke all certificates of the issuer")
	command.Flags().StringVar(&options.serial, serialFlag, "", "revoke the certificate with this serial number, hexadecimal")
	return command
}

func (o *revokeIssuerOptions) validate(name string) error {
	var wrong mistakes
	o.secretOptions.validate(&wrong)
	if (o.serial == "") != o.all {
		wrong.addf(allFlag, "must be set, or --%s, but not both", serialFlag)
	} else if o.serial != "" {
		var err error
		o.serial, err = registration.ParseSerial(o.serial)
		wrong.add(serialFlag, err)
	}
	return errors.Join(identifier.Validate(name), wrong.join())
}

func (o *revokeIssuerOptions) revoke(ctx context.Context, name string) ([]string, error) {
	store, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	revoked, err := registration.RevokeNonceIssuer(ctx, store, name, o.serial)
	if err != nil {
		return nil, err
	}
	what := strings.Join(revoked, ", ")
	// A revocation is urgent: it depends neither on the audit log nor on the secrets.
	err = o.audit(ctx, auditlog.Entry{Action: audit.RevokeCertificates, Name: what, Reason: "command, nonce issuer " + name})
	opened, openErr := o.openWithoutKeys(ctx)
	if openErr == nil {
		openErr = deleteIssuerSecrets(ctx, opened, name, revoked)
	}
	if err := errors.Join(err, openErr); err != nil {
		return nil, fmt.Errorf("revoked the certificates %s, but: %w", what, err)
	}
	return revoked, nil
}
