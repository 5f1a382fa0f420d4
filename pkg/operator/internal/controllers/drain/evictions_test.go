// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The errors of the API server for a Pod that one disruption budget selects, and for a Pod that
// two budgets select.
var (
	errBudget = func() error {
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause,
			Message: "The disruption budget web needs 1 healthy pods and has 1 currently"}}
		return err
	}()
	errTwoBudgets = &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
		Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}}
)

func newBudget(name string, selector *metav1.LabelSelector) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector},
	}
}

var (
	leaves = &metav1.LabelSelector{MatchLabels: map[string]string{"leaves": "yes"}}
	others = &metav1.LabelSelector{MatchLabels: map[string]string{"leaves": "no"}}
)

func TestRejectedEvictionIsRepeatedEveryFewSeconds(t *testing.T) {
	for name, rejection := range map[string]error{
		"budget":      errBudget,
		"two budgets": errTwoBudgets,
		"forbidden":   apierrors.NewForbidden(pods.GroupResource(), "web-0", errors.New("a webhook denies it")),
		"no answer":   errors.New("connection reset"),
		"no such Pod": apierrors.NewNotFound(pods.GroupResource(), "web-0"),
		"another Pod": apierrors.NewConflict(pods.GroupResource(), "web-0", errors.New("uid")),
		"timeout":     context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
				allowed := time.Now().Add(10 * time.Minute)
				h.rejectEviction = func(string) error {
					if time.Now().Before(allowed) {
						return rejection
					}
					return nil
				}
				h.announce("n1", time.Now().Add(time.Hour))
				advance(11 * time.Minute)
				h.expectAcknowledged("i-n1")
				attempts := h.evictions["web-0"]
				shortest, longest := time.Hour, time.Duration(0)
				for i := 1; i < len(attempts); i++ {
					gap := attempts[i].Sub(attempts[i-1])
					if gap < time.Second || gap > 5*time.Second {
						t.Errorf("attempt %d is %s after the previous one", i, gap)
					}
					if i > 4 {
						shortest, longest = min(shortest, gap), max(longest, gap)
					}
				}
				if longest-shortest < 200*time.Millisecond {
					t.Error("there is no jitter: Pods that were rejected at the same time stay synchronised")
				}
				if late := attempts[len(attempts)-1].Sub(allowed); late > 5*time.Second {
					t.Errorf("evicted %s after it was allowed", late)
				}
			})
		})
	}
}

func TestSyncsDoNotAdvanceTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Hour))
		for range 100 {
			h.shards.NotifyInstance("a", "i-n1")
			h.controller.evictions.queue.Add("pod-web-0")
			advance(100 * time.Millisecond)
		}
		if n := h.count("create pods/eviction"); n > 5 {
			t.Errorf("%d attempts in 10 s", n)
		}
	})
}

func TestBlockedDrainIsReportedOnceByName(t *testing.T) {
	for name, c := range map[string]struct {
		rejection     error
		budgets       []*policyv1.PodDisruptionBudget
		names         []string
		message, note string
	}{
		"one budget": {
			rejection: errBudget,
			budgets:   []*policyv1.PodDisruptionBudget{newBudget("web", leaves), newBudget("db", others), newBudget("none", nil)},
			names:     []string{"web"},
			message:   "Node n1: Pod default/web-0 cannot be evicted, PodDisruptionBudget web",
			note:      ": The disruption budget web needs 1 healthy pods and has 1 currently",
		},
		"two budgets": {
			rejection: errTwoBudgets,
			budgets:   []*policyv1.PodDisruptionBudget{newBudget("web", leaves), newBudget("all", &metav1.LabelSelector{})},
			names:     []string{"all", "web"},
			message:   "Node n1: Pod default/web-0 cannot be evicted, more than one PodDisruptionBudget: all, web",
			note:      ": This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		},
		"no budget": {
			rejection: apierrors.NewForbidden(pods.GroupResource(), "web-0", errors.New("a webhook denies it")),
			message:   "Node n1: Pod default/web-0 cannot be evicted",
			note:      `: pods "web-0" is forbidden: a webhook denies it`,
		},
		"no answer": {
			rejection: context.DeadlineExceeded,
			budgets:   []*policyv1.PodDisruptionBudget{newBudget("web", leaves)},
			names:     []string{"web"},
			message:   "Node n1: Pod default/web-0 cannot be evicted, PodDisruptionBudget web",
			note:      ": context deadline exceeded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
				for _, budget := range c.budgets {
					require.NoError(t, h.Tracker().Add(budget))
				}
				h.rejectEviction = func(string) error { return c.rejection }
				since := time.Now()
				h.announce("n1", time.Now().Add(time.Hour))
				advance(14 * time.Second)
				if _, blocked, _ := h.controller.Summary("a", "workers"); blocked != 0 {
					t.Error("blocked too early")
				}
				advance(8 * time.Second)
				draining, blocked, list := h.controller.Summary("a", "workers")
				if draining != 1 || blocked != 1 {
					t.Errorf("summary is %d, %d", draining, blocked)
				}
				assert.Equal(t, []v1beta1.BlockedDrain{{
					Instance: "i-n1", Node: "n1", Reason: v1beta1.ReasonPodNotEvictable, Since: metav1.NewTime(since).Rfc3339Copy(), Message: c.message,
					Pod: &v1beta1.BlockingPod{Namespace: "default", Name: "web-0"}, PodDisruptionBudgets: c.names,
				}}, list)
				if is, message, draining := h.controller.OfInstance("a", "i-n1"); !is || !draining || message != c.message {
					t.Errorf("instance: blocked %t, draining %t, %q", is, draining, message)
				}
				for range 10 {
					advance(time.Minute)
					h.shards.NotifyInstance("a", "i-n1")
				}
				if got, want := h.warnings(), "Warning DrainBlocked "+c.message+c.note; len(got) != 1 || got[0] != want {
					t.Errorf("events %q, want %q", got, want)
				}
				if n := h.count("list poddisruptionbudgets"); n != 1 {
					t.Errorf("%d lists of budgets", n)
				}

				// Another client deletes the Pod.
				h.deletePod()
				advance(2 * time.Second)
				h.expectAcknowledged("i-n1")
				if _, blocked, _ := h.controller.Summary("a", "workers"); blocked != 0 {
					t.Error("still blocked")
				}
			})
		})
	}
}

