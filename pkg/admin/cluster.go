// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/admin/identityfolder"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/rotation"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func newCACommand() *cobra.Command {
	var options clusterOptions
	var output string
	command := &cobra.Command{
		Use:   "ca --storage-bucket BUCKET",
		Short: "Print the certificate of the authority that servers and clients trust",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			options.validate(&wrong)
			validateOutput(&wrong, output)
			if err := wrong.join(); err != nil {
				return err
			}
			loaded, err := options.loadKeys(command.Context())
			if err != nil {
				return err
			}
			return write(command.OutOrStdout(), output, loaded.Authority.CertificatePEM())
		},
	}
	options.addFlags(command.Flags())
	addOutputFlag(command.Flags(), &output)
	return command
}

func newNonceCommand() *cobra.Command {
	var options nonceOptions
	var expiry time.Duration
	var output string
	command := &cobra.Command{
		Use:   "nonce --storage-bucket BUCKET",
		Short: "Make a nonce with which one operator can register",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			options.validate(&wrong)
			if expiry <= 0 {
				wrong.addf("expiry", "%s must be greater than zero", expiry)
			}
			if expiry > registration.MaxNonceLifetime {
				wrong.addf("expiry", "%s must be at most %s", expiry, registration.MaxNonceLifetime)
			}
			validateOutput(&wrong, output)
			if err := wrong.join(); err != nil {
				return err
			}
			signer, err := options.signer(command.Context())
			if err != nil {
				return err
			}
			token, err := options.operatorNonce(command.Context(), signer, expiry)
			if err != nil {
				return err
			}
			store, err := options.open(command.Context())
			if err != nil {
				return err
			}
			if err := warnOfNewTenant(command.Context(), command.ErrOrStderr(), store, options.tenant); err != nil {
				return err
			}
			return write(command.OutOrStdout(), output, []byte(token))
		},
	}
	options.addFlags(command.Flags())
	command.Flags().DurationVar(&expiry, "expiry", registration.DefaultNonceLifetime, "how long the nonce is valid, at most "+registration.MaxNonceLifetime.String())
	addOutputFlag(command.Flags(), &output)
	return command
}

