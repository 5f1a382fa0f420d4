// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/testing/runtest"
)

const (
	// waitTimeout is how long a test waits for an expected event.
	waitTimeout = time.Minute
	// pausedRounds is how often a leader is paused and resumed.
	pausedRounds = 20
)

// process is a server that runs in its own process.
type process struct {
	id  string
	cmd *exec.Cmd
	log bytes.Buffer
	// terms receives the lines that the process prints.
	terms chan string
}

func startProcess(t *testing.T, dir, id string) *process {
	t.Helper()
	p := &process{id: id, terms: make(chan string, 1000)}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), processIDEnv+"="+id, processStorageEnv+"="+dir)
	p.cmd.Stderr = &p.log
	// It stops when the test process exits, however that happens.
	_, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.terms <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-read
		_ = p.cmd.Wait()
		if t.Failed() {
			t.Logf("%s has logged:\n%s", id, &p.log)
		}
	})
	return p
}

func (p *process) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(signal))
}

// waitForTermEnd returns when a term of p was over, and the results that p prints then.
func (p *process) waitForTermEnd(t *testing.T, term string) (over time.Time, writes string) {
	t.Helper()
	timeout := time.After(waitTimeout)
	for {
		select {
		case line := <-p.terms:
			name, rest, _ := strings.Cut(line, " ")
			if name != term {
				continue
			}
			at, writes, _ := strings.Cut(rest, " ")
			nanoseconds, err := strconv.ParseInt(at, 10, 64)
			require.NoError(t, err, line)
			return time.Unix(0, nanoseconds), writes
		case <-timeout:
			t.Fatalf("timed out waiting for the end of term %s", term)
		}
	}
}

// observer reads the storage that the processes share.
type observer struct {
	storage.Store
}

// journal returns the terms in the journal and its last line.
func (o observer) journal(t *testing.T) (terms []string, last journalLine) {
	t.Helper()
	object, err := o.Get(t.Context(), journalKey)
	require.NoError(t, err)
	for line := range strings.Lines(string(object.Data)) {
		term, _, _ := strings.Cut(line, " ")
		terms = append(terms, term)
	}
	_, last = splitJournal(object.Data)
	return terms, last
}

// waitLeader waits until a term writes that is not in before, and whose server is named in
// the lock.
func (o observer) waitLeader(t *testing.T, before ...string) (term, id string) {
	t.Helper()
	runtest.Eventually(t, "another server leads", func() bool {
		terms, last := o.journal(t)
		lock, _ := readLock(t, o)
		term, id = last.term, lock.LeaderID
		return len(terms) > 0 && strings.HasPrefix(term, id+"-") && !slices.Contains(before, term)
	})
	return term, id
}

// created returns the objects that a term created.
func (o observer) created(t *testing.T, term string) []storage.Info {
	t.Helper()
	infos, err := o.List(t.Context(), createdPrefix(term))
	require.NoError(t, err)
	return infos
}

// writable reports whether the storage accepts writes to the folder of a term.
// It does not while a paused process has locked that folder: then no server can
// take over before that process resumes or exits.
func (o observer) writable(t *testing.T, term string, attempt int) bool {
	t.Helper()
	for _, folder := range []string{"", "leader/", createdPrefix(term)} {
		ctx, cancel := context.WithTimeout(t.Context(), processElection.Timeout/2)
		_, err := o.Create(ctx, fmt.Sprintf("%sprobe-%d", folder, attempt), nil)
		cancel()
		if err != nil {
			t.Logf("the storage was locked: %v", err)
			return false
		}
	}
	return true
}

// TestProcesses pauses leaders that are in the middle of writing, as a debugger or a lack of
// memory does. A standby takes over, and the old leader resumes and tries to write: through
// the fence, and over the last version that it has seen. All objects must remain as the new
// leader left them. Finally the leader is killed.
func TestProcesses(t *testing.T) {
	dir := t.TempDir()
	store, err := file.Open(dir)
	require.NoError(t, err)
	o := observer{store}
	_, err = o.Create(t.Context(), journalKey, nil)
	require.NoError(t, err)
	processes := map[string]*process{}
	for _, id := range []string{"a", "b"} {
		processes[id] = startProcess(t, dir, id)
	}
	runtest.Eventually(t, "the first leader", func() bool {
		_, err := o.Get(t.Context(), key)
		return err == nil
	})

	var longest time.Duration
	for round, attempt := 0, 0; round < pausedRounds; attempt++ {
		if attempt > 10*pausedRounds {
			t.Fatalf("in %d attempts a leader could be stopped %d times", attempt, round)
		}
		term, id := o.waitLeader(t)
		old := processes[id]
		old.signal(t, syscall.SIGSTOP)
		stopped, _ := readLock(t, o)
		if stopped.LeaderID != id || !o.writable(t, term, attempt) {
			old.signal(t, syscall.SIGCONT)
			continue
		}
		o.waitLeader(t, term)
		lock, _ := readLock(t, o)
		created := o.created(t, term)

		resumed := time.Now()
		old.signal(t, syscall.SIGCONT)
		over, writes := old.waitForTermEnd(t, term)
		if over.Before(resumed) {
			// On a busy machine its term was over before it was stopped. It may have written
			// afterwards already, over a version that was still its own.
			continue
		}
		longest = max(longest, lock.LastUpdated.Sub(stopped.LastUpdated))
		if writes != "rejected rejected" {
			t.Errorf("writes after the end of the term %s: %s", term, writes)
		}
		if now := o.created(t, term); !slices.Equal(now, created) {
			t.Errorf("after its end the term %s has created %v, before it had created %v", term, now, created)
		}
		terms, _ := o.journal(t)
		seen := map[string]bool{}
		for _, term := range terms {
			if seen[term] {
				t.Fatalf("the term %s wrote after the next one: %v", term, terms)
			}
			seen[term] = true
		}
		round++
	}
	t.Logf("the longest takeover took %v, the timeout is %v", longest, processElection.Timeout)

	term, id := o.waitLeader(t)
	processes[id].signal(t, syscall.SIGKILL)
	o.waitLeader(t, term)
}

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
	elector := leader.New(leader.Options{Store: store, Key: key, ID: id, Boot: "boot", Address: id, Election: processElection})
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
