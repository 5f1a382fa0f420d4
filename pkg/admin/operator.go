// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/admin/identityfolder"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/clientauth"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	allFlag    = "all"
	serialFlag = "serial"
)

func newOperatorListCommand() *cobra.Command {
	var options storageOptions
	command := &cobra.Command{
		Use:     "list --storage-bucket BUCKET",
		Short:   "List the registered operators and their certificates",
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
			rows, err := listOperators(command.Context(), store)
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

func listOperators(ctx context.Context, store storage.Store) (*table, error) {
	objects, err := store.List(ctx, storage.OperatorPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the registrations: %w", err)
	}
	rows := newTable("TENANT", "CLIENT", "SERIAL", "STATE", "REGISTERED", "EXPIRES", "KUBERNETES CLUSTER")
	for _, object := range objects {
		tenant, client, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(object.Key, storage.OperatorPrefix), ".json"), ".")
		if !ok {
			continue
		}
		record, err := registration.ReadRecord(ctx, store, tenant, client)
		if err != nil {
			return nil, err
		}
		owner, err := clientauth.ReadOwner(ctx, store, tenant)
		if err != nil {
			return nil, err
		}
		if record == nil {
			continue // deleted since
		}
		cluster := "-"
		if owner != nil {
			cluster = owner.KubernetesCluster
		}
		rows.add(tenant, client, cmp.Or(record.CertSerial, "-"), state(record), timeText(record.RegisteredAt), timeText(record.ExpiresAt), cluster)
	}
	return rows, nil
}

// state describes the latest certificate of a registration, for the column STATE.
func state(record *registration.Record) string {
	switch {
	case record.CertSerial == "":
		return "not registered"
	case slices.Contains(record.RevokedSerials, record.CertSerial):
		return "revoked"
	case time.Now().After(record.ExpiresAt):
		return "expired"
	}
	return "valid"
}

func timeText(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}

// revokeOptions has the flags of operator revoke.
type revokeOptions struct {
	storageOptions
	clusterID string
	client    string
	all       bool
	serial    string
}

func newOperatorRevokeCommand() *cobra.Command {
	var options revokeOptions
	command := &cobra.Command{
		Use:   "revoke --storage-bucket BUCKET --tenant TENANT {--all | --serial SERIAL}",
		Short: "Revoke certificates of a tenant's operator, and the nonces that exist",
		Long: "Revoke certificates of a tenant's operator. Nonces of the tenant that exist cannot be used any more, whichever certificate is revoked.\n" +
			"The servers close the connections of revoked certificates within a minute. The operator is served again when it has registered with a new nonce.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return err
			}
			revoked, err := options.revoke(command.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "Revoked %s of the operator of tenant %s. The servers close its connections within a minute.\n", revoked, options.tenant)
			return err
		},
	}
	options.addFlags(command.Flags())
	options.addTenantFlag(command.Flags())
	command.Flags().StringVar(&options.clusterID, "cluster-id", "", clusterIDUsage)
	command.Flags().StringVar(&options.client, "client", "", "id of another client, as \"operator list\" has it (default: the cluster id, which is the client id of the operator)")
	command.Flags().BoolVar(&options.all, allFlag, false, "revoke all certificates that exist")
	command.Flags().StringVar(&options.serial, serialFlag, "", "revoke the certificate with this serial number, hexadecimal")
	return command
}

func (o *revokeOptions) validate() error {
	var wrong mistakes
	o.storageOptions.validate(&wrong)
	o.validateTenant(&wrong)
	if o.clusterID != "" {
		wrong.add("cluster-id", identifier.Validate(o.clusterID))
	}
	if o.client != "" {
		wrong.add("client", identifier.Validate(o.client))
	}
	if (o.serial == "") != o.all {
		wrong.addf(allFlag, "must be set, or --%s, but not both", serialFlag)
	} else if o.serial != "" {
		var err error
		o.serial, err = registration.ParseSerial(o.serial)
		wrong.add(serialFlag, err)
	}
	return wrong.join()
}

// revoke revokes certificates, and describes them for the message "Revoked %s of the operator".
func (o *revokeOptions) revoke(ctx context.Context) (revoked string, err error) {
	store, err := o.open(ctx)
	if err != nil {
		return "", err
	}
	client, err := o.clientID(ctx, store)
	if err != nil {
		return "", err
	}
	entry := auditlog.Entry{Action: audit.RevokeCertificates, Name: o.serial, Tenant: o.tenant, Client: client, Reason: "command"}
	if o.serial != "" {
		revoked, err = "certificate "+o.serial, registration.Revoke(ctx, store, o.tenant, client, o.serial)
	} else {
		var registered []string
		registered, err = registration.RevokeAll(ctx, store, o.tenant, client)
		revoked = "all certificates, none of them registered,"
		if len(registered) > 0 {
			revoked = fmt.Sprintf("all certificates (registered: %s)", strings.Join(registered, ", "))
		}
	}
	if err != nil {
		return "", err
	}
	// A revocation is urgent: it does not depend on the audit log.
	if err := o.audit(ctx, entry); err != nil {
		return "", fmt.Errorf("revoked %s, but: %w", revoked, err)
	}
	return revoked, nil
}