// operatorNonce returns a nonce that the audit log has.
func (o *nonceOptions) operatorNonce(ctx context.Context, signer *registration.NonceSigner, lifetime time.Duration) (string, error) {
	expires := time.Now().Add(lifetime)
	token, err := signer.Operator(registration.OperatorNonce{
		ClusterID: o.clusterID,
		Tenant:    o.tenant,
		Lifetime:  lifetime,
	})
	if err != nil {
		return "", err
	}
	err = o.audit(ctx, auditlog.Entry{
		Action: audit.IssueNonce, Name: storage.OperatorNonceKey(token), Tenant: o.tenant, Client: o.clusterID, ExpiresAt: expires.UTC(), Reason: o.reason(),
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

// registerOptions has the flags of cluster register-operator.
type registerOptions struct {
	cluster      nonceOptions
	registration string
	identity     string
	timeout      time.Duration
}

func newRegisterCommand() *cobra.Command {
	var options registerOptions
	command := &cobra.Command{
		Use:   "register-operator --storage-bucket BUCKET --registration HOST:PORT --identity-dir DIR",
		Short: "Get a certificate to call servers with, as the operator of a tenant has it",
		Long: "Get a certificate to call servers with, as the operator of a tenant has it.\n" +
			"A tenant has one operator: the certificate replaces the present one, which is accepted for another 10 minutes.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(command.Context(), options.timeout)
			defer cancel()
			expires, err := options.register(ctx)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "Registered as the operator of tenant %s in cluster %s. The certificate in %s is valid until %s.\n",
				options.cluster.tenant, options.cluster.clusterID, options.identity, expires.Format(time.RFC3339))
			return err
		},
	}
	options.cluster.addFlags(command.Flags())
	command.Flags().StringVar(&options.registration, "registration", "", "address for registrations of the server that leads the cluster, host:port (required)")
	command.Flags().StringVar(&options.identity, identityfolder.Flag, os.Getenv(identityfolder.Env), identityfolder.Usage+" (required)")
	command.Flags().DurationVar(&options.timeout, timeoutFlag, defaultTimeout, timeoutUsage)
	return command
}

func (o *registerOptions) validate() error {
	var wrong mistakes
	o.cluster.validate(&wrong)
	wrong.add("registration", validateAddress(o.registration))
	if o.identity == "" {
		wrong.addf(identityfolder.Flag, "must be the folder for the identity")
	}
	if o.timeout <= 0 {
		wrong.addf(timeoutFlag, "%s must be greater than zero", o.timeout)
	}
	return wrong.join()
}

// register exchanges a nonce and a public key for a certificate. It stores the
// private key first, so that no certificate is issued without a stored key.
func (o *registerOptions) register(ctx context.Context) (expires time.Time, err error) {
	signer, err := o.cluster.signer(ctx)
	if err != nil {
		return time.Time{}, err
	}
	key, err := identityfolder.EnsureKey(o.identity)
	if err != nil {
		return time.Time{}, fmt.Errorf("--%s: %w", identityfolder.Flag, err)
	}
	request, err := keys.NewRequest(key)
	if err != nil {
		return time.Time{}, err
	}
	// The nonce is used at once, so a short lifetime is enough.
	token, err := o.cluster.operatorNonce(ctx, signer, min(o.timeout+time.Minute, registration.MaxNonceLifetime))
	if err != nil {
		return time.Time{}, err
	}
	caPEM, err := o.cluster.authorityPEM(ctx)
	if err != nil {
		return time.Time{}, err
	}
	tlsConfig, err := identityfolder.Trust(caPEM)
	if err != nil {
		return time.Time{}, err
	}
	connection, err := dial(o.registration, tlsConfig)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = connection.Close() }()
	response, err := nstancev1.NewRegistrationServiceClient(connection).RegisterOperator(ctx, &nstancev1.RegisterClientRequest{
		RegistrationNonceJwt: token,
		PublicKeyPem:         request.PublicKeyPEM,
		CertificateRequest:   request.CertificateRequest,
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("register at %s: %w", o.registration, statusError(err))
	}
	return response.GetExpiresAt().AsTime(), identityfolder.WriteCertificates(o.identity, caPEM, response.GetClientCertificatePem())
}

// caOptions has the flags of the commands that replace the CA.
type caOptions struct {
	keyOptions
	without []string
}

func newCABeginCommand() *cobra.Command {
	return newCACommandFor("begin", "Create the next authority, and let servers and clients accept it beside the present one", "",
		func(ctx context.Context, store storage.Store, opened secrets.Store) (string, error) {
			return "The next authority is accepted. \"ca status\" shows who has not loaded it yet. Then run \"ca switch\".", clusterkeys.Begin(ctx, store, opened)
		})
}

func newCASwitchCommand() *cobra.Command {
	return newCACommandFor("switch", "Let the next authority issue, when all servers and clients accept it", clusterkeys.PhaseAccept,
		func(ctx context.Context, store storage.Store, _ secrets.Store) (string, error) {
			return "The next authority issues. \"ca status\" shows who has no certificate of it yet. Then run \"ca finish\".", clusterkeys.Switch(ctx, store)
		})
}

func newCAFinishCommand() *cobra.Command {
	return newCACommandFor("finish", "Stop accepting the old authority, and delete its key, when all clients have a certificate of the next", clusterkeys.PhaseIssue,
		func(ctx context.Context, store storage.Store, opened secrets.Store) (string, error) {
			return "The old authority is no longer accepted, and its key is deleted.", clusterkeys.Finish(ctx, store, opened)
		})
}

func newCACancelCommand() *cobra.Command {
	return newCACommandFor("cancel", "Stop accepting the next authority, before \"ca switch\"", "",
		func(ctx context.Context, store storage.Store, opened secrets.Store) (string, error) {
			return "The next authority is no longer accepted, and its key is deleted.", clusterkeys.Cancel(ctx, store, opened)
		})
}

// newCACommandFor returns a command that begins a phase of the replacement. If after is a phase,
// all servers and clients must have followed it.
func newCACommandFor(
	use, short string, after clusterkeys.Phase, do func(context.Context, storage.Store, secrets.Store) (done string, err error),
) *cobra.Command {
	var options caOptions
	command := &cobra.Command{
		Use:   use + " --storage-bucket BUCKET",
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			options.validate(&wrong)
			if err := wrong.join(); err != nil {
				return err
			}
			ctx := command.Context()
			store, opened, err := options.openStores(ctx)
			if err != nil {
				return err
			}
			if after != clusterkeys.PhaseNone {
				if err := options.checkFollowed(ctx, store, after); err != nil {
					return err
				}
			}
			reason := "command"
			if len(options.without) > 0 {
				reason += ", without " + strings.Join(options.without, ", ")
			}
			if err := options.audit(ctx, auditlog.Entry{Action: audit.ReplaceCA, Name: use, Reason: reason}); err != nil {
				return err
			}
			done, err := do(ctx, store, opened)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(command.OutOrStdout(), done)
			return err
		},
	}
	options.addFlags(command.Flags())
	if after != clusterkeys.PhaseNone {
		command.Flags().StringArrayVar(&options.without, "without", nil,
			"name, as \"ca status\" prints it, of a server or client that has not followed and loses its connection; may be repeated")
	}
	return command
}