func TestLongNoteIsTruncated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errors.New(strings.Repeat("é", 2000)) }
		h.announce("n1", time.Now().Add(time.Hour))
		advance(25 * time.Second)
		if got := h.warnings(); len(got) != 1 || len(got[0]) > 1024+len("Warning DrainBlocked ") || strings.ContainsRune(got[0], '\uFFFD') {
			t.Errorf("events %q", got)
		}
	})
}

// A Pod that cannot be evicted must not delay others, on its Node or elsewhere.
func TestBlockedPodDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n0"), newPod("blocked", "n0"), newPod("free", "n0"))
		h.rejectEviction = func(pod string) error {
			if pod == "blocked" {
				return errBudget
			}
			return nil
		}
		h.announce("n0", time.Now().Add(time.Hour))
		for i := 1; i <= 50; i++ {
			node := fmt.Sprintf("n%d", i)
			h.addNode(newNode(node))
			h.addPod(newPod("web-"+node, node))
		}
		advance(30 * time.Second)
		if _, err := h.Tracker().Get(pods, "default", "free"); !apierrors.IsNotFound(err) {
			t.Errorf("the other Pod of the Node was not deleted: %v", err)
		}
		for i := 1; i <= 50; i++ {
			h.announce(fmt.Sprintf("n%d", i), time.Now().Add(time.Hour))
		}
		synctest.Wait()
		for i := 1; i <= 50; i++ {
			h.expectCordonedBy(fmt.Sprintf("n%d", i), "operator")
		}
		advance(8 * time.Second)
		if got := h.shards.Acknowledged(); len(got) != 50 {
			t.Errorf("%d drains are acknowledged, want 50", len(got))
		}
	})
}

func TestGracePeriod(t *testing.T) {
	now := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		own  *int64
		left time.Duration
		want int64
	}{
		"its own":            {ptr.To[int64](30), time.Hour, 30},
		"the remaining time": {ptr.To[int64](30), 10 * time.Second, 10},
		"rounded down":       {ptr.To[int64](30), 10*time.Second + 999*time.Millisecond, 10},
		"at least a second":  {ptr.To[int64](30), 10 * time.Millisecond, 1},
		"no deadline":        {ptr.To[int64](3600), 0, 3600},
		"zero":               {ptr.To[int64](0), time.Hour, 1},
		"default":            {nil, time.Hour, 30},
		"after the deadline": {ptr.To[int64](30), -time.Minute, 1},
	} {
		t.Run(name, func(t *testing.T) {
			deadline := now.Add(c.left)
			if c.left == 0 {
				deadline = time.Time{}
			}
			pod := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: c.own}}
			if got := gracePeriodSeconds(pod, deadline, now); got != c.want {
				t.Errorf("grace period is %d s, want %d", got, c.want)
			}
		})
	}
}

func TestDrainWithAnExtendedDeadlineContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, pod := newNode("n1"), newPod("web-0", "n1")
		h := newHarness(t, node, pod)
		e := h.controller.evictions
		h.rejectEviction = func(string) error { return errBudget }
		key := Key{"a", "i-n1"}
		e.set(key, node, notDeleted([]*corev1.Pod{pod}), time.Now().Add(10*time.Second))
		advance(20 * time.Second)
		before := h.count("create pods/eviction")
		e.set(key, node, notDeleted([]*corev1.Pod{pod}), time.Now().Add(time.Minute))
		advance(20 * time.Second)
		if h.count("create pods/eviction") == before {
			t.Error("there are no more attempts")
		}
	})
}

func TestBudgetIsNamedOnceItCanBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"), newBudget("web", leaves))
		h.rejectEviction = func(string) error { return errBudget }
		h.failRequest = func(request string) error {
			if request == "list poddisruptionbudgets" {
				return errUnreachable
			}
			return nil
		}
		h.announce("n1", time.Now().Add(time.Hour))
		advance(20 * time.Second)
		h.stopFailures()
		advance(time.Minute)
		if _, message, _ := h.controller.OfInstance("a", "i-n1"); !strings.Contains(message, "PodDisruptionBudget web") {
			t.Errorf("blocked by %q", message)
		}
		if n := h.count("list poddisruptionbudgets"); n > 5 {
			t.Errorf("%d lists of budgets", n)
		}
	})
}

func TestTemporaryNodeDoesNotAdvanceTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Hour))
		advance(30 * time.Second)
		for range 10 {
			other := newNode("n2")
			other.Spec.ProviderID = "kwok:///n1"
			h.addNode(other)
			advance(100 * time.Millisecond)
			h.deleteNode("n2")
			advance(100 * time.Millisecond)
		}
	})
}
