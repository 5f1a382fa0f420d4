// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
)

// templateWith returns a template "worker" with files, and a var.
func templateWith(files, value string) string {
	return `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default",
		"vars": {"value": "` + value + `"}, "files": ` + files + `}}`
}

const someFiles = `{
	"app.env": {"kind": "env", "env": {"VALUE": "{{.Vars.value}}"}},
	"app.json": {"kind": "string", "string": "[{{.Vars.value}}]"},
	"token.json": {"kind": "secret", "source": "app/token"},
	"kubelet.crt": {"kind": "certificate", "template": "kubelet", "key": {"source": "agent", "name": "kubelet.server"}},
}`

// startWithFiles starts a server whose instances have files.
func startWithFiles(t *testing.T, files, value string) *servertest.Server {
	t.Helper()
	o := withAgents()
	o.Templates = templateWith(files, value)
	o.Certificates = `"kubelet": {"kind": "server", "cn": "system:node:{{.Instance.ID}}"},`
	s := servertest.Prepare(t, o)
	require.NoError(t, s.Secrets.Create(t.Context(), "app/token", []byte(`"hunter2"`)))
	s.Launch()
	s.UntilListening()
	s.UntilHealthy()
	return s
}

// setValue changes the configuration of a server that was started with startWithFiles.
func setValue(s *servertest.Server, files, value string) {
	s.SetConfig(func(o *servertest.Options) { o.Templates = templateWith(files, value) })
}

// received returns the content of a received file, "" if it does not exist.
func (m *machine) received(name string) string {
	content, err := os.ReadFile(filepath.Join(m.folder, "recv", name))
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(m.t, err)
	}
	return string(content)
}

// The report interval is an hour: the server sends files and key requests without waiting
// for a report.
func TestFilesAreReceivedAndKeysCreated(t *testing.T) {
	s := startWithFiles(t, someFiles, "1")
	m := newMachine(t, s)
	m.Options.ReportInterval = time.Hour
	m.start()
	runtest.Eventually(t, "the files are there", func() bool { return m.has("recv/write-files.last") })
	assert.Equal(t, "VALUE=1\n", m.received("app.env"))
	assert.Equal(t, "[1]", m.received("app.json"))
	assert.Equal(t, `"hunter2"`, m.received("token.json"))
	block, _ := pem.Decode([]byte(m.received("kubelet.crt")))
	require.NotNil(t, block)
	certificate, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	key, err := keys.ParsePrivate(m.read("keys/kubelet.server.key"))
	require.NoError(t, err)
	assert.True(t, key.Public().(ed25519.PublicKey).Equal(certificate.PublicKey), "the certificate is for the key of the machine")
	hash := string(m.read("identity/config.hash"))

	setValue(s, someFiles, "2")
	runtest.Eventually(t, "the changed files are there", func() bool { return m.received("app.env") == "VALUE=2\n" })
	assert.Equal(t, "[2]", m.received("app.json"), "all files change in one moment")
	runtest.Eventually(t, "the hash is stored", func() bool { return string(m.read("identity/config.hash")) != hash })
	assert.NotContains(t, m.log.String(), "hunter2")
	again, err := keys.ParsePrivate(m.read("keys/kubelet.server.key"))
	require.NoError(t, err)
	assert.True(t, key.Equal(again), "the key stays")
}

// A file that leaves the configuration is removed from the machine, other files of the
// machine stay.
func TestFilesThatLeaveTheConfigurationAreRemoved(t *testing.T) {
	t.Parallel()
	s := startWithFiles(t, someFiles, "1")
	m := newMachine(t, s)
	m.write("recv/own.json", []byte("{}"))
	m.Options.ReportInterval = time.Hour
	m.start()
	runtest.Eventually(t, "the files are there", func() bool { return m.has("recv/write-files.last") })
	assert.True(t, m.has("recv/token.json"))

	setValue(s, `{"app.env": {"kind": "env", "env": {"VALUE": "2"}}}`, "1")
	runtest.Eventually(t, "the changed file is there", func() bool { return m.received("app.env") == "VALUE=2\n" })
	for _, name := range []string{"app.json", "token.json", "kubelet.crt"} {
		assert.False(t, m.has("recv/"+name), name)
	}
	assert.True(t, m.has("recv/own.json"))
	assert.True(t, m.has("keys/kubelet.server.key"))
	setValue(s, `{}`, "1")
	runtest.Eventually(t, "no received file is left", func() bool { return !m.has("recv/app.env") })
	assert.True(t, m.has("recv/own.json"))
}

