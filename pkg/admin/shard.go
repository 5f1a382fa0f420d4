// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

const shardFlag = "shard"

func newShardResetGroupsCommand() *cobra.Command {
	var options storageOptions
	var shard string
	command := &cobra.Command{
		Use:   "reset-groups --storage-bucket BUCKET --shard SHARD",
		Short: "Confirm that the groups of a shard are lost",
		Long: "Confirm that the object with the dynamic groups of a shard is lost and that there is no backup: an empty one is " +
			"created, if there is none. The server of the shard then serves again. It terminates no instance of the lost " +
			"groups, and keeps them until an operator sends their groups, or until they are deleted.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			options.validate(&wrong)
			wrong.add(shardFlag, identifier.Validate(shard))
			if err := wrong.join(); err != nil {
				return err
			}
			store, err := options.open(command.Context())
			if err != nil {
				return err
			}
			if err := checkShard(command.Context(), store, shard); err != nil {
				return err
			}
			if err := groups.Reset(command.Context(), store, shard); err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "Shard %s has no dynamic groups now. Its server serves within seconds.\n", shard)
			return err
		},
	}
	options.addFlags(command.Flags())
	command.Flags().StringVar(&shard, shardFlag, "", "id of the shard (required)")
	return command
}

func newShardAcceptLossesCommand() *cobra.Command {
	var options storageOptions
	var shard string
	command := &cobra.Command{
		Use:   "accept-losses GROUP --storage-bucket BUCKET --shard SHARD",
		Short: "Confirm that the missing instances of a group are lost",
		Long: "Confirm that the instances of a group that the provider does not list are lost. A shard leaves them alone if they " +
			"are many, because the list may be wrong. It replaces those that are missing now within seconds.",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			var wrong mistakes
			options.validate(&wrong)
			wrong.add(shardFlag, identifier.Validate(shard))
			key := instance.GroupKey{Tenant: options.tenant, Group: args[0]}
			wrong.add("group", groups.ValidateKey(key))
			if err := wrong.join(); err != nil {
				return err
			}
			store, err := options.open(command.Context())
			if err != nil {
				return err
			}
			if err := checkShard(command.Context(), store, shard); err != nil {
				return err
			}
			if err := checkGroup(command.Context(), store, shard, key); err != nil {
				return err
			}
			if err := instance.AcceptLosses(command.Context(), store, shard, key); err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "The missing instances of group %s in shard %s are replaced within seconds.\n", key, shard)
			return err
		},
	}
	options.addFlags(command.Flags())
	command.Flags().StringVar(&shard, shardFlag, "", "id of the shard (required)")
	options.addTenantFlag(command.Flags())
	return command
}

// checkShard returns an error if the storage has nothing of a shard: its name is misspelled, or the
// bucket is another one. The groups of the shard may be lost, but not its configuration as well.
func checkShard(ctx context.Context, store storage.Store, shard string) error {
	known := sets.New[string]()
	for _, prefix := range []string{"config/", "accepted/", "groups/", "instance/"} {
		infos, err := store.List(ctx, prefix)
		if err != nil {
			return fmt.Errorf("list the shards in the storage: %w", err)
		}
		for _, info := range infos {
			name, _, _ := strings.Cut(strings.TrimPrefix(info.Key, prefix), "/")
			known.Insert(strings.TrimSuffix(name, ".jsonc"))
		}
	}
	if known.Has(shard) {
		return nil
	}
	return fmt.Errorf("--%s: the storage has no configuration, group or instance of shard %q; it has %s", shardFlag, shard, listed(known))
}

// checkGroup returns an error if nothing in the storage has a group. An object that cannot be read
// may have it: the error then says so.
func checkGroup(ctx context.Context, store storage.Store, shard string, key instance.GroupKey) error {
	known := sets.New[string]()
	var unread []error
	for object, path := range map[string]string{storage.ConfigKey(shard): "groups", storage.AcceptedKey(shard): "groups", storage.GroupsKey(shard): ""} {
		names, err := groupsIn(ctx, store, object, path, key.Tenant)
		if err != nil {
			unread = append(unread, err)
		}
		known.Insert(names...)
	}
	if known.Has(key.Group) {
		return nil
	}
	// A group that was lost is known from the records of its instances.
	infos, err := store.List(ctx, storage.InstancePrefix(shard)+key.Tenant+".")
	if err != nil {
		unread = append(unread, fmt.Errorf("list the instances of shard %s: %w", shard, err))
	}
	for _, info := range infos {
		record, err := readRecord(ctx, store, info.Key)
		switch {
		case errors.Is(err, storage.ErrNotFound): // deleted since
		case err != nil:
			unread = append(unread, err)
		case record.Group == key.Group:
			return nil
		default:
			known.Insert(record.Group)
		}
	}
	if len(unread) > 0 {
		return fmt.Errorf("it is not known whether group %s exists: %w", key, errors.Join(unread...))
	}
	return fmt.Errorf("shard %s has no group %s; the groups of tenant %s are %s", shard, key, key.Tenant, listed(known))
}

func readRecord(ctx context.Context, store storage.Store, key string) (instance.Record, error) {
	object, err := store.Get(ctx, key)
	if err != nil {
		return instance.Record{}, err
	}
	record, err := instance.UnmarshalRecord(object.Data)
	if err != nil {
		return instance.Record{}, fmt.Errorf("object %s: %w", key, err)
	}
	return record, nil
}

// groupsIn returns the groups of a tenant in an object, none if the object does not exist.
func groupsIn(ctx context.Context, store storage.Store, key, path, tenant string) ([]string, error) {
	object, err := store.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var mistakes field.ErrorList
	parsed, err := jsonc.Parse(object.Data, &mistakes)
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", key, err)
	}
	if path != "" {
		if !parsed.IsObject(path) {
			return nil, nil
		}
		parsed = parsed.Object(path)
	}
	if !parsed.IsObject(tenant) {
		return nil, nil
	}
	return parsed.Object(tenant).Names(), nil
}

// listed returns names for a message.
func listed(names sets.Set[string]) string {
	if names.Len() == 0 {
		return "none"
	}
	return strings.Join(sets.List(names), ", ")
}
