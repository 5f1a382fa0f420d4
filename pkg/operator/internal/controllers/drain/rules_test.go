// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/drainrule"
	"nstance.dev/operator/pkg/testing/tier"
)

// cacheInformer is a complete cache of objects of Cluster API.
type cacheInformer struct {
	cache.SharedIndexInformer
	handler cache.ResourceEventHandler
}

// AddEventHandler implements cache.SharedIndexInformer.
func (i *cacheInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handler = handler
	return syncedRegistration{}, nil
}

// set adds an object to the cache, or replaces it.
func (i *cacheInformer) set(t *testing.T, object any) {
	t.Helper()
	before, exists, err := i.GetIndexer().Get(object)
	require.NoError(t, err)
	require.NoError(t, i.GetIndexer().Add(object))
	if exists {
		i.handler.OnUpdate(before, object)
	} else {
		i.handler.OnAdd(object, false)
	}
}

type syncedRegistration struct {
	cache.ResourceEventHandlerRegistration
}

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (syncedRegistration) HasSyncedChecker() cache.DoneChecker { return syncedChecker{} }

type syncedChecker struct{}

// Name implements cache.DoneChecker.
func (syncedChecker) Name() string { return "rules" }

// Done implements cache.DoneChecker.
func (syncedChecker) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// newRule returns a rule for the Pods with a label "app".
func newRule(app string, behavior clusterv1.MachineDrainRuleDrainBehavior, order int32) *clusterv1.MachineDrainRule {
	rule := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "nstance-system", Name: app}}
	rule.Spec.Drain.Behavior = behavior
	if behavior == clusterv1.MachineDrainRuleDrainBehaviorDrain {
		rule.Spec.Drain.Order = &order
	}
	rule.Spec.Pods = []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
	return rule
}

// newPodOf returns a Pod with the label "app", which has to leave unless a rule skips it.
func newPodOf(app string) *corev1.Pod {
	pod := newPod(app, "n1")
	pod.Labels["app"] = app
	return pod
}

// evictedAt returns how long after start a Pod was evicted, -1 if it was not.
func (h *harness) evictedAt(pod string, start time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.evictions[pod]) == 0 {
		return -1
	}
	return h.evictions[pod][0].Sub(start).Truncate(time.Second)
}

func TestASkippedPodIsNeitherEvictedNorWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		label string
		rule  *clusterv1.MachineDrainRule
	}{
		"by label": {label: "skip"},
		"by rule":  {rule: newRule("agent", clusterv1.MachineDrainRuleDrainBehaviorSkip, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				skipped := newPodOf("agent")
				delete(skipped.Labels, "leaves")
				if c.label != "" {
					skipped.Labels[clusterv1.PodDrainLabel] = c.label
				}
				h := newHarness(t, newNode("n1"), skipped, newPodOf("web"))
				if c.rule != nil {
					h.rules.set(t, c.rule)
				}
				start := time.Now()
				h.announce("n1", start.Add(time.Hour))
				advance(20 * time.Second)
				h.expectAcknowledged("i-n1")
				assert.Equal(t, time.Duration(-1), h.evictedAt("agent", start), "eviction of the skipped Pod")
				assert.Equal(t, time.Duration(0), h.evictedAt("web", start), "eviction of the other")
			})
		})
	}
}

func TestADrainWaitsUntilAPodHasCompleted(t *testing.T) {
	for name, change := range map[string]func(*harness, *corev1.Pod){
		"by label":      func(_ *harness, pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = "wait-completed" },
		"by annotation": func(_ *harness, pod *corev1.Pod) { pod.Annotations = map[string]string{drainrule.DoNotDisrupt: "true"} },
		"by rule": func(h *harness, _ *corev1.Pod) {
			h.rules.set(h.t, newRule("batch", clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, newNode("n1"), newPodOf("web"))
				batch := newPodOf("batch")
				change(h, batch)
				h.addPod(batch)
				start := time.Now()
				h.announce("n1", start.Add(time.Hour))
				advance(30 * time.Minute)
				h.expectAcknowledged()
				assert.Equal(t, time.Duration(0), h.evictedAt("web", start), "eviction of the other")
				assert.Equal(t, time.Duration(-1), h.evictedAt("batch", start), "eviction of the Pod")
				// 35 s are the grace period and the margin.
				want := "Node n1: waits for Pod default/batch to complete, at the latest until " + start.Add(time.Hour-35*time.Second).UTC().Format(time.RFC3339)
				waiting := h.controller.Waiting("a", "workers")
				require.Len(t, waiting, 1)
				assert.Contains(t, waiting[0], want)
				blocked, message, draining := h.controller.OfInstance("a", "i-n1")
				assert.Equal(t, waiting[0], message)
				assert.True(t, draining && !blocked, "draining %t, blocked %t", draining, blocked)
				expectMetrics(t, h.registry, `nstance_operator_drains{state="waiting"} 1`, `nstance_operator_drains{state="running"} 0`)

				completed := batch.DeepCopy()
				completed.Status.Phase = corev1.PodSucceeded
				delete(completed.Labels, "leaves")
				require.NoError(t, h.Tracker().Update(pods, completed, "default"))
				advance(5 * time.Second)
				h.expectAcknowledged("i-n1")
				assert.Empty(t, h.controller.Waiting("a", "workers"))
			})
		})
	}
}

