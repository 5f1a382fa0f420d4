// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// files has one file of each kind, by name.
func files() map[string]config.File {
	return map[string]config.File{
		"app.env": {Kind: config.FileEnv, Content: map[string]any{"env": map[string]any{
			"ROLE": "{{.Vars.role}}", "ID": "{{.Instance.ID}}", "HOST": "{{.Instance.Hostname}}",
		}}},
		"app.json":    {Kind: config.FileJSON, Content: map[string]any{"json": map[string]any{"roles": []any{"{{.Vars.role}}"}, "replicas": 3, "on": true}}},
		"text.json":   {Kind: config.FileString, Content: map[string]any{"string": `["{{.Instance.IP4}}"]`}},
		"token.json":  {Kind: config.FileSecret, Content: map[string]any{"source": "app/token"}},
		"object.json": {Kind: config.FileStorage, Content: map[string]any{"source": "files/object"}},
		"kubelet.crt": certificateFile("kubelet"),
	}
}

func certificateFile(key string) config.File {
	return config.File{Kind: config.FileCertificate, Content: map[string]any{"template": "kubelet", "key": map[string]any{"source": "agent", "name": key}}}
}

// textFile is a file that needs no key.
func textFile(text string) map[string]config.File {
	return map[string]config.File{"text.json": {Kind: config.FileString, Content: map[string]any{"string": text}}}
}

var workersKey = instance.GroupKey{Tenant: "default", Group: "workers"}

// shard has the groups, the instances and the secrets of a shard.
type shard struct {
	config *config.Config

	// lock guards the fields below.
	lock      sync.Mutex
	groups    map[instance.GroupKey]*groups.Group
	instances map[string]instance.Instance
	// secrets and objects have contents by name. Other names are not found.
	secrets, objects map[string]string
	// reading is called before each read of a secret or an object, unless it is nil.
	reading func()
	// signed are the certificates that were signed, and issued those that were issued, with their
	// instance. issuing is the error of that.
	signed  []pki.Workload
	issued  []string
	issuing error
}

func newShard() *shard {
	return &shard{
		config: &config.Config{
			Templates: map[string]config.Template{"worker": {Kind: "knd", Arch: "amd64"}},
			Certificates: map[string]config.CertificateTemplate{"kubelet": {
				Usage: config.UsageServer, CommonName: "system:node:{{.Instance.ID}}", Organizations: []string{"system:nodes", "{{if false}}x{{end}}"},
				DNS: []string{"{{.Instance.Hostname}}", "{{if false}}x{{end}}"}, IP: []string{"{{.Instance.IP4}}", "{{.Instance.IP6}}"},
				URI: []string{"spiffe://x/{{.Instance.ID}}"}, TTL: 30 * time.Hour,
			}},
		},
		groups: map[instance.GroupKey]*groups.Group{workersKey: {
			Key: workersKey, Settings: groups.Settings{Template: "worker", Vars: map[string]string{"role": "worker"}}, Files: files(), RuntimeConfigHash: "hash-1",
		}},
		instances: map[string]instance.Instance{},
		secrets:   map[string]string{"app/token": `{"token": "hunter2"}`},
		objects:   map[string]string{"files/object": "{}"},
	}
}

func (s *shard) renderer() *Renderer {
	read := func(from map[string]string) func(context.Context, string) ([]byte, error) {
		return func(_ context.Context, name string) ([]byte, error) {
			if s.reading != nil {
				s.reading()
			}
			s.lock.Lock()
			content, found := from[name]
			s.lock.Unlock()
			if !found {
				return nil, fmt.Errorf("%s: %w", name, storage.ErrNotFound)
			}
			return []byte(content), nil
		}
	}
	return &Renderer{
		Config: func() *config.Config { return s.config },
		Facts:  provision.New(provision.Options{Config: func() *config.Config { return s.config }}).FileFacts,
		Secret: read(s.secrets),
		Object: read(s.objects),

		Digest:        func(content []byte) string { return "digest of " + string(content) },
		HasClusterKey: func(content []byte) bool { return strings.Contains(string(content), "key of the authority") },
		Sign: func(w pki.Workload, key crypto.PublicKey) ([]byte, error) {
			s.lock.Lock()
			defer s.lock.Unlock()
			s.signed = append(s.signed, w)
			return fmt.Appendf(nil, "certificate for %s", key), nil
		},
		Issue: func(_ context.Context, record *instance.Record, certificates [][]byte) error {
			s.lock.Lock()
			defer s.lock.Unlock()
			for _, certificate := range certificates {
				s.issued = append(s.issued, record.ID+": "+string(certificate))
			}
			return s.issuing
		},
	}
}

func newInstance(id string) instance.Instance {
	return instance.Instance{
		Record: instance.Record{
			ID: id, Tenant: workersKey.Tenant, Group: workersKey.Group, Registration: &instance.Registration{Hostname: "machine", IPv4: "10.0.0.7"},
		},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}, Hostname: "machine",
	}
}

