// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/emptypb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func newConfigStatusCommand(options *shardOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show which configuration is in force",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			replies, err := callEach(command.Context(), options, func(ctx context.Context, client nstancev1.OperatorServiceClient) (*nstancev1.ConfigStatusResponse, error) {
				return client.GetConfigStatus(ctx, &emptypb.Empty{})
			})
			rows := newTable("SHARD", "ETAG", "BYTES", "MODIFIED")
			for _, a := range replies {
				modified := "unknown"
				if a.value.GetLastModified() != nil {
					modified = a.value.GetLastModified().AsTime().Format(time.RFC3339)
				}
				rows.add(a.shard, a.value.GetEtag(), strconv.FormatInt(a.value.GetSize(), 10), modified)
			}
			return errors.Join(err, rows.write(command))
		},
	}
}

func newConfigRefreshCommand(options *shardOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "refresh",
		Short: "Put the configuration in force if it has changed",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			replies, err := callEach(command.Context(), options, func(ctx context.Context, client nstancev1.OperatorServiceClient) (*nstancev1.RefreshConfigResponse, error) {
				return client.RefreshConfig(ctx, &emptypb.Empty{})
			})
			rows := newTable("SHARD", "UPDATED", "BEFORE", "ETAG")
			for _, a := range replies {
				rows.add(a.shard, strconv.FormatBool(a.value.GetUpdated()), a.value.GetPrevEtag(), a.value.GetEtag())
			}
			return errors.Join(err, rows.write(command))
		},
	}
}
