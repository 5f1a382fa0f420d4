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

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// The API server's refusals: because of a budget, and of two.
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

func TestRefusedPodIsTriedAtASteadyPace(t *testing.T) {
	for name, refusal := range map[string]error{
		"budget":         errBudget,
		"two budgets":    errTwoBudgets,
		"forbidden":      apierrors.NewForbidden(pods.GroupResource(), "web-0", errors.New("a webhook says no")),
		"no answer":      errors.New("connection reset"),
		"no such Pod":    apierrors.NewNotFound(pods.GroupResource(), "web-0"),
		"another Pod":    apierrors.NewConflict(pods.GroupResource(), "web-0", errors.New("uid")),
		"no end of time": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
				allowed := time.Now().Add(10 * time.Minute)
				w.refuse = func(string) error {
					if time.Now().Before(allowed) {
						return refusal
					}
					return nil
				}
				w.tell("n1", time.Now().Add(time.Hour))
				after(11 * time.Minute)
				w.want("i-n1")
				tries := w.evictions["web-0"]
				shortest, longest := time.Hour, time.Duration(0)
				for i := 1; i < len(tries); i++ {
					gap := tries[i].Sub(tries[i-1])
					if gap < time.Second || gap > 5*time.Second {
						t.Errorf("try %d comes %s after the one before", i, gap)
					}
					if i > 4 {
						shortest, longest = min(shortest, gap), max(longest, gap)
					}
				}
				if longest-shortest < 200*time.Millisecond {
					t.Error("the tries are evenly spaced: Pods refused at once are tried at once for ever")
				}
				if late := tries[len(tries)-1].Sub(allowed); late > 5*time.Second {
					t.Errorf("evicted %s after it was allowed", late)
				}
			})
		})
	}
}

func TestWakesDoNotHurryTheNextTry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.refuse = func(string) error { return errBudget }
		w.tell("n1", time.Now().Add(time.Hour))
		for range 100 {
			w.controller.InstanceChanged("a", "i-n1")
			w.controller.evictions.queue.Add("pod-web-0")
			after(100 * time.Millisecond)
		}
		if n := w.count("create pods/eviction"); n > 5 {
			t.Errorf("%d tries in 10 s", n)
		}
	})
}

func TestBlockedDrainIsReportedOnceByName(t *testing.T) {
	for name, c := range map[string]struct {
		refusal       error
		budgets       []*policyv1.PodDisruptionBudget
		message, note string
	}{
		"one budget": {
			refusal: errBudget,
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", leaves), newBudget("db", others), newBudget("none", nil)},
			message: "Node n1: Pod default/web-0 cannot be evicted, PodDisruptionBudget web",
			note:    ": The disruption budget web needs 1 healthy pods and has 1 currently",
		},
		"two budgets": {
			refusal: errTwoBudgets,
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", leaves), newBudget("all", &metav1.LabelSelector{})},
			message: "Node n1: Pod default/web-0 cannot be evicted, more than one PodDisruptionBudget: all, web",
			note:    ": This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		},
		"no budget": {
			refusal: apierrors.NewForbidden(pods.GroupResource(), "web-0", errors.New("a webhook says no")),
			message: "Node n1: Pod default/web-0 cannot be evicted",
			note:    `: pods "web-0" is forbidden: a webhook says no`,
		},
		"no answer": {
			refusal: context.DeadlineExceeded,
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", leaves)},
			message: "Node n1: Pod default/web-0 cannot be evicted, PodDisruptionBudget web",
			note:    ": context deadline exceeded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
				for _, budget := range c.budgets {
					if err := w.Tracker().Add(budget); err != nil {
						t.Fatal(err)
					}
				}
				w.refuse = func(string) error { return c.refusal }
				w.tell("n1", time.Now().Add(time.Hour))
				after(14 * time.Second)
				if _, blocked, _ := w.controller.Summary("a", "workers"); blocked != 0 {
					t.Error("blocked too early")
				}
				after(8 * time.Second)
				draining, blocked, message := w.controller.Summary("a", "workers")
				if draining != 1 || blocked != 1 || message != c.message {
					t.Errorf("summary is %d, %d, %q, want %q", draining, blocked, message, c.message)
				}
				if is, message, draining := w.controller.OfInstance("a", "i-n1"); !is || !draining || message != c.message {
					t.Errorf("instance: blocked %t, draining %t, %q", is, draining, message)
				}
				for range 10 {
					after(time.Minute)
					w.controller.InstanceChanged("a", "i-n1")
				}
				if got, want := w.recorded(), "Warning DrainBlocked "+c.message+c.note; len(got) != 1 || got[0] != want {
					t.Errorf("events %q, want %q", got, want)
				}
				if n := w.count("list poddisruptionbudgets"); n != 1 {
					t.Errorf("%d lists of budgets", n)
				}

				// The Pod goes by itself.
				if err := w.Tracker().Delete(pods, "default", "web-0"); err != nil {
					t.Fatal(err)
				}
				after(2 * time.Second)
				w.want("i-n1")
				if _, blocked, _ := w.controller.Summary("a", "workers"); blocked != 0 {
					t.Error("still blocked")
				}
			})
		})
	}
}