// world is a Pusher that runs, in a bubble of synctest: times are exact.
type world struct {
	*Pusher
	*shard
	// reports are the latest reports, by instance.
	reports map[string]*nstancev1.HealthReportRequest
	// failures are the errors that were reported, with their group and instance.
	failures []string
}

// inBubble runs a test with the instance "a" in group workers.
func inBubble(t *testing.T, test func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{shard: newShard(), reports: map[string]*nstancev1.HealthReportRequest{}}
		w.instances["a"] = newInstance("a")
		w.Pusher = New(Options{
			Groups: groupsOf{w}, Instances: instancesOf{w}, Renderer: w.renderer(),
			LastReport: func(id string) *nstancev1.HealthReportRequest { return w.reports[id] },
			Failed: func(group instance.GroupKey, id string, err error) {
				w.lock.Lock()
				defer w.lock.Unlock()
				w.failures = append(w.failures, fmt.Sprintf("%s %s: %v", group, id, err))
			},
		})
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		var running sync.WaitGroup
		running.Go(func() { w.Run(ctx) })
		t.Cleanup(func() {
			cancel()
			running.Wait()
		})
		test(t, w)
	})
}

type groupsOf struct{ *world }

func (g groupsOf) Get(key instance.GroupKey) (*groups.Group, bool) {
	g.lock.Lock()
	defer g.lock.Unlock()
	group, found := g.groups[key]
	return group, found
}

func (g groupsOf) Config() *config.Config { return g.config }

type instancesOf struct{ *world }

func (i instancesOf) Get(id string) (instance.Instance, bool) {
	i.lock.Lock()
	defer i.lock.Unlock()
	found, ok := i.instances[id]
	return found, ok
}

// setGroup changes the group workers.
func (w *world) setGroup(change func(*groups.Group)) {
	w.lock.Lock()
	defer w.lock.Unlock()
	changed := *w.groups[workersKey]
	change(&changed)
	w.groups[workersKey] = &changed
}

// setToken stores the secret "app/token", or deletes it if the content is empty.
func (w *world) setToken(content string) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.secrets["app/token"] = content; content == "" {
		delete(w.secrets, "app/token")
	}
}

// takeFailures returns the failures since it was called last.
func (w *world) takeFailures() []string {
	synctest.Wait()
	w.lock.Lock()
	defer w.lock.Unlock()
	failures := w.failures
	w.failures = nil
	return failures
}

// withoutKeys makes the group have a single file, which needs no key.
func (w *world) withoutKeys() {
	w.setGroup(func(group *groups.Group) { group.Files = textFile("1") })
}

// status returns a report's part about files that the agent has.
func status(names ...string) map[string]*nstancev1.FileStatus {
	status := map[string]*nstancev1.FileStatus{}
	for _, name := range names {
		status[name] = &nstancev1.FileStatus{Status: &nstancev1.FileStatus_LastModified{LastModified: timestamppb.Now()}}
	}
	return status
}

// refused returns the status of a file that the agent cannot use.
func refused(reason string) *nstancev1.FileStatus {
	return &nstancev1.FileStatus{Status: &nstancev1.FileStatus_Error{Error: reason}}
}

// report reports files of a configuration, with the present contents of its secrets and objects.
func (w *world) report(id, hash string, files map[string]*nstancev1.FileStatus) {
	i := w.instances[id]
	if group, found := (groupsOf{w}).Get(i.Key()); found && hash != "" {
		copied := *group
		copied.RuntimeConfigHash = hash
		digests := map[source]string{}
		for _, s := range sourcesOf(group) {
			if content, err := w.Renderer.read(context.Background(), s); err == nil {
				digests[s] = w.Renderer.Digest(content)
			}
		}
		hash, _ = hashOf(&copied, digests)
	}
	w.Reported(id, &nstancev1.HealthReportRequest{InstanceId: id, ConfigHash: hash, Files: files})
}

// next returns the value that a session has to send now, or false.
func next[T any](s *Session[T]) (value T, found bool) {
	synctest.Wait()
	select {
	case value = <-s.Next:
		return value, true
	default:
		return value, false
	}
}

// wantPatch expects a patch of a configuration now. Its hash says more.
func wantPatch(t *testing.T, s *Session[*Patch], hash string) *Patch {
	t.Helper()
	patch, found := next(s)
	require.True(t, found, "no patch is sent")
	assert.Equal(t, hash, withoutContents(patch.ConfigHash))
	return patch
}

// wantNothing expects that a session has nothing to send.
func wantNothing[T any](t *testing.T, s *Session[T]) {
	t.Helper()
	value, found := next(s)
	assert.False(t, found, "sent %v", value)
}

// pass lets a time pass in the bubble, with all that happens until its end.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// contents returns the contents of a patch by name.
func contents(patch *Patch) map[string]string {
	texts := map[string]string{}
	for _, file := range patch.Files {
		texts[file.Name] = string(file.Content)
	}
	return texts
}

// key returns a key that is readable in the certificates of the fake authority.
func key(text string) ed25519.PublicKey {
	return ed25519.PublicKey(text + strings.Repeat(".", ed25519.PublicKeySize-len(text)))
}
