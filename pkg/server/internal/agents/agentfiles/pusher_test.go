// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"crypto"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestFilesAreSentToAgentsWithoutThem(t *testing.T) {
	all := []string{"app.env", "app.json", "kubelet.crt", "object.json", "text.json", "token.json"}
	with := func(name string, changed *nstancev1.FileStatus) map[string]*nstancev1.FileStatus {
		files := status(all...)
		files[name] = changed
		return files
	}
	modified := func(ago time.Duration) *nstancev1.FileStatus {
		return &nstancev1.FileStatus{Status: &nstancev1.FileStatus_LastModified{LastModified: timestamppb.New(time.Now().Add(-ago))}}
	}
	for name, test := range map[string]struct {
		hash  string
		files func() map[string]*nstancev1.FileStatus
		sent  bool
	}{
		"it has all":              {"hash-1", func() map[string]*nstancev1.FileStatus { return status(all...) }, false},
		"it has none":             {"", func() map[string]*nstancev1.FileStatus { return nil }, true},
		"another configuration":   {"hash-0", func() map[string]*nstancev1.FileStatus { return status(all...) }, true},
		"a file is missing":       {"hash-1", func() map[string]*nstancev1.FileStatus { return status(all[1:]...) }, true},
		"a file is in error":      {"hash-1", func() map[string]*nstancev1.FileStatus { return with("app.env", refused("deleted")) }, true},
		"one more file":           {"hash-1", func() map[string]*nstancev1.FileStatus { return with("more.env", modified(0)) }, false},
		"an old file":             {"hash-1", func() map[string]*nstancev1.FileStatus { return with("app.env", modified(1000*time.Hour)) }, false},
		"a certificate to keep":   {"hash-1", func() map[string]*nstancev1.FileStatus { return with("kubelet.crt", modified(20*time.Hour)) }, false},
		"a certificate to renew":  {"hash-1", func() map[string]*nstancev1.FileStatus { return with("kubelet.crt", modified(20*time.Hour+1)) }, true},
		"a file without its time": {"hash-1", func() map[string]*nstancev1.FileStatus { return with("kubelet.crt", &nstancev1.FileStatus{}) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				session, end := w.ReceiveFiles("a")
				defer end()
				i := w.instances["a"]
				w.SubmitKeys(&i, map[string]crypto.PublicKey{"kubelet": key("kubelet")}, nil)
				wantNothing(t, session)
				w.report("a", test.hash, test.files())
				if !test.sent {
					wantNothing(t, session)
					return
				}
				patch := wantPatch(t, session, "hash-1")
				assert.Len(t, patch.Files, len(all))
				assert.Equal(t, "certificate for "+string(key("kubelet")), contents(patch)["kubelet.crt"])
			})
		})
	}
}

func TestEachAgentReceivesItsOwnFiles(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		other := newInstance("b")
		other.Group, other.Registration = "others", &instance.Registration{IPv4: "10.0.0.8"}
		onDemand := newInstance("c")
		onDemand.OnDemand, onDemand.Vars = true, map[string]string{"role": "build"}
		w.instances["b"], w.instances["c"] = other, onDemand
		w.setGroup(func(group *groups.Group) { group.Files = textFile("{{.Instance.ID}} {{.Instance.IP4}} {{.Vars.role}}") })
		w.groups[other.Key()] = &groups.Group{
			Key: other.Key(), Settings: groups.Settings{Vars: map[string]string{"role": "other"}}, Files: w.groups[workersKey].Files, RuntimeConfigHash: "hash-2",
		}
		for _, test := range []struct{ id, hash, text string }{
			{"a", "hash-1", "a 10.0.0.7 worker"}, {"b", "hash-2", "b 10.0.0.8 other"}, {"c", "hash-1", "c 10.0.0.7 build"},
		} {
			session, end := w.ReceiveFiles(test.id)
			defer end()
			w.report(test.id, "", nil)
			assert.Equal(t, map[string]string{"text.json": test.text}, contents(wantPatch(t, session, test.hash)))
		}
	})
}