// Otherwise the machine would be deleted under the Pod, without a grace period.
func TestAPodThatDoesNotCompleteIsEvictedBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		batch, slow := newPodOf("batch"), newPodOf("slow")
		batch.Labels[clusterv1.PodDrainLabel], slow.Labels[clusterv1.PodDrainLabel] = "wait-completed", "wait-completed"
		slow.Spec.TerminationGracePeriodSeconds = ptr.To[int64](600)
		h := newHarness(t, newNode("n1"), batch, slow)
		start := time.Now()
		h.announce("n1", start.Add(time.Hour))
		advance(time.Hour - 610*time.Second - 25*time.Second)
		assert.Equal(t, time.Duration(-1), h.evictedAt("batch", start), "eviction before the time")
		advance(611 * time.Second)
		assert.Equal(t, time.Hour-630*time.Second, h.evictedAt("slow", start), "eviction")
		assert.Equal(t, time.Hour-630*time.Second, h.evictedAt("batch", start), "eviction")
		h.expectAcknowledged("i-n1")
	})
}

func TestPodsAreEvictedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPodOf("first"), newPodOf("web"), newPodOf("last"), newPodOf("later"))
		h.rules.set(t, newRule("first", clusterv1.MachineDrainRuleDrainBehaviorDrain, -10))
		h.rules.set(t, newRule("last", clusterv1.MachineDrainRuleDrainBehaviorDrain, 100))
		start := time.Now()
		h.announce("n1", start.Add(time.Hour))
		advance(7 * time.Second)
		// A rule that changes during the drain counts from the next sync.
		h.rules.set(t, newRule("later", clusterv1.MachineDrainRuleDrainBehaviorDrain, 50))
		advance(time.Minute)
		h.expectAcknowledged("i-n1")
		// Each Pod needs its grace period of 5 s.
		assert.Equal(t, time.Duration(0), h.evictedAt("first", start))
		assert.Equal(t, 5*time.Second, h.evictedAt("web", start))
		assert.Equal(t, 5*time.Second, h.evictedAt("later", start), "it had begun before the rule")
		assert.Equal(t, 10*time.Second, h.evictedAt("last", start))
	})
}

// A rule that cannot be read may protect a Pod, but not beyond the deadline.
func TestAnInvalidRuleBlocksTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		skipped := newPodOf("agent")
		delete(skipped.Labels, "leaves")
		skipped.Labels[clusterv1.PodDrainLabel] = "skip"
		h := newHarness(t, newNode("n1"), newPodOf("web"), skipped)
		rule := newRule("web", clusterv1.MachineDrainRuleDrainBehaviorSkip, 0)
		rule.Spec.Pods[0].Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Resembles"}}}
		h.rules.set(t, rule)
		h.announce("n1", start.Add(time.Hour))
		advance(time.Minute)
		h.expectAcknowledged()
		blocked, message := h.blockedDrains()
		assert.Equal(t, 1, blocked)
		assert.Contains(t, message, "Node n1 cannot be drained: read MachineDrainRule web: parse spec.pods[0].selector: ")
		assert.Equal(t, time.Duration(-1), h.evictedAt("web", start), "eviction before the time is short")
		advance(time.Hour - time.Minute - 20*time.Second)
		assert.Equal(t, time.Hour-35*time.Second, h.evictedAt("web", start), "eviction")
		assert.Equal(t, time.Duration(-1), h.evictedAt("agent", start), "eviction of a Pod with a label")
		h.expectAcknowledged("i-n1")
	})
}

// A Deployment whose Pods tolerate everything replaces an evicted Pod at once, and the scheduler
// binds it to the emptiest Node, which is the Node that is drained.
func TestAPodThatComesBackStays(t *testing.T) {
	everything := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	for name, c := range map[string]struct {
		tolerations []corev1.Toleration
		// evictions is the number of evictions within a minute, if the Pod comes back each time.
		evictions int
		stays     bool
	}{
		"tolerates everything": {tolerations: everything, evictions: 1, stays: true},
		"tolerates the cordon": {tolerations: []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}, evictions: 1, stays: true},
		"tolerates NoExecute":  {tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}},
		"tolerates nothing":    {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				replacement := func(i int) *corev1.Pod {
					pod := newPod(fmt.Sprintf("web-%d", i), "n1")
					pod.Spec.Tolerations = c.tolerations
					if i > 0 && c.stays {
						delete(pod.Labels, "leaves")
					}
					return pod
				}
				h := newHarness(t, newNode("n1"), replacement(0))
				h.announce("n1", time.Now().Add(time.Hour))
				for i := range 12 {
					advance(4 * time.Second)
					if h.evictedAt(fmt.Sprintf("web-%d", i), time.Now()) == -1 {
						break
					}
					h.addPod(replacement(i + 1))
				}
				advance(time.Minute)
				h.expectAcknowledged("i-n1")
				if c.stays {
					assert.Equal(t, c.evictions, h.count("create pods/eviction"), "evictions")
				} else {
					assert.Greater(t, h.count("create pods/eviction"), 5, "evictions")
				}
			})
		})
	}
}

