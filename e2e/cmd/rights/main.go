// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command rights checks, after the tests of all clusters, that the operator used every
// right that the manifests grant to it. A right that it lacks has made a test fail before.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/rights"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: rights FOLDER, where the tests wrote their records")
		os.Exit(2)
	}
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(folder string) error {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return err
	}
	granted, err := rights.Granted(filepath.Join(root, "manifests"))
	if err != nil {
		return err
	}
	used, records, err := rights.Recorded(folder)
	if err != nil {
		return err
	}
	if records == 0 {
		return fmt.Errorf("no records in %s", folder)
	}
	unused := rights.Unused(granted, used)
	for _, right := range unused {
		fmt.Fprintf(os.Stderr, "manifests/rbac grants what no test uses: %s\n", right)
	}
	if len(unused) > 0 {
		return fmt.Errorf("%d of %d rights are not used", len(unused), len(granted))
	}
	fmt.Printf("the operator used all of its %d rights in %d clusters\n", len(granted), records)
	return nil
}
