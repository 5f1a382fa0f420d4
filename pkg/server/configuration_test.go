// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func configStatus(t *testing.T, operator nstancev1.OperatorServiceClient) *nstancev1.ConfigStatusResponse {
	t.Helper()
	status, err := operator.GetConfigStatus(t.Context(), &emptypb.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	return status
}

func refreshConfig(t *testing.T, operator nstancev1.OperatorServiceClient) *nstancev1.RefreshConfigResponse {
	t.Helper()
	reply, err := operator.RefreshConfig(t.Context(), &emptypb.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// find returns the group of that name.
func find(t *testing.T, groups []*nstancev1.GroupStatus, name string) *nstancev1.GroupStatus {
	t.Helper()
	i := slices.IndexFunc(groups, func(group *nstancev1.GroupStatus) bool { return group.Key == name })
	if i < 0 {
		t.Fatalf("there is no group %s in %v", name, groups)
	}
	return groups[i]
}

// TestAnotherConfiguration: groups become static and dynamic, come and change,
// and no instance goes because of that. Whoever watches is told.
func TestAnotherConfiguration(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {
		"scaled": {"template": "worker", "size": 1}, "untouched": {"template": "worker", "size": 2, "vars": {"a": "b"}},
		"grows": {"template": "worker", "size": 1}}}`})
	operator := server.Operator("default")
	watch := watchGroups(t, operator)
	watch.untilSize("untouched", 2)
	upsert(t, operator, "scaled", &nstancev1.GroupConfig{Size: 3})
	watch.untilSize("scaled", 3)
	upsert(t, operator, "dynamic", &nstancev1.GroupConfig{Template: "worker", Size: 1})
	watch.untilSize("dynamic", 1)
	before := list(t, operator)

	server.SetConfig(func(o *servertest.Options) {
		o.Groups = `{"default": {"dynamic": {"template": "worker", "size": 5}, "grows": {"template": "worker", "size": 2}, "comes": {"template": "worker", "size": 1}}}`
	})
	for name, static := range map[string]bool{"scaled": false, "untouched": false, "dynamic": true} {
		was := find(t, before, name)
		is := find(t, list(t, operator), name)
		want := proto.CloneOf(was)
		want.IsStatic, want.Etag = static, is.Etag
		if was.IsStatic == static || was.Etag == is.Etag || !proto.Equal(is, want) {
			t.Errorf("%s was %v and is %v", name, was, is)
		}
	}
	told := map[string]bool{}
	watch.until(func(e *nstancev1.GroupEvent) bool {
		told[fmt.Sprint(e.Group.Key, " static ", e.Group.IsStatic)] = true
		return told["scaled static false"] && told["untouched static false"] && told["dynamic static true"] && told["comes static true"]
	})
	again := watchGroups(t, operator)
	again.untilSize("grows", 2)
	watchGroups(t, operator).untilSize("comes", 1)
	for _, was := range before {
		for _, id := range was.ProviderIds {
			if is := find(t, list(t, operator), was.Key); !slices.Contains(is.ProviderIds, id) {
				t.Errorf("instance %s of %s has gone: %v", id, was.Key, is.ProviderIds)
			}
		}
	}

	// What is dynamic now can be changed as such, and deleted.
	if got := upsert(t, operator, "untouched", &nstancev1.GroupConfig{Template: "worker", Subnets: []string{"default"}, Size: 0}); got.IsStatic || got.Vars["a"] != "b" {
		t.Errorf("got %v", got)
	}
	if _, err := operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "scaled"}); err != nil {
		t.Fatal(err)
	}
	untilListed(t, operator, "comes", "dynamic", "grows", "untouched")
}

// TestNewInstancesAreOfTheNewConfiguration: templates, subnet pools and instance
// types change with the groups that refer to them.
func TestNewInstancesAreOfTheNewConfiguration(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker"}}}`})
	operator := server.Operator("default")
	watchGroups(t, operator).untilSize("main", 1)
	server.SetConfig(func(o *servertest.Options) {
		o.InstanceTypes = `{"big": {"cpu": "64", "memory": "1Ti", "arch": "arm64"}}`
		o.SubnetPools = `{"other": ["subnet-b"]}`
		o.Templates = `{"new": {"kind": "new", "arch": "arm64", "instance_type": "big", "subnet_pool": "other", "vars": {"x": "y"}}}`
		o.Groups = `{"default": {"main": {"template": "new", "size": 2}}}`
	})
	group := watchGroups(t, operator).untilSize("main", 2)
	if group.Template != "new" || group.InstanceType != "big" || group.Vars["x"] != "y" || !slices.Equal(group.Subnets, []string{"other"}) {
		t.Errorf("the group is %v", group)
	}
	nodes, err := server.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "node.kubernetes.io/instance-type=big"})
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes.Items) != 1 {
		t.Fatalf("there are %d Nodes of the new type, want one", len(nodes.Items))
	}
	if node := nodes.Items[0]; !strings.HasPrefix(node.Name, "new") || node.Status.Capacity.Cpu().String() != "64" || node.Labels["kubernetes.io/arch"] != "arm64" {
		t.Errorf("the Node is %s with %v", node.Name, node.Status.Capacity)
	}
	if got := upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "new"}); got.InstanceType != "big" {
		t.Errorf("a new group is %v", got)
	}
	_, err = operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: "late", Config: &nstancev1.GroupConfig{Template: "worker"}})
	wantCode(t, "the old template", err, codes.InvalidArgument)
}