// The simulation of a drain: Pods terminate and complete at random times, budgets reject
// evictions, and the drain is planned when something happens or when the plan says so.
func TestRulesAreKeptUntilTheTimeIsShort(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(2, 20)) {
		random := rand.New(rand.NewPCG(seed, 17))
		for range 200 {
			simulateDrain(t, random)
		}
	}
}

// simulatedPod is a Pod of the simulation.
type simulatedPod struct {
	*corev1.Pod
	// evictable is when budgets allow its eviction, completes when it completes, and terminates
	// how long it terminates.
	evictable, completes time.Time
	terminates           time.Duration
	// gone is when it leaves, zero if it was not evicted and does not complete.
	gone time.Time
}

func simulateDrain(t *testing.T, random *rand.Rand) {
	t.Helper()
	now := time.Unix(0, 0)
	deadline := now.Add(time.Duration(random.IntN(7200)) * time.Second)
	rules := map[types.UID]drainrule.Rule{}
	var simulated []*simulatedPod
	for i := range 1 + random.IntN(8) {
		pod := &simulatedPod{Pod: newPod(fmt.Sprintf("pod-%d", i), "n1")}
		grace := int64(random.IntN(900))
		pod.Spec.TerminationGracePeriodSeconds = &grace
		pod.terminates = time.Duration(random.Int64N(grace+1)) * time.Second
		if random.IntN(4) == 0 {
			pod.evictable = now.Add(time.Duration(random.IntN(9000)) * time.Second)
		}
		switch random.IntN(4) {
		case 0:
			rules[pod.UID] = drainrule.Rule{Behavior: drainrule.WaitCompleted}
			pod.completes = now.Add(time.Duration(random.IntN(9000)) * time.Second)
		case 1, 2:
			rules[pod.UID] = drainrule.Rule{Order: int32(random.IntN(5) - 2)}
		}
		simulated = append(simulated, pod)
	}

	for now.Before(deadline) {
		var observed podsObservation
		observed.rules = rules
		for _, pod := range simulated {
			if leaves := pod.gone; (leaves.IsZero() || now.Before(leaves)) && (pod.completes.IsZero() || now.Before(pod.completes)) {
				observed.remaining = append(observed.remaining, pod.Pod)
			}
		}
		if len(observed.remaining) == 0 {
			return
		}
		next := planEvictions(observed, false, deadline, now)
		checkEvictions(t, observed, next, deadline, now)
		if t.Failed() {
			t.FailNow()
		}
		due := deadline
		for _, pod := range simulated {
			if slices.Contains(next.evict, pod.Pod) && !now.Before(pod.evictable) {
				pod.DeletionTimestamp, pod.gone = ptr.To(metav1.NewTime(now)), now.Add(pod.terminates)
			}
			for _, at := range []time.Time{next.until, pod.gone, pod.completes, pod.evictable} {
				if at.After(now) && at.Before(due) {
					due = at
				}
			}
		}
		if slices.ContainsFunc(next.evict, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }) {
			continue // the watch shows the deletions at once
		}
		now = due
	}
}

// checkEvictions compares a plan with what users may rely on.
func checkEvictions(t *testing.T, observed podsObservation, next decision, deadline, now time.Time) {
	t.Helper()
	left := deadline.Sub(now)
	short := false
	for _, pod := range observed.remaining {
		short = short || pod.DeletionTimestamp == nil && left <= gracePeriod(pod)+evictionMargin
	}
	for _, pod := range observed.remaining {
		evicted := slices.Contains(next.evict, pod)
		rule := observed.rules[pod.UID]
		switch {
		case evicted && pod.DeletionTimestamp != nil:
			t.Errorf("Pod %s is being deleted and is evicted", pod.Name)
		case !evicted && pod.DeletionTimestamp == nil && left <= gracePeriod(pod)+evictionMargin:
			t.Errorf("Pod %s is left with %s for its grace period of %s", pod.Name, left, gracePeriod(pod))
		case evicted && !short && rule.Behavior == drainrule.WaitCompleted:
			t.Errorf("Pod %s is evicted %s before the deadline, and could complete", pod.Name, left)
		}
		for _, other := range observed.remaining {
			if evicted && !short && observed.rules[other.UID].Order < rule.Order {
				t.Errorf("Pod %s of order %d is evicted %s before the deadline, and Pod %s of order %d is left",
					pod.Name, rule.Order, left, other.Name, observed.rules[other.UID].Order)
			}
		}
	}
	if len(next.evict) == 0 && next.until.IsZero() && slices.ContainsFunc(observed.remaining, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil }) {
		t.Errorf("nothing is evicted, and the plan is not made again before the deadline in %s", left)
	}
}