// clientID returns the client id of the certificates to revoke. The client id of an operator is
// the cluster id (docs/protocol.md#authentication).
func (o *revokeOptions) clientID(ctx context.Context, store storage.Store) (string, error) {
	if id := cmp.Or(o.client, o.clusterID); id != "" {
		return id, nil
	}
	return readClusterID(ctx, store)
}

// readClusterID returns the id of the cluster in the certificate of its authority.
func readClusterID(ctx context.Context, store storage.Store) (string, error) {
	object, err := store.Get(ctx, storage.AuthorityKey)
	if err != nil {
		return "", fmt.Errorf("--cluster-id: must be given, since the certificate of the authority cannot be read: %w", err)
	}
	certificate, err := pki.ParseCertificate(object.Data)
	if err != nil {
		return "", fmt.Errorf("--cluster-id: must be given, since the certificate of the authority cannot be read: %w", err)
	}
	return clusterIDOf(certificate.Subject.CommonName)
}

const (
	// operatorPrefix is the prefix of the client ids of administrators
	// (docs/protocol.md#authentication).
	operatorPrefix = "opr"
	// defaultIssueExpiry is a working day.
	defaultIssueExpiry = 24 * time.Hour
)

// issueOptions has the flags of operator issue.
type issueOptions struct {
	clusterOptions
	identity string
	expiry   time.Duration
}

func newOperatorIssueCommand() *cobra.Command {
	var options issueOptions
	command := &cobra.Command{
		Use:   "issue --storage-bucket BUCKET --identity-dir DIR",
		Short: "Issue a certificate for an administrator, with the rights of a tenant's operator",
		Long: "Issue a certificate for an administrator, with the rights of a tenant's operator.\n" +
			"The certificate has its own client id, so the certificate of the operator stays valid.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return err
			}
			client, certificate, err := options.issue(command.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "Issued a certificate of client %s in tenant %s. The certificate in %s is valid until %s.\n",
				client, options.tenant, options.identity, certificate.NotAfter.UTC().Format(time.RFC3339))
			return err
		},
	}
	options.addFlags(command.Flags())
	command.Flags().StringVar(&options.identity, identityfolder.Flag, os.Getenv(identityfolder.Env), identityfolder.Usage+" (required)")
	command.Flags().DurationVar(&options.expiry, "expiry", defaultIssueExpiry, "how long the certificate is valid")
	return command
}

func (o *issueOptions) validate() error {
	var wrong mistakes
	o.clusterOptions.validate(&wrong)
	if o.identity == "" {
		wrong.addf(identityfolder.Flag, "must be the folder for the identity")
	}
	if o.expiry <= 0 {
		wrong.addf("expiry", "%s must be greater than zero", o.expiry)
	}
	return wrong.join()
}

// issue writes the identity to the folder. It records the certificate first, so that every
// certificate can be revoked.
func (o *issueOptions) issue(ctx context.Context) (client string, certificate *x509.Certificate, err error) {
	loaded, err := o.loadKeys(ctx)
	if err != nil {
		return "", nil, err
	}
	store, err := o.open(ctx)
	if err != nil {
		return "", nil, err
	}
	key, err := identityfolder.EnsureKey(o.identity)
	if err != nil {
		return "", nil, fmt.Errorf("--%s: %w", identityfolder.Flag, err)
	}
	id, err := puidv7.New(operatorPrefix)
	if err != nil {
		return "", nil, err
	}
	identity := pki.Client{ID: id.String(), Tenant: o.tenant, Role: pki.RoleOperator}
	certificate, err = loaded.Authority.SignClient(identity, key.Public().(ed25519.PublicKey), o.expiry)
	if err != nil {
		return "", nil, err
	}
	if err := registration.RecordIssued(ctx, store, identity, certificate, loaded.Authority.Trust(certificate, loaded.Authority.Fingerprints())); err != nil {
		return "", nil, fmt.Errorf("record the certificate of client %s: %w", identity.ID, err)
	}
	err = o.audit(ctx, auditlog.Entry{
		Action: audit.IssueCertificate, Name: certificate.SerialNumber.Text(16), Tenant: o.tenant, Client: identity.ID,
		ExpiresAt: certificate.NotAfter, Reason: "command",
	})
	if err != nil {
		return "", nil, err
	}
	return identity.ID, certificate, identityfolder.WriteCertificates(o.identity, loaded.Authority.CertificatePEM(), pki.EncodeCertificate(certificate))
}
