// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// twoShards starts the servers of two shards of a cluster. The instances of the
// first never run.
func twoShards(t *testing.T) (a, b *servertest.Server) {
	t.Helper()
	a = servertest.Start(t, servertest.Options{
		Shard:       "us-west-2a",
		SubnetPools: `{"default": ["subnet-a"], "public": ["subnet-b"]}`,
		Groups:      `{"default": {"main": {"template": "worker", "size": 2}}, "other": {"theirs": {"template": "worker", "size": 0}}}`,
		BootDelay:   time.Hour,
	})
	b = servertest.Start(t, servertest.Options{Shard: "us-west-2b", Authority: a.Authority})
	return a, b
}

func upsert(t *testing.T, s *servertest.Server, group string, c *nstancev1.GroupConfig) {
	t.Helper()
	_, err := s.Operator("default").UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: group, Config: c})
	require.NoError(t, err)
}

// groupsOf returns the groups of a server by id, without the fields that depend on
// instances.
func groupsOf(t *testing.T, s *servertest.Server) map[string]*nstancev1.GroupStatus {
	t.Helper()
	listed, err := s.Operator("default").ListGroups(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	groups := map[string]*nstancev1.GroupStatus{}
	for _, g := range listed.Groups {
		g.ActualSize, g.ProviderIds = 0, nil
		groups[g.Key] = g
	}
	return groups
}

func TestGroupList(t *testing.T) {
	a, b := twoShards(t)
	upsert(t, a, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 10, InstanceType: "c7i.xlarge", Subnets: []string{"public", "default"}})
	flags := append(shardFlags(register(t, a), "us-west-2b="+b.Addr, "us-west-2a="+a.Addr), "group", "list")
	want := `
SHARD        GROUP     TEMPLATE   TYPE         SUBNETS          SIZE   ACTUAL   STATIC
us-west-2a   main      worker     m7i.large    default          2      0        true
us-west-2a   workers   worker     c7i.xlarge   public,default   10     0        false
`
	for _, which := range [][]string{{"--shard", "us-west-2a"}, {"--all-shards"}} {
		if got := "\n" + mustRun(t, reorder(flags, which)...); got != want {
			t.Errorf("%v: got%swant%s", which, got, want)
		}
	}
	// The output has the order of the flags.
	upsert(t, b, "zoo", &nstancev1.GroupConfig{Template: "worker"})
	printed := mustRun(t, reorder(flags, []string{"--all-shards"})...)
	if zoo, main := strings.Index(printed, "zoo"), strings.Index(printed, "main"); zoo < 0 || zoo > main {
		t.Errorf("printed\n%s", printed)
	}
	if printed := mustRun(t, reorder(flags, []string{"--shard", "us-west-2b"})...); strings.Contains(printed, "us-west-2a") {
		t.Errorf("another shard was called:\n%s", printed)
	}
}

// reorder moves the command's words before all flags.
func reorder(flagsThenCommand, more []string) []string {
	n := len(flagsThenCommand) - 2
	return append(append(append([]string{}, flagsThenCommand[n:]...), flagsThenCommand[:n]...), more...)
}

func TestGroupScaleKeepsEverythingElse(t *testing.T) {
	a, _ := twoShards(t)
	upsert(t, a, "workers", &nstancev1.GroupConfig{
		Template: "worker", Size: 1, InstanceType: "c7i.xlarge", Subnets: []string{"public"}, Vars: map[string]string{"a": "b"},
	})
	candidate := newInstanceID(t)
	_, err := a.Operator("default").UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: "workers", Config: &nstancev1.GroupConfig{Size: 1}, RemoveFirst: []string{candidate},
		Rotation: &nstancev1.RotationGrant{MaxSurge: proto.Int32(2), MaxUnavailable: proto.Int32(0), UpToDate: proto.Int32(0)},
		Replace:  []string{candidate},
	})
	require.NoError(t, err)
	flags := append(shardFlags(register(t, a), "us-west-2a="+a.Addr), "--shard", "us-west-2a")
	want := groupsOf(t, a)
	for group, size := range map[string]int32{"workers": 5, "main": 1} {
		want[group].Size = size
	}
	printed := mustRun(t, append([]string{"group", "scale", "workers", "5"}, flags...)...)
	const table = `
SHARD        GROUP     BEFORE   SIZE   ACTUAL
us-west-2a   workers   1        5      0
`
	if "\n"+printed != table {
		t.Errorf("printed\n%swant%s", printed, table)
	}
	mustRun(t, append([]string{"group", "scale", "main", "1"}, flags...)...)
	got := groupsOf(t, a)
	for group := range want {
		got[group].Etag, want[group].Etag = "", ""
		// Its instances are being created.
		got[group].Instances, want[group].Instances = nil, nil
		got[group].RotationProgress, want[group].RotationProgress = nil, nil
		if !proto.Equal(got[group], want[group]) {
			t.Errorf("got  %v\nwant %v", got[group], want[group])
		}
	}
	if len(got) != len(want) {
		t.Errorf("there are %d groups, want %d", len(got), len(want))
	}
}