// checkFollowed returns an error that names the servers and clients that have not followed a
// phase, without those that the user has named.
func (o *caOptions) checkFollowed(ctx context.Context, store storage.Store, phase clusterkeys.Phase) error {
	present, _, err := clusterkeys.ReadAuthorities(ctx, store)
	if err != nil {
		return err
	}
	if present.Phase != phase {
		return nil // the step returns the error
	}
	behind, err := rotation.Check(ctx, store, time.Now())
	if err != nil {
		return err
	}
	if err := rotation.Without(behind, o.without); err != nil {
		return fmt.Errorf("wait, or name what may lose its connection with --without: %w", err)
	}
	return nil
}

func newCAStatusCommand() *cobra.Command {
	var options storageOptions
	command := &cobra.Command{
		Use:   "status --storage-bucket BUCKET",
		Short: "Print the phase of the replacement of the CA, and who has not followed it",
		Args:  cobra.NoArgs,
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
			return printCAStatus(command.Context(), command.OutOrStdout(), store)
		},
	}
	options.addFlags(command.Flags())
	return command
}

func printCAStatus(ctx context.Context, w io.Writer, store storage.Store) error {
	present, _, err := clusterkeys.ReadAuthorities(ctx, store)
	if err != nil {
		return err
	}
	fingerprints, err := present.Fingerprints()
	if err != nil {
		return err
	}
	behind, err := rotation.Check(ctx, store, time.Now())
	if err != nil {
		return err
	}
	roles := map[clusterkeys.Phase][]string{
		clusterkeys.PhaseNone: {"issues"}, clusterkeys.PhaseAccept: {"issues", "next, accepted"}, clusterkeys.PhaseIssue: {"issues", "old, accepted"},
	}[present.Phase]
	authorities := newTable("AUTHORITY", "STATE")
	for i, fingerprint := range fingerprints {
		state := "accepted"
		if i < len(roles) {
			state = roles[i]
		}
		authorities.add(fingerprint, state)
	}
	if err := authorities.print(w); err != nil {
		return err
	}
	switch {
	case present.Phase == clusterkeys.PhaseNone:
		_, err = fmt.Fprintln(w, "The CA is not being replaced.")
	case len(behind) == 0:
		_, err = fmt.Fprintf(w, "All have followed phase %s.\n", present.Phase)
	}
	if err != nil {
		return err
	}
	rows := newTable("NOT FOLLOWED", "REASON")
	for _, b := range behind {
		rows.add(b.Name, b.Reason)
	}
	return rows.print(w)
}