func TestRefreshConfig(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 0}}}`})
	operator := server.Operator("default")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(server.ConfigPath(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(server.ConfigPath())
	if err != nil {
		t.Fatal(err)
	}
	first := string(data)
	status := configStatus(t, operator)
	if status.Etag == "" || status.Size != int64(len(first)) || time.Since(status.LastModified.AsTime()) > time.Hour {
		t.Errorf("the status is %v", status)
	}
	if got, want := refreshConfig(t, operator), (&nstancev1.RefreshConfigResponse{PrevEtag: status.Etag, Etag: status.Etag}); !proto.Equal(got, want) {
		t.Errorf("nothing new gives %v, want %v", got, want)
	}

	second := strings.Replace(first, `"size": 0`, `"size": 2`, 1)
	write(second)
	got := refreshConfig(t, operator)
	after := configStatus(t, operator)
	if want := (&nstancev1.RefreshConfigResponse{Updated: true, PrevEtag: status.Etag, Etag: after.Etag}); !proto.Equal(got, want) || after.Etag == status.Etag {
		t.Errorf("another file gives %v, want %v", got, want)
	}
	// In force when it answers.
	if group := find(t, list(t, operator), "main"); group.Size != 2 {
		t.Errorf("the group is %v", group)
	}

	for _, wrong := range []struct{ content, want string }{
		{strings.Replace(second, `"size": 2`, `"size": -2`, 1), `groups.default.main.size: Invalid value: -2: must not be negative`},
		{strings.Replace(second, `"id": "test"`, `"id": "other"`, 1), `cluster.id: Invalid value: "other": needs a restart`},
		{second[:len(second)/2], `hujson`},
	} {
		write(wrong.content)
		_, err := operator.RefreshConfig(t.Context(), &emptypb.Empty{})
		wantCode(t, wrong.want, err, codes.FailedPrecondition)
		if err != nil && (!strings.Contains(err.Error(), wrong.want) || !strings.Contains(err.Error(), server.ConfigPath())) {
			t.Errorf("got %v, want %s", err, wrong.want)
		}
	}
	if err := os.Remove(server.ConfigPath()); err != nil {
		t.Fatal(err)
	}
	_, err = operator.RefreshConfig(t.Context(), &emptypb.Empty{})
	wantCode(t, "no file", err, codes.Unavailable)
	if now := configStatus(t, operator); !proto.Equal(now, after) {
		t.Errorf("the status is %v, want that of the last file that was right: %v", now, after)
	}
	write(first)
	if got := refreshConfig(t, operator); !got.Updated || got.PrevEtag != after.Etag || got.Etag != status.Etag {
		t.Errorf("back to the first file: %v", got)
	}
}

// TestAFileThatIsRefused is told of once, with all its mistakes, and changes
// nothing. What is right takes force afterwards, also when it is not the file
// that became so.
func TestAFileThatIsRefused(t *testing.T) {
	server := servertest.Start(t, servertest.Options{
		Templates: `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}, "extra": {"kind": "ext", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}}`,
		Groups:    `{"default": {"main": {"template": "worker", "size": 1}}}`,
	})
	operator, stranger := server.Operator("default"), server.Operator("stranger")
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "extra"})
	upsert(t, stranger, "workers", &nstancev1.GroupConfig{Template: "extra"})
	watchGroups(t, operator).untilSize("main", 1)
	before, status := list(t, operator), configStatus(t, operator)
	watches := []errorStream{watchErrors(t, operator), watchErrors(t, stranger)}

	// Two templates that are used go.
	server.SetConfig(func(o *servertest.Options) {
		o.Templates, o.Groups = `{"other": {"kind": "oth", "arch": "amd64"}}`, `{}`
	})
	for range 5 {
		server.ReadConfig()
	}
	_, err := operator.RefreshConfig(t.Context(), &emptypb.Empty{})
	wantCode(t, "the same file", err, codes.FailedPrecondition)
	for _, watch := range watches {
		event := watch.next()
		if event.Group != "" || event.InstanceId != "" || event.Timestamp == nil {
			t.Errorf("the event is %v", event)
		}
		for _, want := range []string{
			server.ConfigPath(),
			`default.main.template: Invalid value: "worker": unknown template, known are "other"`,
			`default.workers.template: Invalid value: "extra"`, `stranger.workers.template: Invalid value: "extra"`,
		} {
			if !strings.Contains(event.Error, want) {
				t.Errorf("the event does not say %s: %s", want, event.Error)
			}
		}
	}
	if after := list(t, operator); !slices.EqualFunc(before, after, func(a, b *nstancev1.GroupStatus) bool { return proto.Equal(a, b) }) {
		t.Errorf("from %v to %v", before, after)
	}
	if now := configStatus(t, operator); !proto.Equal(now, status) {
		t.Errorf("the status is %v, was %v", now, status)
	}

	// The next mistake is the next event: there was no other.
	server.WriteConfig(`{`)
	for _, watch := range watches {
		if event := watch.next(); !strings.Contains(event.Error, "hujson") {
			t.Errorf("the event is %v", event)
		}
	}

	// With the groups that are in its way, the file becomes right.
	server.SetConfig(func(o *servertest.Options) {
		o.Templates = `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}}`
	})
	for _, watch := range watches {
		if event := watch.next(); !strings.Contains(event.Error, `"extra"`) || strings.Contains(event.Error, `"worker":`) {
			t.Errorf("the event is %v", event)
		}
	}
	for _, operator := range []nstancev1.OperatorServiceClient{operator, stranger} {
		if _, err := operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "workers"}); err != nil {
			t.Fatal(err)
		}
	}
	server.ReadConfig()
	if group := find(t, list(t, operator), "main"); group.IsStatic || len(group.ProviderIds) != 1 {
		t.Errorf("the group is %v, want it to be dynamic", group)
	}
}

// TestTheSameFileAgain: neither another time of the file nor another file of the
// same content does anything.
func TestTheSameFileAgain(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 0}}}`})
	operator := server.Operator("default")
	status := configStatus(t, operator)
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(server.ConfigPath(), later, later); err != nil {
		t.Fatal(err)
	}
	server.ReadConfig()
	server.SetConfig(func(*servertest.Options) {})
	if now := configStatus(t, operator); !proto.Equal(now, status) {
		t.Errorf("the status is %v, was %v", now, status)
	}
	if _, err := os.Stat(filepath.Join(server.DataDir, "groups", "us-west-2a.jsonc")); !os.IsNotExist(err) {
		t.Errorf("groups were stored: %v", err)
	}
}