func TestRefusedFileIsReportedToTheOperator(t *testing.T) {
	t.Parallel()
	s := startWithFiles(t, someFiles, "1")
	m := newMachine(t, s)
	m.Options.ReportInterval = time.Hour
	m.start()
	runtest.Eventually(t, "the files are there", func() bool { return m.has("recv/write-files.last") })
	hash, marker := m.read("identity/config.hash"), m.read("recv/write-files.last")
	watch, err := s.Operator("default").WatchErrors(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	runtest.Eventually(t, "errors are watched", func() bool { return len(s.Calls("WatchErrors")) == 1 })

	setValue(s, someFiles, "no JSON")
	failure, err := watch.Recv()
	require.NoError(t, err)
	assert.Contains(t, failure.GetError(), "app.json")
	assert.Contains(t, failure.GetError(), "it is not valid JSON")
	assert.Equal(t, "it is not valid JSON\n", m.received("errors/app.json"))
	assert.Equal(t, "VALUE=1\n", m.received("app.env"))
	assert.Equal(t, "[1]", m.received("app.json"))
	assert.Equal(t, hash, m.read("identity/config.hash"))
	assert.Equal(t, marker, m.read("recv/write-files.last"))

	setValue(s, someFiles, "3")
	runtest.Eventually(t, "the next patch is applied", func() bool { return m.received("app.json") == "[3]" })
	runtest.Eventually(t, "the error is removed", func() bool { return !m.has("recv/errors") })
}

// version returns the numbers in the files of the current version, which is read as a whole.
func (m *machine) version(files int) (contents []string) {
	m.t.Helper()
	current := func() string {
		folder, err := os.Readlink(filepath.Join(m.folder, "recv", "..data"))
		require.NoError(m.t, err)
		return folder
	}
	folder := current()
	for n := range files {
		contents = append(contents, strings.Trim(m.received(filepath.Join(folder, fmt.Sprintf("%d.json", n))), "[ ]"))
	}
	if folder != current() {
		return m.version(files) // it may have been removed meanwhile
	}
	return contents
}

// The connection is lost after each number of files of a patch. The agent discards the
// files that have arrived, and the server sends the patch again.
func TestPushSurvivesLostConnections(t *testing.T) {
	t.Parallel()
	const count, size = 6, 30_000
	files := "{"
	for n := range count {
		files += fmt.Sprintf(`"%d.json": {"kind": "string", "string": "[{{.Vars.value}}%s]"},`, n, strings.Repeat(" ", size))
	}
	files += "}"
	s := startWithFiles(t, files, "0")
	m := newMachine(t, s)
	var left atomic.Int64
	left.Store(1 << 40)
	r := &relay{
		cut:  func(bytes int) bool { return left.Add(-int64(bytes)) < 0 },
		lost: func() bool { return true },
	}
	m.Options.AgentAddress = r.listen(t, s.AgentAddr)
	m.start()
	value := 0
	applied := func() bool {
		contents := m.version(count)
		for _, content := range contents {
			require.Equal(t, contents[0], content)
		}
		return contents[0] == strconv.Itoa(value)
	}
	runtest.Eventually(t, "the files are there", func() bool { return m.has("recv/..data") && applied() })
	for cut := range count {
		value++
		r.closed.Store(false)
		left.Store(int64(cut)*size + size/2)
		setValue(s, files, strconv.Itoa(value))
		runtest.Eventually(t, "the connection is cut", r.closed.Load)
		left.Store(1 << 40)
		runtest.Eventually(t, "the patch is applied", applied)
	}
	assert.Contains(t, m.log.String(), "that is not complete")
}

// Each of many machines registers once, and gets its own files and every change of them.
func TestManyAgents(t *testing.T) {
	t.Parallel()
	const count = 50
	const files = `{"app.env": {"kind": "env", "env": {"ID": "{{.Instance.ID}}", "VALUE": "{{.Vars.value}}"}}}`
	s := startWithFiles(t, files, "1")
	s.SetConfig(func(o *servertest.Options) {
		o.Groups = fmt.Sprintf(`{"default": {"main": {"template": "worker", "size": %d}}}`, count)
	})
	runtest.Eventually(t, "all instances were created", func() bool { return len(s.Created()) == count })
	var machines []*machine
	for id := range s.Created() {
		m := newMachineFor(t, s, id)
		m.start()
		machines = append(machines, m)
	}
	for _, value := range []string{"1", "2"} {
		setValue(s, files, value)
		for _, m := range machines {
			want := "ID=" + m.Options.InstanceID + "\nVALUE=" + value + "\n"
			runtest.Eventually(t, "a machine has its file", func() bool { return m.received("app.env") == want })
		}
	}
	assert.Len(t, s.Calls("RegisterAgent"), count)
	assert.Len(t, s.Calls("SubmitHealthReport"), count)
	assert.Len(t, s.Created(), count, "no instance was replaced")
}