func TestAReportFromBeforeTheStreamCounts(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.withoutKeys()
		w.reports["a"] = &nstancev1.HealthReportRequest{ConfigHash: "hash-0"}
		session, end := w.ReceiveFiles("a")
		wantPatch(t, session, "hash-1")
		end()
		w.reports["a"] = &nstancev1.HealthReportRequest{ConfigHash: "hash-1", Files: status("text.json")}
		session, end = w.ReceiveFiles("a")
		defer end()
		wantNothing(t, session)
	})
}

func TestInstancesThatAreNotThereReceiveNothing(t *testing.T) {
	for name, change := range map[string]func(*world){
		"it was deleted": func(w *world) {
			i := w.instances["a"]
			i.DeletedAt = time.Now()
			w.instances["a"] = i
		},
		"it does not exist":     func(w *world) { delete(w.instances, "a") },
		"its group was deleted": func(w *world) { delete(w.groups, workersKey) },
		"its template was deleted": func(w *world) {
			i := w.instances["a"]
			i.Template = "missing"
			w.instances["a"] = i
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.withoutKeys()
				i := w.instances["a"]
				change(w)
				session, endFiles := w.ReceiveFiles("a")
				defer endFiles()
				requests, endKeys := w.ReceiveKeyRequests("a")
				defer endKeys()
				w.SubmitKeys(&i, map[string]crypto.PublicKey{"kubelet": key("kubelet")}, nil)
				w.report("a", "", nil)
				pass(time.Hour)
				wantNothing(t, session)
				wantNothing(t, requests)
				assert.Empty(t, w.takeFailures())
			})
		})
	}
}

// The same files are sent again after a delay that doubles, however often an agent reports.
func TestFilesAreSentAgainLater(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.withoutKeys()
		session, end := w.ReceiveFiles("a")
		defer end()
		w.report("a", "hash-0", nil)
		wantPatch(t, session, "hash-1")
		for _, delay := range []time.Duration{
			10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 320 * time.Second, 640 * time.Second, 1280 * time.Second,
			30 * time.Minute, 30 * time.Minute, 30 * time.Minute, 30 * time.Minute,
		} {
			pass(delay / 2)
			w.report("a", "hash-0", nil)
			pass(delay/2 - 1)
			w.report("a", "hash-0", nil)
			wantNothing(t, session)
			pass(1)
			wantPatch(t, session, "hash-1")
		}
		// Another configuration is sent at once, and begins again.
		w.setGroup(func(group *groups.Group) { group.RuntimeConfigHash = "hash-2" })
		w.report("a", "hash-0", nil)
		wantPatch(t, session, "hash-2")
		w.report("a", "hash-0", nil)
		pass(10*time.Second - 1)
		wantNothing(t, session)
		pass(1)
		wantPatch(t, session, "hash-2")
		// An agent that had the files in the meantime begins again too.
		w.report("a", "hash-2", status("text.json"))
		wantNothing(t, session)
		w.report("a", "hash-2", nil)
		wantPatch(t, session, "hash-2")
	})
}

func TestANewStreamReceivesFilesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.withoutKeys()
		first, endFirst := w.ReceiveFiles("a")
		w.report("a", "hash-0", nil)
		w.reports["a"] = &nstancev1.HealthReportRequest{ConfigHash: "hash-0"}
		wantPatch(t, first, "hash-1")
		second, endSecond := w.ReceiveFiles("a")
		defer endSecond()
		select {
		case <-first.Replaced:
		default:
			t.Error("the first stream goes on")
		}
		wantPatch(t, second, "hash-1")
		wantNothing(t, first)
		// The end of the first stream is late.
		endFirst()
		w.report("a", "hash-0", nil)
		pass(10 * time.Second)
		wantPatch(t, second, "hash-1")
		select {
		case <-second.Replaced:
			t.Error("the second stream was replaced")
		default:
		}
	})
}