// TestAnEditorAtWork: a file that is half written, or away for a moment, is no
// mistake. How the next one gets in its place does not matter.
func TestAnEditorAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveInMemory(t)
		defer s.stop()
		events := make(chan *nstancev1.ErrorEvent, 10)
		watch := watchErrors(t, s.operator)
		go func() {
			for event, err := watch.Recv(); err == nil; event, err = watch.Recv() {
				events <- event
			}
		}()
		content, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		sized := func(size int) []byte {
			return []byte(strings.Replace(string(content), `"main": {`, fmt.Sprintf(`"main": {"size": %d, `, size), 1))
		}
		do := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		// tick lets the server look once.
		tick := func() {
			<-time.After(2 * time.Second)
			synctest.Wait()
		}
		expectSize := func(size int32) {
			t.Helper()
			tick()
			if group := find(t, list(t, s.operator), "main"); group.Size != size {
				t.Errorf("the size is %d, want %d", group.Size, size)
			}
		}

		do(os.WriteFile(s.path, sized(2)[:200], 0o600))
		tick()
		do(os.WriteFile(s.path, sized(2)[:300], 0o600))
		tick()
		do(os.WriteFile(s.path, sized(2), 0o600))
		expectSize(2)
		do(os.Rename(s.path, s.path+"~"))
		tick()
		do(os.WriteFile(s.path, sized(3), 0o600))
		expectSize(3)
		// As a volume of Kubernetes does: a link to a link to a folder.
		for size := range 3 {
			folder := fmt.Sprint(s.path, ".", size)
			do(os.Mkdir(folder, 0o700))
			do(os.WriteFile(filepath.Join(folder, "shard.jsonc"), sized(size), 0o600))
			do(os.Symlink(folder, s.path+".next"))
			do(os.Rename(s.path+".next", s.path+".data"))
			do(os.Symlink(filepath.Join(s.path+".data", "shard.jsonc"), s.path+".next"))
			do(os.Rename(s.path+".next", s.path))
			expectSize(int32(size))
		}
		if len(events) != 0 {
			t.Errorf("there were %d errors, the first is %v", len(events), <-events)
		}

		// What stays wrong is told after two looks, and once.
		do(os.Remove(s.path))
		tick()
		if len(events) != 0 {
			t.Error("was told of at once")
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if len(events) != 1 {
			t.Errorf("was told of %d times", len(events))
		}
	})
}