func TestGroupScaleMakesNoGroup(t *testing.T) {
	a, b := twoShards(t)
	flags := append(shardFlags(register(t, a), "us-west-2a="+a.Addr, "us-west-2b="+b.Addr), "--all-shards")
	// The group of another tenant is not found.
	for _, group := range []string{"nothing", "theirs"} {
		printed, err := run(t, append([]string{"group", "scale", group, "3"}, flags...)...)
		wantError(t, err, `shard us-west-2a at `+a.Addr, `there is no group "`+group+`", only ["main"]`, `shard us-west-2b at `+b.Addr, "only []")
		if printed != "" {
			t.Errorf("printed %q", printed)
		}
	}
	// A shard that has the group is scaled, and the error names the other one.
	printed, err := run(t, append([]string{"group", "scale", "main", "3"}, flags...)...)
	wantError(t, err, "shard us-west-2b at "+b.Addr)
	if err != nil && strings.Contains(err.Error(), "us-west-2a") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(printed, "us-west-2a   main    2        3") {
		t.Errorf("printed %q", printed)
	}
	if got := groupsOf(t, a); len(got) != 1 || got["main"].GetSize() != 3 {
		t.Errorf("shard us-west-2a has %v", got)
	}
	if got := groupsOf(t, b); len(got) != 0 {
		t.Errorf("shard us-west-2b has %v", got)
	}
}

func TestAShardThatDoesNotAnswer(t *testing.T) {
	a, b := twoShards(t)
	identity := register(t, a)
	b.Stop()
	printed, err := run(t, append([]string{"group", "list", "--all-shards", "--timeout", "20s"},
		shardFlags(identity, "us-west-2b="+b.Addr, "us-west-2a="+a.Addr)...)...)
	wantError(t, err, "shard us-west-2b at "+b.Addr+": Unavailable")
	if !strings.Contains(printed, "us-west-2a   main") {
		t.Errorf("printed %q", printed)
	}
	// A server of another cluster is not trusted.
	stranger := servertest.Start(t, servertest.Options{})
	_, err = run(t, append([]string{"group", "list", "--shard", "us-west-2a"}, shardFlags(identity, "us-west-2a="+stranger.Addr)...)...)
	wantError(t, err, "Unavailable", "certificate")
}

// TestGroupScaleRejectsDeletingGroup expects that scaling does not create the group again
// while its instances drain.
func TestGroupScaleRejectsDeletingGroup(t *testing.T) {
	s := servertest.Start(t, servertest.Options{DrainTimeout: "1h"})
	operator := s.Operator("default")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch, err := operator.WatchGroups(ctx, &emptypb.Empty{})
	require.NoError(t, err)
	upsert(t, s, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 1})
	for running := false; !running; {
		event, err := watch.Recv()
		require.NoError(t, err)
		running = event.Group.ActualSize == 1
	}
	_, err = operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "workers"})
	require.NoError(t, err)
	_, err = run(t, append([]string{"group", "scale", "workers", "3", "--all-shards"}, shardFlags(register(t, s), "us-west-2a="+s.Addr)...)...)
	wantError(t, err, `group "workers" is being deleted`)
	if got := groupsOf(t, s)["workers"]; !got.GetDeleting() || got.GetSize() != 0 {
		t.Errorf("the group is %v", got)
	}
}

func newInstanceID(t *testing.T) string {
	t.Helper()
	id, err := puidv7.New("knd")
	require.NoError(t, err)
	return id.String()
}

// TestChangesOfGroupsAreAudited expects the server to log the request id that the command
// has logged.
func TestChangesOfGroupsAreAudited(t *testing.T) {
	ofServer, ofCommand := audittest.NewLog(), audittest.NewLog()
	logger := ofServer.Logger()
	server := servertest.Start(t, servertest.Options{Logger: &logger})
	upsert(t, server, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3})
	flags := append(shardFlags(register(t, server), "us-west-2a="+server.Addr), "--shard", "us-west-2a")
	execute := func(words ...string) {
		t.Helper()
		command := admin.NewCommand()
		command.SetOut(io.Discard)
		command.SetArgs(append(words, flags...))
		require.NoError(t, command.ExecuteContext(ofCommand.Context(t.Context())))
	}
	execute("group", "scale", "workers", "5")
	execute("group", "list")
	ofCommand.Expect(t)
	execute("group", "scale", "workers", "1")
	execute("group", "delete", "workers")
	lines := ofCommand.Expect(t,
		"Audit: shrink group shard=us-west-2a group=workers from=5 to=1 writer=nstance-admin reason=scale-down result=accepted requestID=ID",
		"Audit: delete group shard=us-west-2a group=workers writer=nstance-admin reason=requested result=accepted requestID=ID")
	var ids []string
	for _, line := range ofServer.Take() {
		if line.Action == audit.ShrinkGroup || line.Action == audit.DeleteGroup {
			ids = append(ids, line.RequestID())
		}
	}
	require.Len(t, lines, 2)
	assert.Equal(t, []string{lines[0].RequestID(), lines[1].RequestID()}, ids)
}
