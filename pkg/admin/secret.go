// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	fromFileFlag = "from-file"
	// maxSecret is the maximum size of a secret, in bytes.
	maxSecret = 1 << 20
)

func newSecretSetCommand() *cobra.Command {
	var options keyOptions
	var path string
	command := &cobra.Command{
		Use:   "set NAME --storage-bucket BUCKET --from-file {PATH | -}",
		Short: "Store a secret, or replace it",
		Long: "Store a secret, encrypted with the key of the cluster, or replace it. The value is read from a file or from the " +
			"standard input and never from an argument, which other users of the machine could read. The servers send " +
			"a new value to agents with the next patch of files.",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			name := args[0]
			var wrong mistakes
			options.validate(&wrong)
			if path == "" {
				wrong.addf(fromFileFlag, "must be the path of the file with the value, or - for the standard input")
			}
			if err := errors.Join(checkSecretName(name), wrong.join()); err != nil {
				return err
			}
			value, err := readSecret(command.InOrStdin(), path)
			if err != nil {
				return fmt.Errorf("--%s: %w", fromFileFlag, err)
			}
			store, loaded, err := options.openSecrets(command.Context())
			if err != nil {
				return err
			}
			if loaded.In(value) {
				return fmt.Errorf("--%s: the value has %w", fromFileFlag, errClusterKey)
			}
			if err := options.auditSecret(command.Context(), audit.SetSecret, name, "command"); err != nil {
				return err
			}
			if err := store.Set(command.Context(), name, value); err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "Secret %s is stored, %d bytes.\n", name, len(value))
			return err
		},
	}
	options.addFlags(command.Flags())
	command.Flags().StringVar(&path, fromFileFlag, "", "path of the file with the value, - for the standard input (required)")
	return command
}

// auditSecret stores an entry of the audit log about a secret, before it is changed: no change is
// without an entry, and the change of an entry may have failed.
func (o *secretOptions) auditSecret(ctx context.Context, action audit.Action, name, reason string) error {
	return o.audit(ctx, auditlog.Entry{Action: action, Name: name, Reason: reason})
}

// readSecret reads a secret. The error contains no part of it.
func readSecret(stdin io.Reader, path string) ([]byte, error) {
	source := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }()
		source = file
	}
	value, err := io.ReadAll(io.LimitReader(source, maxSecret+1))
	switch {
	case err != nil:
		return nil, err
	case len(value) == 0:
		return nil, errors.New("the value is empty")
	case len(value) > maxSecret:
		return nil, fmt.Errorf("the value has more than %d bytes", maxSecret)
	}
	return value, nil
}

func newSecretListCommand() *cobra.Command {
	var options secretOptions
	command := &cobra.Command{
		Use:     "list --storage-bucket BUCKET",
		Short:   "List the names of the secrets",
		Args:    cobra.NoArgs,
		PreRunE: checkFormat,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			if options.validate(&wrong); len(wrong) > 0 {
				return wrong.join()
			}
			store, err := options.openWithoutKeys(command.Context())
			if err != nil {
				return err
			}
			names, err := store.List(command.Context())
			if err != nil {
				return err
			}
			names = slices.DeleteFunc(names, storage.IsReservedSecret)
			if command.Flag(formatFlag).Value.String() == formatJSON {
				rows := newTable("NAME")
				for _, name := range names {
					rows.add(name)
				}
				return rows.write(command)
			}
			// A name a line, for scripts.
			for _, name := range names {
				if _, err := fmt.Fprintln(command.OutOrStdout(), name); err != nil {
					return err
				}
			}
			return nil
		},
	}
	addFormatFlag(command.Flags())
	options.addFlags(command.Flags())
	return command
}

func newSecretDeleteCommand() *cobra.Command {
	var options secretOptions
	command := &cobra.Command{
		Use:   "delete NAME --storage-bucket BUCKET",
		Short: "Delete a secret",
		Long: "Delete a secret. Files of instances that are made of it can no longer be made, and instances that have them " +
			"keep them: change the configuration first.",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			name := args[0]
			var wrong mistakes
			options.validate(&wrong)
			if err := errors.Join(checkSecretName(name), wrong.join()); err != nil {
				return err
			}
			store, err := options.openWithoutKeys(command.Context())
			if err != nil {
				return err
			}
			if err := options.auditSecret(command.Context(), audit.DeleteSecret, name, "command"); err != nil {
				return err
			}
			if err := store.Delete(command.Context(), name); err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "Secret %s is deleted.\n", name)
			return err
		},
	}
	options.addFlags(command.Flags())
	return command
}

// errClusterKey means that a secret has the key of the certificate authority or of the nonces.
var errClusterKey = errors.New("a private key of the cluster, which no file of an instance may have")

func newSecretReencryptCommand() *cobra.Command {
	var options keyOptions
	command := &cobra.Command{
		Use:   "reencrypt --storage-bucket BUCKET",
		Short: "Encrypt all secrets in the storage again, with the current key",
		Long: "Encrypt all secrets in the storage again, with the current key, and bind each to its name. " +
			"Run it after an upgrade from a version that did not bind secrets to their names, because servers no longer read those, and after " +
			"the encryption key has changed, with --old-key. Secrets that need neither are left alone.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			options.validate(&wrong)
			if options.provider != config.SecretsInStorage {
				wrong.addf("secrets-provider", "must be %s: the services encrypt secrets themselves", config.SecretsInStorage)
			}
			if err := wrong.join(); err != nil {
				return err
			}
			return options.reencrypt(command.Context(), command.OutOrStdout())
		},
	}
	options.addFlags(command.Flags())
	return command
}

// reencrypt encrypts all secrets again. A secret that cannot be encrypted does not keep the
// others, because servers cannot read those meanwhile.
func (o *keyOptions) reencrypt(ctx context.Context, output io.Writer) error {
	store, loaded, err := o.openSecrets(ctx)
	if err != nil {
		return err
	}
	encrypted, ok := store.(*secrets.Encrypted)
	if !ok {
		return fmt.Errorf("secrets of type %T are not encrypted in the storage", store)
	}
	names, err := encrypted.List(ctx)
	if err != nil {
		return err
	}
	// The keys of nonce issuers are encrypted with keys of their own.
	names = slices.DeleteFunc(names, storage.IsNonceIssuerSecret)
	var failures []error
	for _, name := range names {
		replaced, err := encrypted.Reencrypt(ctx, name, func(data []byte) error {
			if !storage.IsReservedSecret(name) && loaded.In(data) {
				return fmt.Errorf("it has %w: delete it, and find out who has stored it", errClusterKey)
			}
			return o.auditSecret(ctx, audit.SetSecret, name, "encrypted again")
		})
		failures = append(failures, err)
		if replaced {
			_, err = fmt.Fprintf(output, "Secret %s is encrypted again.\n", name)
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// checkSecretName returns an error unless files of instances may use the secret.
func checkSecretName(name string) error {
	if err := storage.CheckKey(name); err != nil {
		return fmt.Errorf("NAME: %w", err)
	}
	if storage.IsReservedSecret(name) {
		return fmt.Errorf("NAME: %q is a key of the servers", name)
	}
	return nil
}