// An agent that opens a stream while its files are being made receives them there.
func TestAPatchIsMadeAgainForANewStream(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.setGroup(func(group *groups.Group) { group.Files = map[string]config.File{"token.json": files()["token.json"]} })
		w.reports["a"] = &nstancev1.HealthReportRequest{ConfigHash: "hash-0"}
		var second *Session[*Patch]
		w.reading = func() {
			if second == nil {
				var end func()
				second, end = w.ReceiveFiles("a")
				t.Cleanup(end)
			}
		}
		first, end := w.ReceiveFiles("a")
		defer end()
		wantNothing(t, first)
		wantPatch(t, second, "hash-1")
		wantNothing(t, second)
	})
}

// A patch has all files: the latest is enough.
func TestAPatchThatWasNotSentIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.withoutKeys()
		session, end := w.ReceiveFiles("a")
		defer end()
		for _, hash := range []string{"hash-2", "hash-3", "hash-4"} {
			w.setGroup(func(group *groups.Group) { group.RuntimeConfigHash = hash })
			w.report("a", "hash-0", nil)
			synctest.Wait()
		}
		wantPatch(t, session, "hash-4")
		wantNothing(t, session)
	})
}

func TestAChangeOfAGroupIsSentWithoutAReport(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.withoutKeys()
		other := newInstance("b")
		other.Group = "others"
		w.instances["b"] = other
		w.groups[other.Key()] = &groups.Group{Key: other.Key(), Files: textFile("1"), RuntimeConfigHash: "hash-1"}
		session, endFiles := w.ReceiveFiles("a")
		defer endFiles()
		others, endOthers := w.ReceiveFiles("b")
		defer endOthers()
		for _, id := range []string{"a", "b"} {
			w.report(id, "hash-1", status("text.json"))
		}
		w.GroupsChanged(workersKey, other.Key(), instance.GroupKey{Tenant: "default", Group: "missing"})
		wantNothing(t, session)
		w.setGroup(func(group *groups.Group) { group.RuntimeConfigHash = "hash-2" })
		w.GroupsChanged(other.Key(), workersKey)
		wantPatch(t, session, "hash-2")
		wantNothing(t, others)
		// Agents do not use other fields of a group.
		w.setGroup(func(group *groups.Group) { group.Size = 7 })
		pass(time.Hour)
		w.GroupsChanged(workersKey)
		wantNothing(t, session)
	})
}

func TestKeysAreRequestedBeforeFilesAreSent(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.setGroup(func(group *groups.Group) {
			group.Files = map[string]config.File{"a.crt": certificateFile("first"), "b.crt": certificateFile("second")}
		})
		i := w.instances["a"]
		session, endFiles := w.ReceiveFiles("a")
		defer endFiles()
		w.report("a", "", nil)
		requests, endKeys := w.ReceiveKeyRequests("a")
		defer endKeys()
		wantNames := func(want ...string) {
			t.Helper()
			names, found := next(requests)
			assert.True(t, found, "no keys are requested")
			assert.Equal(t, want, names)
		}
		wantNames("first", "second")
		for range 2 {
			w.report("a", "", nil)
			wantNothing(t, requests)
			pass(keyRetry - 1)
			wantNothing(t, requests)
			pass(1)
			wantNames("first", "second")
		}
		// Another stream receives the names at once.
		requests, endKeys = w.ReceiveKeyRequests("a")
		defer endKeys()
		wantNames("first", "second")
		w.SubmitKeys(&i, map[string]crypto.PublicKey{"first": key("1"), "unknown": key("x")}, nil)
		pass(keyRetry)
		wantNames("second")
		assert.Equal(t, map[string]string{"a.crt": "certificate for " + string(key("1"))},
			contents(wantPatch(t, session, "hash-1"+partialHash)), "the file whose key is known")
		w.SubmitKeys(&i, map[string]crypto.PublicKey{"second": key("2")}, nil)
		assert.Equal(t, map[string]string{"a.crt": "certificate for " + string(key("1")), "b.crt": "certificate for " + string(key("2"))},
			contents(wantPatch(t, session, "hash-1")))
		pass(time.Hour)
		wantNothing(t, requests)
		assert.NotContains(t, w.agents["a"].public, "unknown", "keys that no file needs")
		// The agent has made another key.
		w.SubmitKeys(&i, map[string]crypto.PublicKey{"second": key("3")}, nil)
		w.report("a", "", nil)
		assert.Equal(t, "certificate for "+string(key("3")), contents(wantPatch(t, session, "hash-1"))["b.crt"])
	})
}

