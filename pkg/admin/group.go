// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/config"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// auditWriter is the writer in lines of the audit trail, which klog prints to standard
// error.
const auditWriter = "nstance-admin"

func newGroupListCommand(options *shardOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the groups of the tenant",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			replies, err := callEach(command.Context(), options, listGroups)
			rows := newTable("SHARD", "GROUP", "TEMPLATE", "TYPE", "SUBNETS", "SIZE", "ACTUAL", "STATIC")
			for _, a := range replies {
				for _, g := range a.value {
					rows.add(a.shard, g.GetKey(), g.GetTemplate(), g.GetInstanceType(), strings.Join(g.GetSubnets(), ","),
						formatSize(g.GetSize()), formatSize(g.GetActualSize()), strconv.FormatBool(g.GetIsStatic()))
				}
			}
			return errors.Join(err, rows.write(command))
		},
	}
}

func listGroups(ctx context.Context, client nstancev1.OperatorServiceClient) ([]*nstancev1.GroupStatus, error) {
	answer, err := client.ListGroups(ctx, &emptypb.Empty{})
	if err != nil {
		return nil, err
	}
	groups := answer.GetGroups()
	slices.SortFunc(groups, func(a, b *nstancev1.GroupStatus) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	return groups, nil
}

// scaled is a group before and after scaling.
type scaled struct {
	before, after *nstancev1.GroupStatus
}

func newGroupScaleCommand(options *shardOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "scale GROUP SIZE",
		Short: "Set the size that a group has on each shard that is called",
		Args:  cobra.ExactArgs(2),
		RunE: func(command *cobra.Command, args []string) error {
			group, size, err := parseScale(args)
			if err != nil {
				return err
			}
			replies, err := callEach(command.Context(), options, func(ctx context.Context, client nstancev1.OperatorServiceClient) (scaled, error) {
				return scale(ctx, client, group, size)
			})
			rows := newTable("SHARD", "GROUP", "BEFORE", "SIZE", "ACTUAL")
			for _, a := range replies {
				if from, to := a.value.before.GetSize(), a.value.after.GetSize(); to < from {
					audit.Entry{
						Action: audit.ShrinkGroup, Shard: a.shard, Group: group, From: from, To: to, Writer: auditWriter,
						Reason: "scale-down", Result: audit.Accepted, RequestID: a.requestID,
					}.Log(command.Context())
				}
				rows.add(a.shard, group, formatSize(a.value.before.GetSize()), formatSize(a.value.after.GetSize()), formatSize(a.value.after.GetActualSize()))
			}
			return errors.Join(err, rows.write(command))
		},
	}
}

func newGroupDeleteCommand(options *shardOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "delete GROUP",
		Short: "Delete a group and terminate its instances on each shard that is called",
		Long: "Delete a group and terminate its instances, after a drain, on each shard that is called. A static group " +
			"returns to its configured size.\n\nA group that an operator has a pool of is created again: delete the pool instead.",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			group := args[0]
			if err := validateGroup(group); err != nil {
				return err
			}
			replies, err := callEach(command.Context(), options, func(ctx context.Context, client nstancev1.OperatorServiceClient) (*emptypb.Empty, error) {
				return client.DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Key: group})
			})
			rows := newTable("SHARD", "GROUP")
			for _, a := range replies {
				audit.Entry{
					Action: audit.DeleteGroup, Shard: a.shard, Group: group, Writer: auditWriter, Reason: "requested",
					Result: audit.Accepted, RequestID: a.requestID,
				}.Log(command.Context())
				rows.add(a.shard, group)
			}
			return errors.Join(err, rows.write(command))
		},
	}
}

func validateGroup(group string) error {
	if err := identifier.Validate(group); err != nil {
		return fmt.Errorf("GROUP: %w", err)
	}
	return nil
}

func parseScale(args []string) (group string, size int32, err error) {
	group = args[0]
	if err := validateGroup(group); err != nil {
		return "", 0, err
	}
	number, err := strconv.ParseUint(args[1], 10, 31)
	if err != nil || number > config.MaxSize {
		return "", 0, fmt.Errorf("SIZE: %q must be a whole number from 0 to %d", args[1], config.MaxSize)
	}
	return group, int32(number), nil
}

// scale changes the size of an existing group. The request has only the size, the deletion
// candidates, the grant of the rotation and the instances to replace: every request replaces these,
// and the server keeps omitted fields, including concurrent changes of other clients. Without a
// template the request cannot create the group again if it was deleted meanwhile.
func scale(ctx context.Context, client nstancev1.OperatorServiceClient, group string, size int32) (scaled, error) {
	groups, err := listGroups(ctx, client)
	if err != nil {
		return scaled{}, err
	}
	i := slices.IndexFunc(groups, func(g *nstancev1.GroupStatus) bool { return g.GetKey() == group })
	if i < 0 {
		return scaled{}, fmt.Errorf("there is no group %q, only %s", group, groupNames(groups))
	}
	if groups[i].GetDeleting() {
		return scaled{}, fmt.Errorf("group %q is being deleted", group)
	}
	after, err := client.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{
		Key: group, Config: &nstancev1.GroupConfig{Size: size}, RemoveFirst: groups[i].GetRemoveFirst(),
		Rotation: groups[i].GetRotation(), Replace: groups[i].GetReplace(),
	})
	if err != nil {
		return scaled{}, err
	}
	return scaled{before: groups[i], after: after}, nil
}

func groupNames(groups []*nstancev1.GroupStatus) string {
	names := make([]string, 0, len(groups))
	for _, g := range groups {
		names = append(names, strconv.Quote(g.GetKey()))
	}
	return "[" + strings.Join(names, ", ") + "]"
}

func formatSize(size int32) string {
	return strconv.FormatInt(int64(size), 10)
}
