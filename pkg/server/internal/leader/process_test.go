// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// Environment variables of a process that runs as a server instead of the test.
const (
	processIDEnv      = "LEADER_TEST_ID"
	processStorageEnv = "LEADER_TEST_STORAGE"
)

// journalKey is an object that leaders replace continuously, in addition to the
// objects that they create below createdPrefix.
const journalKey = "journal"

func createdPrefix(term string) string { return "created/" + term + "/" }

// processElection is short enough for a test and long enough for a busy
// machine.
var processElection = config.Election{Enabled: true, Interval: 100 * time.Millisecond, Timeout: time.Second}

func TestMain(m *testing.M) {
	if id := os.Getenv(processIDEnv); id != "" {
		if err := runProcess(id, os.Getenv(processStorageEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runProcess is a server that runs until its standard input is closed. After
// each of its terms it prints a line: the term, when it was over in Unix nanoseconds, and
// the results of writes that it tried afterwards.
func runProcess(id, dir string) error {
	store, err := file.Open(dir)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	elector := leader.New(leader.Options{Store: store, Key: key, ID: id, Address: id, Election: processElection})
	terms := 0
	return elector.Run(ctx, func(ctx context.Context) error {
		terms++
		w := writer{term: fmt.Sprintf("%s-%d", id, terms), store: store, fenced: elector.Fence(store)}
		w.write(ctx)
		over := time.Now().UnixNano()
		fmt.Println(w.term, over, w.tryAfterwards(context.WithoutCancel(ctx)))
		return nil
	})
}

// writer writes as the leader of one term.
type writer struct {
	term   string
	store  storage.Store
	fenced storage.Store
	// journal is the journal as this term last wrote it, and etag its etag.
	journal []byte
	etag    string
}

// write writes until ctx is done. Only the fence can prevent it.
func (w *writer) write(ctx context.Context) {
	endless := context.WithoutCancel(ctx)
	for n := 0; ctx.Err() == nil; n++ {
		_, _ = w.fenced.Create(endless, fmt.Sprintf("%s%d", createdPrefix(w.term), n), nil)
		w.writeJournal(endless)
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// writeJournal counts the writes of this term in its line, the last one of the
// journal: {term} {writes}.
func (w *writer) writeJournal(ctx context.Context) {
	object, err := w.store.Get(ctx, journalKey)
	if err != nil {
		return
	}
	before, last := splitJournal(object.Data)
	if last.term != w.term {
		before, last = string(object.Data), journalLine{term: w.term}
	}
	journal := fmt.Appendf(nil, "%s%s %d\n", before, w.term, last.writes+1)
	if etag, err := w.fenced.Replace(ctx, journalKey, journal, object.ETag); err == nil {
		w.journal, w.etag = journal, etag
	}
}

// journalLine is the line of one term in the journal.
type journalLine struct {
	term   string
	writes int
}

// splitJournal returns the last line and the text before it.
func splitJournal(data []byte) (before string, last journalLine) {
	text := strings.TrimSuffix(string(data), "\n")
	end := strings.LastIndex(text, "\n") + 1
	_, _ = fmt.Sscan(text[end:], &last.term, &last.writes)
	return text[:end], last
}

// tryAfterwards writes after the term: through the fence, and without it to
// objects that other servers have replaced.
func (w *writer) tryAfterwards(ctx context.Context) string {
	through, beside := "written", "written"
	if _, err := w.fenced.Create(ctx, createdPrefix(w.term)+"afterwards", nil); err != nil {
		through = "failed"
		if errors.Is(err, leader.ErrNotLeading) {
			through = "rejected"
		}
	}
	if _, err := w.store.Replace(ctx, journalKey, w.journal, w.etag); err != nil {
		beside = "failed"
		if errors.Is(err, storage.ErrConflict) {
			beside = "rejected"
		}
	}
	return through + " " + beside
}