// Keys and status of an agent count as long as it has a stream.
func TestAnAgentWithoutStreamsIsForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.instances["a"]
		w.SubmitKeys(&i, map[string]crypto.PublicKey{"kubelet": key("early")}, nil)
		w.report("a", "", nil)
		assert.Empty(t, w.agents, "before the first stream")
		_, endFiles := w.ReceiveFiles("a")
		_, endKeys := w.ReceiveKeyRequests("a")
		w.SubmitKeys(&i, map[string]crypto.PublicKey{"kubelet": key("kubelet")}, nil)
		endFiles()
		assert.Len(t, w.agents, 1, "it has a stream of requests for keys")
		session, endFiles := w.ReceiveFiles("a")
		w.report("a", "", nil)
		wantPatch(t, session, "hash-1")
		endKeys()
		assert.Len(t, w.agents, 1, "it has a stream of files")
		endFiles()
		assert.Empty(t, w.agents)
		endFiles()
		session, endFiles = w.ReceiveFiles("a")
		defer endFiles()
		w.report("a", "", nil)
		wantNothing(t, session)
	})
}

func TestAnAgentHasOnlyItsOwnKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.instances["b"] = newInstance("b")
		session, endFiles := w.ReceiveFiles("a")
		defer endFiles()
		_, endOther := w.ReceiveFiles("b")
		defer endOther()
		w.report("a", "", nil)
		i := w.instances["b"]
		w.SubmitKeys(&i, map[string]crypto.PublicKey{"kubelet": key("of b")}, nil)
		wantNothing(t, session)
	})
}

// Files that cannot be made are reported to operators, and tried again with a growing delay.
func TestFilesThatCannotBeMadeAreTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.setGroup(func(group *groups.Group) { group.Files = map[string]config.File{"token.json": files()["token.json"]} })
		failure := []string{"default/workers a: files of instance a: make file token.json: app/token: not found"}
		w.setToken("")
		session, end := w.ReceiveFiles("a")
		defer end()
		// Otherwise the stream and the report may each make the files.
		synctest.Wait()
		w.report("a", "", nil)
		assert.Equal(t, failure, w.takeFailures())
		for _, delay := range []time.Duration{
			minBackoff, 2 * minBackoff, 4 * minBackoff, 8 * minBackoff, 16 * minBackoff, 32 * minBackoff, 64 * minBackoff, 128 * minBackoff, 256 * minBackoff, maxBackoff, maxBackoff,
		} {
			pass(delay - 1)
			assert.Empty(t, w.takeFailures())
			pass(1)
			assert.Equal(t, failure, w.takeFailures(), "after %s", delay)
		}
		w.setToken("1")
		pass(maxBackoff)
		assert.Equal(t, map[string]string{"token.json": "1"}, contents(wantPatch(t, session, "hash-1")))
		// The next failure is tried again soon.
		w.setToken("")
		w.setGroup(func(group *groups.Group) { group.RuntimeConfigHash = "hash-2" })
		w.report("a", "hash-1", nil)
		assert.Equal(t, failure, w.takeFailures())
		w.setToken("2")
		pass(minBackoff)
		assert.Equal(t, map[string]string{"token.json": "2"}, contents(wantPatch(t, session, "hash-2")))
	})
}

