// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shardinit implements nstance-admin shard init: it writes the configuration of a shard and
// what else its server needs (docs/install.md#shard-init).
package shardinit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"nstance.dev/operator/pkg/server/provider"
)

// NewCommand returns the command init, which knows the given providers.
func NewCommand(known provider.Registry) *cobra.Command {
	var output string
	var force bool
	command := &cobra.Command{
		Use:   "init --provider PROVIDER --join JOIN --cluster-id ID --shard ID --storage-bucket BUCKET --address HOST",
		Short: "Write the configuration of a shard, userdata, rights and the unit of its server",
		Long: "Write a folder with what the server of a shard needs: its configuration, which is valid, the userdata of the " +
			"machines, the rights of the server (a CloudFormation template, or a script), a systemd unit, a script that " +
			"installs the server, a script that stores what machines join Kubernetes with, and a pool.\n\n" +
			"Nothing is called and no file is replaced without --force. If the standard input is a terminal, the command " +
			"asks for required flags that are missing.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			v, err := readSettings(command.Flags(), terminalAsker(command.InOrStdin(), command.ErrOrStderr()))
			if err != nil {
				return err
			}
			d, err := newDocument(v)
			if err != nil {
				return err
			}
			files, err := d.files(known)
			if err != nil {
				return err
			}
			folder := output
			if folder == "" {
				folder = v["shard"]
			}
			if err := write(folder, files, force); err != nil {
				return err
			}
			return d.describe(command.OutOrStdout(), folder, files)
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	addFlags(flags)
	flags.StringVar(&output, "output-dir", "", "folder for the files (default: the id of the shard)")
	flags.BoolVar(&force, "force", false, "replace files that exist")
	return command
}

// terminalAsker returns an asker if the user can answer, and otherwise nil.
func terminalAsker(input io.Reader, output io.Writer) asker {
	file, isFile := input.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return newAsker(input, output)
}

// newAsker returns an asker that repeats a question until the answer is allowed.
func newAsker(input io.Reader, output io.Writer) asker {
	lines := bufio.NewScanner(input)
	return func(s *setting) (string, error) {
		for {
			if _, err := fmt.Fprintf(output, "--%s, %s: ", s.name, s.usage); err != nil {
				return "", err
			}
			if !lines.Scan() {
				return "", errors.Join(fmt.Errorf("--%s: must be set: %s", s.name, s.usage), lines.Err())
			}
			answer := lines.Text()
			if answer == "" {
				continue
			}
			if s.check == nil {
				return answer, nil
			}
			err := s.check(answer)
			if err == nil {
				return answer, nil
			}
			if _, err := fmt.Fprintf(output, "%q %v\n", answer, err); err != nil {
				return "", err
			}
		}
	}
}
