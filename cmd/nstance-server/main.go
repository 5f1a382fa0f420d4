// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command nstance-server is the server of one shard: it keeps the groups of the
// shard at their size and serves operators.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"

	"nstance.dev/operator/pkg/base/flagenv"
	"nstance.dev/operator/pkg/base/programversion"
	"nstance.dev/operator/pkg/server"

	// The CA certificates of public services, because images do not contain them.
	_ "golang.org/x/crypto/x509roots/fallback"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nstance-server:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var options server.Options
	// validate is the value of --validate. Without a value, the configuration in the
	// storage is validated.
	var validate string
	const ofStorage = "-"
	logging := logsapi.NewLoggingConfiguration()
	command := &cobra.Command{
		Use:   "nstance-server --shard ID --storage file|gcs|s3 --bucket NAME --cache-dir DIR",
		Short: "Keep the groups of one shard at their size",
		Long: `Keep the groups of one shard at their size.

What is durable is in an object storage that the servers of all shards share: a
folder (--storage file) or a bucket (--storage gcs, or --storage s3, which takes
endpoint, region and keys from the AWS_ environment variables). The configuration
of the shard is the object config/SHARD.jsonc in it, JSON with comments. It is
read again when it changes.

Each flag can also be set by an environment variable: --cache-dir by
NSTANCE_CACHE_DIR. A flag on the command line has precedence.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		PreRunE: func(command *cobra.Command, _ []string) error {
			if err := flagenv.Set(command.Flags(), os.LookupEnv); err != nil {
				return err
			}
			if validate != "" && validate != ofStorage {
				return nil // no storage needed
			}
			needed := []string{"shard", "storage", "bucket"}
			if validate == "" {
				needed = append(needed, "cache-dir")
			}
			for _, name := range needed {
				if command.Flag(name).Value.String() == "" {
					return fmt.Errorf("--%s is mandatory", name)
				}
			}
			return nil
		},
		RunE: func(command *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			defer logs.FlushLogs()
			switch validate {
			case "":
				return server.Run(command.Context(), options)
			case ofStorage:
				return server.Validate(command.Context(), options, "", command.OutOrStdout())
			default:
				return server.Validate(command.Context(), options, validate, command.OutOrStdout())
			}
		},
	}
	command.Version = programversion.Text(command.Name())
	command.SetVersionTemplate("{{.Version}}\n")
	flags := command.Flags()
	flags.StringVar(&options.Shard, "shard", "", "id of the shard")
	flags.StringVar(&options.ID, "id", "", "id of this server among those of the shard, of which no other may have it (default: one that is made once and kept in the cache folder)")
	flags.StringVar(&options.Host, "host", "", "host of this server: it replaces that of every address in the configuration, which all servers of the shard share")
	flags.StringVar(&options.Storage, "storage", "", "object storage: file, gcs or s3")
	flags.StringVar(&options.Bucket, "bucket", "", "folder or bucket of the object storage")
	flags.StringVar(&options.Prefix, "prefix", "", "what all keys in the object storage begin with")
	flags.StringVar(&options.CacheDir, "cache-dir", "", "folder of this server alone; nothing is lost with it")
	flags.StringVar(&validate, "validate", "", "check a configuration and exit: --validate=FILE, or without a file the one in the object storage")
	flags.Lookup("validate").NoOptDefVal = ofStorage
	// The command validate has replaced the flag.
	_ = flags.MarkHidden("validate")
	logsapi.AddFlags(logging, flags)
	command.AddCommand(newValidateCommand())
	command.SetGlobalNormalizationFunc(adminNames)
	return command
}

// adminNames lets the flags of the storage have the names that they have in nstance-admin too.
func adminNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "storage-bucket":
		name = "bucket"
	case "storage-prefix":
		name = "prefix"
	}
	return pflag.NormalizedName(name)
}

// newValidateCommand returns the command that checks a configuration.
func newValidateCommand() *cobra.Command {
	var options server.Options
	command := &cobra.Command{
		Use:   "validate [FILE | --shard ID --storage file|gcs|s3 --bucket NAME]",
		Short: "Check a configuration and list every mistake",
		Long:  "Check a configuration and list every mistake: that in a file, or that of a shard in the object storage.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) == 1 {
				return server.Validate(command.Context(), options, args[0], command.OutOrStdout())
			}
			if err := flagenv.Set(command.Flags(), os.LookupEnv); err != nil {
				return err
			}
			for _, name := range []string{"shard", "storage", "bucket"} {
				if command.Flag(name).Value.String() == "" {
					return fmt.Errorf("FILE or --%s is mandatory", name)
				}
			}
			return server.Validate(command.Context(), options, "", command.OutOrStdout())
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Shard, "shard", "", "id of the shard")
	flags.StringVar(&options.Storage, "storage", "", "object storage: file, gcs or s3")
	flags.StringVar(&options.Bucket, "bucket", "", "folder or bucket of the object storage")
	flags.StringVar(&options.Prefix, "prefix", "", "what all keys in the object storage begin with")
	return command
}