// TestAStormOfConfigurations: files, calls to read them and operators' changes,
// all at the same time. Every answer is of one configuration or the other, and
// what was written last is in force.
func TestAStormOfConfigurations(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: groupsOf("red")})
	operator := server.Operator("default")
	watchGroups(t, operator).untilSize("a", 1)
	before := untilListed(t, operator, "a", "b")
	var storm sync.WaitGroup
	storm.Go(func() {
		for range 25 {
			for _, color := range []string{"blue", "red"} {
				server.SetConfig(func(o *servertest.Options) { o.Groups = groupsOf(color) })
			}
		}
		server.SetConfig(func(o *servertest.Options) { o.Groups = groupsOf("blue") })
	})
	for range 4 {
		storm.Go(func() {
			for range 50 {
				// A file that is being written may be refused.
				if _, err := operator.RefreshConfig(t.Context(), &emptypb.Empty{}); err != nil {
					wantCode(t, "RefreshConfig", err, codes.FailedPrecondition)
				}
				if groups := list(t, operator); groups[0].Vars["color"] != groups[1].Vars["color"] {
					t.Errorf("one group is %v, the other %v", groups[0], groups[1])
				}
			}
		})
	}
	storm.Go(func() {
		for range 50 {
			upsert(t, operator, "a", &nstancev1.GroupConfig{Size: 1})
			upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 0})
		}
	})
	storm.Wait()
	after := list(t, operator)
	for i, name := range []string{"a", "b"} {
		group := find(t, after, name)
		if group.Vars["color"] != "blue" || !slices.Equal(group.ProviderIds, before[i].ProviderIds) {
			t.Errorf("was %v, is %v", before[i], group)
		}
	}
}

func groupsOf(color string) string {
	return fmt.Sprintf(`{"default": {"a": {"template": "worker", "size": 1, "vars": {"color": %[1]q}}, "b": {"template": "worker", "size": 0, "vars": {"color": %[1]q}}}}`, color)
}

// TestKilledAfterAReload: what the new configuration made of the groups is what a
// server that starts with it finds.
func TestKilledAfterAReload(t *testing.T) {
	first := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 2}}}`})
	before := watchGroups(t, first.Operator("default")).untilSize("main", 2)
	first.SetConfig(func(o *servertest.Options) { o.Groups = `{}` })
	want := list(t, first.Operator("default"))
	first.Kill()
	second := servertest.Start(t, servertest.Options{Authority: first.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes})
	got := list(t, second.Operator("default"))
	if len(got) != 1 || got[0].IsStatic || !proto.Equal(got[0], want[0]) || !slices.Equal(got[0].ProviderIds, before.ProviderIds) {
		t.Errorf("there are groups %v, want %v", got, want)
	}
}
