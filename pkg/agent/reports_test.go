// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/agent/internal/files"
	"nstance.dev/operator/pkg/agent/internal/identity"
	"nstance.dev/operator/pkg/agent/notice"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestReportHasTheStateOfTheMachine(t *testing.T) {
	folder := t.TempDir()
	id, err := identity.Open(filepath.Join(folder, "identity"), 0o600, "knc06bgm7733st2576nx5jht4ecjw")
	require.NoError(t, err)
	store, err := files.Open(filepath.Join(folder, "recv"), 0o640, id)
	require.NoError(t, err)
	collector, err := newCollector(procFolder, "", false)
	require.NoError(t, err)
	var current *notice.Notice
	r := &reports{
		instanceID: id.InstanceID(),
		identity:   id,
		files:      store,
		metrics:    collector,
		notice:     func() *notice.Notice { return current },
		notReady:   func() string { return "" },
		begin:      time.Now().Add(-time.Minute),
	}
	first := r.create(t.Context())
	assert.EqualValues(t, 1, first.GetCount())
	assert.Equal(t, id.InstanceID(), first.GetInstanceId())
	assert.Equal(t, "1m0s", first.GetUptime())
	assert.NotNil(t, first.GetMetrics().MemoryUsage)
	assert.Empty(t, first.GetConfigHash())
	assert.Empty(t, first.GetFiles())
	assert.Nil(t, first.GetTerminationNotice())
	assert.WithinDuration(t, time.Now(), first.GetTimestamp().AsTime(), time.Minute)

	var patch files.Patch
	patch.Add(&nstancev1.FileTransfer{Filename: "a.env", Content: []byte("A=1")})
	_, err = store.Apply(&patch, "hash")
	require.NoError(t, err)
	deadline := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	current = &notice.Notice{Action: "stop", Deadline: deadline}
	second := r.create(t.Context())
	assert.EqualValues(t, 2, second.GetCount())
	assert.Equal(t, "hash", second.GetConfigHash())
	assert.NotNil(t, second.GetFiles()["a.env"].GetLastModified())
	assert.Equal(t, "stop", second.GetTerminationNotice().GetAction())
	assert.True(t, second.GetTerminationNotice().GetDeadline().AsTime().Equal(deadline))

	current = &notice.Notice{Action: "preempted"}
	assert.Nil(t, r.create(t.Context()).GetTerminationNotice().Deadline)
}

// A report can be sent whatever bytes the machine has for a text: the server counts an agent
// without reports as lost.
func TestReportIsTextWhateverTheMachineHas(t *testing.T) {
	folder := t.TempDir()
	id, err := identity.Open(filepath.Join(folder, "identity"), 0o600, "knc06bgm7733st2576nx5jht4ecjw")
	require.NoError(t, err)
	store, err := files.Open(filepath.Join(folder, "recv"), 0o640, id)
	require.NoError(t, err)
	collector, err := newCollector(procFolder, "", false)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "identity", "config.hash"), []byte("ha\xffsh"), 0o600))
	r := &reports{
		instanceID: id.InstanceID(), identity: id, files: store, metrics: collector, begin: time.Now(),
		notice:   func() *notice.Notice { return &notice.Notice{Action: "st\xffop"} },
		notReady: func() string { return "k\xffubelet" },
	}
	report := r.create(t.Context())
	_, err = proto.Marshal(report)
	require.NoError(t, err)
	assert.Equal(t, "ha\uFFFDsh", report.GetConfigHash())
	assert.Equal(t, "st\uFFFDop", report.GetTerminationNotice().GetAction())
	assert.Equal(t, "a\uFFFDb", hostname("a\xffb"))
}
