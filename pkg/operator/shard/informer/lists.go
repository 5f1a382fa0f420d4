// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/conninfo"
	"nstance.dev/operator/pkg/operator/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// listPeriodically lists the groups after each opening of the watch, after each call of
// Relist, and at intervals.
func (r *groupReader) listPeriodically(ctx context.Context) {
	retry := r.groups.timing.newBackoff()
	next := time.NewTimer(r.groups.timing.connectTimeout)
	defer next.Stop()
	for {
		whole := false
		select {
		case <-ctx.Done():
			return
		case <-r.relist:
			whole = true
		case <-next.C:
		}
		if r.list(ctx, whole) {
			retry.Reset()
			next.Reset(jitter(r.groups.timing.listInterval))
		} else {
			next.Reset(retry.NextBackOff())
		}
	}
}

// list makes the cache equal to the server's groups and reports whether it succeeded. After a
// failure it does not wait for a connection, because its error becomes the reason why the
// shard is not reachable. Unless whole is set, the server may send only what has changed since an earlier
// list.
func (r *groupReader) list(ctx context.Context, whole bool) bool {
	began, known := time.Now(), ""
	if !whole {
		known = r.versions.known(began)
	}
	r.update(func(c *groupCache) []string {
		r.groups.lists++
		c.startList(r.groups.lists)
		return nil
	})
	limited, cancel := context.WithTimeout(ctx, r.groups.timing.callTimeout)
	defer cancel()
	if known != "" {
		limited = metadata.AppendToOutgoingContext(limited, identifier.GroupsVersionKey, known)
	}
	var server grpcpeer.Peer
	reply, err := r.client.ListGroups(limited, &emptypb.Empty{}, grpc.Peer(&server))
	groups, invalid, limitErr := convert(reply)
	if err == nil {
		err = limitErr
	}
	changes := reply.GetChanges()
	switch {
	case err != nil || !changes:
	case known == "":
		err = errors.New("the server has sent changes instead of all groups")
	case !conninfo.Of(&server).Verified():
		// All groups are needed to verify a server.
		return r.list(ctx, true)
	}
	if err == nil {
		err = r.verify(ctx, conninfo.Of(&server), groups)
	}
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		r.listFailed(ctx, err)
		return false
	}
	if changes {
		r.update(func(c *groupCache) (changed []string) {
			c.link.lastList = time.Now()
			changed, err = c.finishChanges(groups, reply.GetRemoved())
			return changed
		})
		if err != nil {
			r.listFailed(ctx, err)
			return false
		}
		r.versions.add(reply.GetVersion(), began, false)
		return true
	}
	r.versions.add(reply.GetVersion(), began, true)
	if len(invalid) != r.invalid {
		klog.FromContext(ctx).Info("Ignored groups whose names are not valid", "number", len(invalid), "first", first(invalid))
		r.invalid = len(invalid)
	}
	r.update(func(c *groupCache) []string {
		c.link.lastList = time.Now()
		return c.finishList(groups)
	})
	if info := conninfo.Of(&server); info != nil {
		info.Verify()
	}
	return true
}

// listFailed records that a list has failed. The next list is a whole list.
func (r *groupReader) listFailed(ctx context.Context, err error) {
	r.versions = versions{}
	klog.FromContext(ctx).V(2).Info("Cannot list groups", "err", err)
	err = fmt.Errorf("list the groups of shard %q: %w", r.shard, err)
	r.update(func(c *groupCache) []string {
		c.listFailed(err)
		return nil
	})
}

// convert returns the groups of a reply, and the keys that are no names of groups. Such a group
// cannot be a group of a pool, so it is ignored. The error is a *shard.LimitError.
func convert(reply *nstancev1.ListGroupsResponse) (groups []shard.Group, invalid []string, err error) {
	if err := shard.Exceeds(shard.LimitGroups, "groups", len(reply.GetGroups()), shard.MaxGroups); err != nil {
		return nil, nil, err
	}
	groups = make([]shard.Group, 0, len(reply.GetGroups()))
	var total shard.Size
	for _, message := range reply.GetGroups() {
		if identifier.Validate(message.GetKey()) != nil {
			invalid = append(invalid, message.GetKey())
			continue
		}
		group := wire.Group(message)
		size, err := shard.Measure(group)
		if err != nil {
			return nil, nil, err
		}
		total = total.Add(size)
		groups = append(groups, group)
	}
	return groups, invalid, total.Check()
}

// first returns the beginning of the first key, "" if there are no keys.
func first(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return keys[0][:min(len(keys[0]), identifier.MaxLength)]
}

const (
	// changesOverlap is how old the version is at least since which a list requests the changes. An
	// event, or a reply to UpsertGroup, may arrive after a list that was newer, and the next lists
	// must revert it. No event or reply is later than this.
	changesOverlap = time.Minute
	// wholeListInterval is the longest time between two lists of all groups. They repair what no list
	// of changes would.
	wholeListInterval = 10 * time.Minute
	// maxVersion is the maximum length of a version that is used.
	maxVersion = 100
)

// versions are the versions of the groups that the lists of one shard had, the oldest first. The zero
// value is empty: the next list is a list of all groups.
type versions struct {
	lists []listedVersion
	// whole is when the last list of all groups began.
	whole time.Time
}

type listedVersion struct {
	version string
	began   time.Time
}

// known returns the version since which a list that begins now requests the changes, "" if it requests all
// groups.
func (v *versions) known(now time.Time) string {
	v.trim(now)
	if len(v.lists) == 0 || now.Sub(v.lists[0].began) < changesOverlap || now.Sub(v.whole) >= wholeListInterval {
		return ""
	}
	return v.lists[0].version
}

// add adds the version of a list that has succeeded, "" from a server without this extension.
func (v *versions) add(version string, began time.Time, whole bool) {
	if whole {
		v.whole = began
	}
	if !isVersion(version) {
		*v = versions{}
		return
	}
	v.trim(began)
	v.lists = append(v.lists, listedVersion{version, began})
}

// isVersion reports whether a text can be the value of metadata. Any other would make calls fail.
func isVersion(text string) bool {
	return text != "" && len(text) <= maxVersion && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// trim drops the versions that are older than needed.
func (v *versions) trim(now time.Time) {
	for len(v.lists) > 1 && now.Sub(v.lists[1].began) >= changesOverlap {
		v.lists = v.lists[1:]
	}
}
