// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// write writes the files to a folder. It writes none if one exists, unless force is set.
func write(folder string, files []file, force bool) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("--output-dir: %w", err)
	}
	var present []string
	for _, f := range files {
		path := filepath.Join(folder, f.name)
		if _, err := os.Lstat(path); err == nil {
			present = append(present, path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("--output-dir: %w", err)
		}
	}
	if len(present) > 0 && !force {
		return fmt.Errorf("--output-dir: these files exist, repeat the command with --force to replace them: %s", strings.Join(present, ", "))
	}
	for _, f := range files {
		if err := replace(filepath.Join(folder, f.name), f); err != nil {
			return fmt.Errorf("--output-dir: %w", err)
		}
	}
	return nil
}

// replace writes a file completely or not at all.
func replace(path string, f file) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), f.name+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.WriteString(f.text)
	if err := errors.Join(err, temporary.Chmod(f.mode), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}

// purposes says for each file what it is for.
var purposes = map[string]string{
	"userdata.sh":            "userdata of the machines; the configuration contains it",
	"userdata.mime":          "userdata of the machines; the configuration contains it",
	"join-secret.sh":         "stores what machines join with: run it every hour on a machine of the control plane",
	"nstance-server.service": "systemd unit of the server",
	"install.sh":             "installs the server, on its machine",
	"pool.yaml":              "a pool of one machine, for kubectl apply",
	"stack.json":             "CloudFormation template: roles and bucket of the cluster, once for all shards",
	"setup.sh":               "rights of the server",
}

// describe prints what was written, and the next step.
func (d *document) describe(w io.Writer, folder string, files []file) error {
	var text strings.Builder
	for _, f := range files {
		purpose := purposes[f.name]
		if f.name == d.ConfigFile {
			purpose = "configuration of the shard, valid"
		}
		fmt.Fprintf(&text, "%s  %s\n", filepath.Join(folder, f.name), purpose)
	}
	fmt.Fprintf(&text, "\nNext: nstance-admin cluster init --cluster-id %s --storage %s --storage-bucket %s", d.V["cluster"], d.V["storage"], d.V["bucket"])
	if d.V["prefix"] != "" {
		fmt.Fprintf(&text, " --storage-prefix %s", d.V["prefix"])
	}
	fmt.Fprintf(&text, " --key-provider file --key encryption.key --config %s --identity-dir identity\n", filepath.Join(folder, d.ConfigFile))
	if d.JoinKubeconfig != nil {
		text.WriteString("Then let the API server accept the certificates of the machines: add identity/ca.crt to the file of its --client-ca-file.\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}
