// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command nstance-admin is for administrators of shard servers: it creates the
// nonces that operators register with, lists and scales groups, and checks providers.
package main

import (
	"fmt"
	"os"

	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/base/terminal"

	// The CA certificates of public services, because images do not contain them.
	_ "golang.org/x/crypto/x509roots/fallback"
)

func main() {
	ctx, stop := admin.SignalContext()
	err := admin.NewCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(terminal.NewWriter(os.Stderr), "nstance-admin:", err)
		os.Exit(admin.ExitCode(err))
	}
}
