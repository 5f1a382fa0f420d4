// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// onlyToken makes the group have a single file, which is a secret.
func (w *world) onlyToken() {
	w.setGroup(func(group *groups.Group) {
		group.Files = map[string]config.File{"token.json": files()["token.json"]}
	})
}

// reportToken reports the file of a patch, as the agent goes on to do.
func (w *world) reportToken(patch *Patch) {
	w.Reported("a", &nstancev1.HealthReportRequest{InstanceId: "a", ConfigHash: patch.ConfigHash, Files: status("token.json")})
}

// TestARotatedSecretIsSent to agents that have the secret before, and sent once.
func TestARotatedSecretIsSent(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.onlyToken()
		session, end := w.ReceiveFiles("a")
		defer end()
		w.report("a", "", nil)
		patch := wantPatch(t, session, "hash-1")
		for _, content := range []string{"2", "3"} {
			w.reportToken(patch)
			pass(contentsInterval)
			w.reportToken(patch)
			wantNothing(t, session)
			w.setToken(content)
			pass(contentsInterval)
			next := wantPatch(t, session, "hash-1")
			assert.NotEqual(t, patch.ConfigHash, next.ConfigHash)
			assert.Equal(t, map[string]string{"token.json": content}, contents(next))
			patch = next
		}
		w.reportToken(patch)
		// A secret that cannot be read has not changed.
		w.setToken("")
		pass(contentsInterval)
		w.reportToken(patch)
		pass(contentsInterval)
		wantNothing(t, session)
		assert.Empty(t, w.takeFailures())
	})
}

// TestASecretThatIsNeededOnce: a new token to join is for new machines, and not for those that have
// joined.
func TestASecretThatIsNeededOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.setGroup(func(group *groups.Group) {
			group.Files = map[string]config.File{"token.json": {Kind: config.FileSecret, Content: map[string]any{"source": "app/token", "once": true}}}
		})
		session, end := w.ReceiveFiles("a")
		defer end()
		w.report("a", "", nil)
		patch := wantPatch(t, session, "hash-1")
		assert.Equal(t, "hash-1", patch.ConfigHash)
		for _, content := range []string{"2", "3"} {
			w.reportToken(patch)
			w.setToken(content)
			pass(contentsInterval)
			wantNothing(t, session)
		}
	})
}

// TestASecretThatWasRotatedBeforeTheTerm is sent: the hash that an agent reports shows which
// contents it has.
func TestASecretThatWasRotatedBeforeTheTerm(t *testing.T) {
	var patch *Patch
	inBubble(t, func(t *testing.T, w *world) {
		w.onlyToken()
		session, end := w.ReceiveFiles("a")
		defer end()
		w.report("a", "", nil)
		patch = wantPatch(t, session, "hash-1")
	})
	for name, content := range map[string]string{"the same": `{"token": "hunter2"}`, "another": "2"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.onlyToken()
				w.setToken(content)
				session, end := w.ReceiveFiles("a")
				defer end()
				w.reportToken(patch)
				wantNothing(t, session)
				pass(contentsInterval)
				if name == "the same" {
					wantNothing(t, session)
					return
				}
				assert.Equal(t, map[string]string{"token.json": content}, contents(wantPatch(t, session, "hash-1")))
			})
		})
	}
}

// TestAStoreThatReturnsOldContentsInTurn does not make an agent receive files again and again.
func TestAStoreThatReturnsOldContentsInTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.onlyToken()
		session, end := w.ReceiveFiles("a")
		defer end()
		w.report("a", "", nil)
		patch := wantPatch(t, session, "hash-1")
		w.reportToken(patch)
		sent := 0
		for n := range 600 {
			w.setToken([]string{"old", "new"}[n%2])
			w.mu.Lock()
			w.learn(map[source]string{{config.FileSecret, "app/token"}: w.Renderer.Digest([]byte([]string{"new", "old"}[n%2]))})
			w.mu.Unlock()
			pass(time.Second)
			if _, found := next(session); found {
				sent++
			}
		}
		assert.LessOrEqual(t, sent, 7, "10 s, 20 s, 40 s … after each other")
		assert.NotZero(t, sent)
	})
}