func TestFilesThatAnAgentRefusesAreReported(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.setGroup(func(group *groups.Group) { delete(group.Files, "kubelet.crt") })
		session, end := w.ReceiveFiles("a")
		defer end()
		w.report("a", "", nil)
		wantPatch(t, session, "hash-1")
		report := func(reason string) {
			names := status("app.env", "app.json", "object.json", "text.json", "token.json", "unknown.json")
			for _, name := range []string{"app.env", "token.json", "object.json", "unknown.json"} {
				names[name] = refused(reason)
			}
			w.report("a", "hash-1", names)
		}
		failures := func(reason string) []string {
			return []string{
				"default/workers a: file app.env of instance a: " + reason,
				"default/workers a: file object.json of instance a: the agent cannot use it",
				"default/workers a: file token.json of instance a: the agent cannot use it",
			}
		}
		for _, reason := range []string{"first reason", "second reason"} {
			report(reason)
			assert.Equal(t, failures(reason), w.takeFailures())
			report(reason)
			assert.Empty(t, w.takeFailures(), "the same report again")
		}
		pass(10 * time.Second)
		wantPatch(t, session, "hash-1")
		report("second reason")
		assert.Equal(t, failures("second reason"), w.takeFailures(), "the next patch is refused too")
		report(strings.Repeat("x", 1000))
		assert.Equal(t, failures(strings.Repeat("x", 200)), w.takeFailures())
		report(strings.Repeat("x", 199) + "é")
		assert.Equal(t, failures(strings.Repeat("x", 199)), w.takeFailures(), "the reason is cut within a character")
		w.report("a", "hash-1", status("app.env", "app.json", "object.json", "text.json", "token.json"))
		assert.Empty(t, w.takeFailures())
		report("first reason")
		assert.Equal(t, failures("first reason"), w.takeFailures())
	})
}

// TestFilesThatNeedNoMissingKey are sent although a key is missing, and do not remove the others
// at the agent. The missing key is reported with its reason. All files are sent when it comes.
func TestFilesThatNeedNoMissingKey(t *testing.T) {
	for name, stream := range map[string]bool{"the agent gives a reason": true, "the agent asks for no requests": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i := w.instances["a"]
				session, endFiles := w.ReceiveFiles("a")
				defer endFiles()
				reason := "the agent has not sent it"
				if stream {
					_, endKeys := w.ReceiveKeyRequests("a")
					defer endKeys()
					reason = "the agent reports: permission denied"
					w.SubmitKeys(&i, nil, map[string]string{"kubelet": reason, "unknown": "x"})
				}
				w.report("a", "hash-0", nil)
				pass(keyRetry - 1)
				wantNothing(t, session)
				assert.Empty(t, w.takeFailures(), "agents need a moment to create keys")
				pass(1)
				patch := wantPatch(t, session, "hash-1"+partialHash)
				assert.True(t, patch.Partial)
				assert.Len(t, patch.Files, 5)
				assert.NotContains(t, contents(patch), "kubelet.crt")
				w.report("a", "hash-1"+partialHash, status("app.env", "app.json", "object.json", "text.json", "token.json"))
				pass(time.Hour)
				wantNothing(t, session)
				assert.Equal(t, []string{`default/workers a: files of instance a cannot be made: file kubelet.crt needs the key "kubelet": ` + reason}, w.takeFailures(), "once")

				w.SubmitKeys(&i, map[string]crypto.PublicKey{"kubelet": key("kubelet")}, nil)
				patch = wantPatch(t, session, "hash-1")
				assert.False(t, patch.Partial)
				assert.Len(t, patch.Files, 6)
				assert.Empty(t, w.takeFailures())
			})
		})
	}
}

// TestAnAgentWithAllFilesKeepsThem although its key is missing since a new leader serves.
func TestAnAgentWithAllFilesKeepsThem(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		session, end := w.ReceiveFiles("a")
		defer end()
		all := status("app.env", "app.json", "kubelet.crt", "object.json", "text.json", "token.json")
		w.report("a", "hash-1", all)
		pass(time.Hour)
		wantNothing(t, session)
		// Another file is repaired, and the configuration stays the same.
		all["app.env"] = refused("deleted")
		w.report("a", "hash-1", all)
		patch := wantPatch(t, session, "hash-1")
		assert.True(t, patch.Partial)
	})
}