func TestSummaryNamesTheFirstBlockedDrains(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.refuse = func(string) error { return errBudget }
		for i := range 5 {
			node := fmt.Sprintf("n%d", i)
			w.add(newNode(node))
			if err := w.Tracker().Add(newPod("web-"+node, node)); err != nil {
				t.Fatal(err)
			}
			w.tell(node, time.Now().Add(time.Hour))
		}
		after(25 * time.Second)
		draining, blocked, message := w.controller.Summary("a", "workers")
		if draining != 5 || blocked != 5 || !strings.HasPrefix(message, "Node n0: ") || !strings.HasSuffix(message, "; and 2 more") {
			t.Errorf("summary is %d, %d, %q", draining, blocked, message)
		}
		if draining, _, _ := w.controller.Summary("a", "others"); draining != 0 {
			t.Errorf("%d drains in another group", draining)
		}
	})
}

func TestLongNoteIsCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.refuse = func(string) error { return errors.New(strings.Repeat("é", 2000)) }
		w.tell("n1", time.Now().Add(time.Hour))
		after(25 * time.Second)
		if got := w.recorded(); len(got) != 1 || len(got[0]) > 1024+len("Warning DrainBlocked ") || strings.ContainsRune(got[0], '\uFFFD') {
			t.Errorf("events %q", got)
		}
	})
}

// One Pod that holds out must not hold up others, on its Node or elsewhere.
func TestBlockedPodHoldsUpNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n0"), newPod("held", "n0"), newPod("free", "n0"))
		w.refuse = func(pod string) error {
			if pod == "held" {
				return errBudget
			}
			return nil
		}
		w.tell("n0", time.Now().Add(time.Hour))
		for i := 1; i <= 50; i++ {
			node := fmt.Sprintf("n%d", i)
			w.add(newNode(node))
			if err := w.Tracker().Add(newPod("web-"+node, node)); err != nil {
				t.Fatal(err)
			}
		}
		after(30 * time.Second)
		if _, err := w.Tracker().Get(pods, "default", "free"); !apierrors.IsNotFound(err) {
			t.Errorf("the other Pod of the Node is not gone: %v", err)
		}
		for i := 1; i <= 50; i++ {
			w.tell(fmt.Sprintf("n%d", i), time.Now().Add(time.Hour))
		}
		synctest.Wait()
		for i := 1; i <= 50; i++ {
			w.wantCordoned(fmt.Sprintf("n%d", i), "ours")
		}
		after(8 * time.Second)
		if got := w.acknowledged(); len(got) != 50 {
			t.Errorf("%d drains are acknowledged, want 50", len(got))
		}
	})
}

func TestGrace(t *testing.T) {
	now := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		own  *int64
		left time.Duration
		want int64
	}{
		"its own":                         {ptr.To[int64](30), time.Hour, 30},
		"the time left":                   {ptr.To[int64](30), 10 * time.Second, 10},
		"no more than the time left":      {ptr.To[int64](30), 10*time.Second + 999*time.Millisecond, 10},
		"at least a second":               {ptr.To[int64](30), 10 * time.Millisecond, 1},
		"no deadline":                     {ptr.To[int64](3600), 0, 3600},
		"none of its own":                 {ptr.To[int64](0), time.Hour, 1},
		"default":                         {nil, time.Hour, 30},
		"the deadline is over by a while": {ptr.To[int64](30), -time.Minute, 1},
	} {
		t.Run(name, func(t *testing.T) {
			deadline := now.Add(c.left)
			if c.left == 0 {
				deadline = time.Time{}
			}
			pod := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: c.own}}
			if got := grace(pod, deadline, now); got != c.want {
				t.Errorf("grace is %d s, want %d", got, c.want)
			}
		})
	}
}

func TestDrainThatIsProlongedAtItsEndGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		node, pod := newNode("n1"), newPod("web-0", "n1")
		w := newWorld(t, node, pod)
		e := w.controller.evictions
		w.refuse = func(string) error { return errBudget }
		key := cache.NewObjectName("a", "i-n1")
		e.want(key, node, running([]*corev1.Pod{pod}), time.Now().Add(10*time.Second))
		after(20 * time.Second)
		before := w.count("create pods/eviction")
		e.want(key, node, running([]*corev1.Pod{pod}), time.Now().Add(time.Minute))
		after(20 * time.Second)
		if w.count("create pods/eviction") == before {
			t.Error("the Pod is not tried any more")
		}
	})
}

func TestBudgetIsNamedWhenItCanBeRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"), newBudget("web", leaves))
		w.refuse = func(string) error { return errBudget }
		w.fail = func(call string) error {
			if call == "list poddisruptionbudgets" {
				return errUnreachable
			}
			return nil
		}
		w.tell("n1", time.Now().Add(time.Hour))
		after(20 * time.Second)
		w.mu.Lock()
		w.fail = func(string) error { return nil }
		w.mu.Unlock()
		after(time.Minute)
		if _, message, _ := w.controller.OfInstance("a", "i-n1"); !strings.Contains(message, "PodDisruptionBudget web") {
			t.Errorf("blocked by %q", message)
		}
		if n := w.count("list poddisruptionbudgets"); n > 5 {
			t.Errorf("%d lists of budgets", n)
		}
	})
}

func TestNodeThatComesAndGoesHurriesNoTry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.refuse = func(string) error { return errBudget }
		w.tell("n1", time.Now().Add(time.Hour))
		after(30 * time.Second)
		for range 10 {
			other := newNode("n2")
			other.Spec.ProviderID = "kwok:///n1"
			w.add(other)
			after(100 * time.Millisecond)
			if err := w.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			after(100 * time.Millisecond)
		}
	})
}
