// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/plugin/dashboard"
)

func newDashboard(o *options) *cobra.Command {
	var port uint16
	command := &cobra.Command{
		Use:   "dashboard",
		Short: "Show pools, shards, instances, Nodes and drains in the browser, as they change",
		Long: `Serve a page that shows pools, their shards, instances and Nodes, the drains in progress and
what blocks them, and the last events, as they change. It is served on 127.0.0.1 only, until
Ctrl-C, and shows everyone who can connect there what the user may read.`,
		Example: `  # The pools of all namespaces
  kubectl nstance dashboard -A

  # At an address that stays the same
  kubectl nstance dashboard --port 8080`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if o.output != "" || o.noHeaders {
				return errors.New("dashboard prints no table: it has neither --output nor --no-headers")
			}
			g, err := o.gatherer()
			if err != nil {
				return err
			}
			source, err := o.source()
			if err != nil {
				return err
			}
			ctx := command.Context()
			listener, err := dashboard.Listen(ctx, port)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(o.streams.Out, "The dashboard is at %s until Ctrl-C.\n", dashboard.URL(listener))
			return dashboard.Serve(ctx, listener, source, g.Dashboard)
		},
	}
	command.Flags().Uint16Var(&port, "port", 0, "port on 127.0.0.1, 0 for any free one")
	return command
}

// source returns the name of the cluster: the context of the kubeconfig, or the host of the
// server. A URL may have a password.
func (o *options) source() (string, error) {
	config, err := o.config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return "", err
	}
	server, err := url.Parse(ptr.Deref(o.config.APIServer, ""))
	if err != nil {
		return "", err
	}
	return cmp.Or(ptr.Deref(o.config.Context, ""), config.CurrentContext, server.Host), nil
}
