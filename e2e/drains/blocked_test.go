// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/testing/tier"
)

// A drain that a budget blocks delays no other drain. It continues when the budget allows it. A
// drain waits for a Pod that terminates slowly.
func TestBlockedDrains(t *testing.T) {
	t.Parallel()
	const name = "blocked"
	others := tier.Pick(20, 50)
	nodes := createGroup(t, steadyShard, name, int32(others+2))
	env.CreateNamespace(t, name)
	var pods []*corev1.Pod
	for i, node := range nodes {
		pods = append(pods, newPod(name, fmt.Sprintf("pod-%d", i), node))
	}
	released, slow := pods[0], pods[1]
	slow.Finalizers = []string{testFinalizer}
	env.CreatePods(t, timeout, pods...)
	protect(t, name, released.Name)
	isOther := func(d *drain) bool {
		return d.Group == name && !slices.Contains(nodes[:2], d.Instance)
	}

	from := env.AuditEnd(t)
	env.Scale(t, name, 0)
	testcluster.Eventually(t, timeout, "the others are acknowledged", func(context.Context) error {
		acknowledged := 0
		for _, d := range env.drains[steadyShard].matching(isOther) {
			if len(d.Acknowledged) > 0 {
				acknowledged++
			}
		}
		if acknowledged < others {
			return fmt.Errorf("%d of %d", acknowledged, others)
		}
		return nil
	})
	for _, d := range env.drains[steadyShard].matching(isOther) {
		expectValidAcknowledgement(t, d)
		if writes := env.OperatorRequests(t, from, isCordon(d.Instance)); len(writes) == 0 {
			t.Errorf("Node %s was not cordoned", d.Instance)
		}
	}
	testcluster.Eventually(t, timeout, "the Node with the protected Pod is cordoned", func(ctx context.Context) error {
		return cordoned(ctx, released.Spec.NodeName, steadyShard+"/"+released.Spec.NodeName)
	})
	if d, _ := env.drains[steadyShard].ofInstance(released.Spec.NodeName); len(d.Acknowledged) > 0 {
		t.Errorf("the blocked drain of %s was acknowledged", d.Instance)
	}
	testcluster.Eventually(t, timeout, "the shard group reports what blocks", func(ctx context.Context) error {
		condition, err := progress(ctx, steadyShard, name)
		if err == nil && (condition.Status != metav1.ConditionFalse || condition.Reason != v1beta1.ReasonDrainBlocked || !namesBlocker(condition.Message, released)) {
			err = fmt.Errorf("condition %+v", condition)
		}
		return err
	})

	if d, _ := env.drains[steadyShard].ofInstance(slow.Spec.NodeName); len(d.Acknowledged) > 0 {
		t.Errorf("the drain of %s was acknowledged before its Pod had terminated", d.Instance)
	}
	if attempts := evictions(t, from, name, slow.Name); len(attempts) == 0 || attempts[0].Code != http.StatusCreated {
		t.Errorf("the Pod that terminates slowly was not evicted: %v", attempts)
	}
	patchPod(t, name, slow.Name, `{"metadata":{"finalizers":null}}`)
	untilDrained(t, slow.Spec.NodeName)

	untilEventNames(t, released) // before the Pod is evicted
	from = env.AuditEnd(t)
	unprotect(t, name, released.Name)
	untilDrained(t, released.Spec.NodeName)
	expectEvictedWhenAllowed(t, from, released)
	expectOneEvent(t, released)
}

// createStuckPod creates a group of one instance, and on its Node a Pod that a budget protects.
func createStuckPod(t *testing.T, shard, group string) *corev1.Pod {
	t.Helper()
	stuck := newPod(group, "pod", createGroup(t, shard, group, 1)[0])
	env.CreateNamespace(t, group)
	env.CreatePods(t, timeout, stuck)
	protect(t, group, stuck.Name)
	return stuck
}

// A drain that a budget never allows times out, and evictions are retried until then.
func TestDrainTimesOut(t *testing.T) {
	t.Parallel()
	const name = "stuck"
	stuck := createStuckPod(t, impatientShard, name)
	env.Scale(t, name, 0)
	expectTimedOut(t, impatientShard, stuck)
	untilEventNames(t, stuck)
	expectOneEvent(t, stuck)
}

// A pool can have a shorter drain timeout than its shard, and none above the limit of the shard's
// configuration.
func TestDrainTimeoutOfAPool(t *testing.T) {
	t.Parallel()
	const name = "hasty"
	stuck := createStuckPod(t, steadyShard, name)
	setDrainTimeout := func(timeout time.Duration) {
		t.Helper()
		_, err := env.PatchNstanceMachinePool(t.Context(), name, fmt.Sprintf(`{"spec":{"drainTimeoutSeconds":%d}}`, int(timeout.Seconds())))
		require.NoError(t, err)
	}

	setDrainTimeout(25 * time.Hour)
	testcluster.Eventually(t, timeout, "the server rejects it", func(ctx context.Context) error {
		return poolIs(ctx, name, v1beta1.ReasonConfigRejected)
	})
	setDrainTimeout(shortDrainTimeout)
	testcluster.Eventually(t, timeout, "the drain timeout is in force", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, name, steadyShard)
		if err != nil {
			return err
		}
		if config := group.Status.Config; config == nil || config.DrainTimeoutSeconds != int32(shortDrainTimeout.Seconds()) {
			return fmt.Errorf("config %+v", config)
		}
		return nil
	})
	env.Scale(t, name, 0)
	expectTimedOut(t, steadyShard, stuck)
}

// untilEventNames waits until an event reports that a Pod blocks a drain.
func untilEventNames(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	testcluster.Eventually(t, timeout, "an event reports what blocks", func(ctx context.Context) error {
		count, err := eventsNaming(ctx, pod)
		if err == nil && count == 0 {
			err = fmt.Errorf("no event names Pod %s", pod.Name)
		}
		return err
	})
}

func expectOneEvent(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	count, err := eventsNaming(t.Context(), pod)
	require.NoError(t, err)
	if count != 1 {
		t.Errorf("Pod %s and its Node %s and budget are named %d times by events, want once", pod.Name, pod.Spec.NodeName, count)
	}
}

// isCordon matches writes to a Node. Operators write nothing else to it.
func isCordon(node string) func(controlplane.Request) bool {
	return func(r controlplane.Request) bool {
		return r.Resource == "nodes" && r.Name == node && (r.Verb == "patch" || r.Verb == "update") && r.Code == http.StatusOK
	}
}

// namesBlocker reports whether a message names a Pod, its budget and its Node.
func namesBlocker(message string, pod *corev1.Pod) bool {
	return strings.Contains(message, pod.Spec.NodeName) &&
		strings.Contains(message, pod.Namespace+"/"+pod.Name) &&
		strings.Contains(message, budgetOf(pod.Name))
}

// expectEvictedWhenAllowed expects that a Pod was evicted by the first attempt after its
// budget allowed it, and with few attempts before. The budget was changed after from.
func expectEvictedWhenAllowed(t *testing.T, from controlplane.Position, pod *corev1.Pod) {
	t.Helper()
	// The log has the order of the responses.
	requests := env.Requests(t, from, func(r controlplane.Request) bool {
		return r.Namespace == pod.Namespace && r.Code < http.StatusInternalServerError &&
			(isEviction(r) && r.Name == pod.Name && testcluster.ByOperator(r) || r.Resource == "poddisruptionbudgets" && r.Verb != "get" && r.Name == budgetOf(pod.Name))
	})
	var changed time.Time
	before, after, allowed := 0, 0, false
	for _, r := range requests {
		switch {
		case r.Resource == "poddisruptionbudgets" && r.Subresource == "":
			changed = r.Time
		case r.Resource == "poddisruptionbudgets":
			// The controller of budgets counts disruptions after the change.
			allowed = allowed || !changed.IsZero() && r.Code == http.StatusOK
		case r.Code != http.StatusTooManyRequests:
			took := r.Time.Sub(changed)
			t.Logf("evicted %s after the change of the budget, after %d rejected attempts before its controller allowed it and %d later", took, before, after)
			if !allowed {
				t.Errorf("evicted before the budget allowed it:%s", testcluster.Describe(requests))
			}
			// An attempt may have been made while the controller wrote.
			if after > 1 {
				t.Errorf("%d attempts were rejected after the budget allowed the eviction", after)
			}
			if limit := 2 + int(took.Seconds()); before+after > limit {
				t.Errorf("%d attempts were rejected in %s, want at most %d", before+after, took, limit)
			}
			return
		case allowed:
			after++
		default:
			before++
		}
	}
	t.Errorf("the Pod was not evicted:%s", testcluster.Describe(requests))
}

// expectTimedOut expects that the drain of a Pod's Node takes shortDrainTimeout,
// and that the eviction was retried all the time, at most once a second.
func expectTimedOut(t *testing.T, shard string, pod *corev1.Pod) {
	t.Helper()
	var d drain
	testcluster.Eventually(t, timeout, "the instance is deleted", func(context.Context) error {
		if d, _ = env.drains[shard].ofInstance(pod.Spec.NodeName); d.Deleted.IsZero() {
			return fmt.Errorf("drain %+v", d)
		}
		return nil
	})
	assert.Empty(t, d.Acknowledged, "the drain was acknowledged with the Pod on the Node")
	attempts := evictions(t, 0, pod.Namespace, pod.Name)
	for _, attempt := range attempts {
		if attempt.Code < http.StatusBadRequest {
			t.Errorf("an attempt to evict the Pod was answered %d", attempt.Code)
		}
	}
	t.Logf("%d attempts were rejected in %s", len(attempts), shortDrainTimeout)
	if least, limit := int(shortDrainTimeout/(10*time.Second)), int(shortDrainTimeout/time.Second)+1; len(attempts) < least || len(attempts) > limit {
		t.Errorf("%d attempts were rejected, want %d to %d", len(attempts), least, limit)
	}
}

// eventsNaming counts the events that report what keeps a Pod on its Node, repetitions included.
func eventsNaming(ctx context.Context, pod *corev1.Pod) (int32, error) {
	events, err := env.Kube.EventsV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	var count int32
	for _, event := range events.Items {
		if !namesBlocker(event.Note, pod) {
			continue
		}
		if event.Series != nil {
			count += event.Series.Count
		} else {
			count++
		}
	}
	return count, nil
}

// A drain waits until the volumes of the evicted Pods are detached, and not for the volumes of
// Pods that stay.
func TestAttachedVolumes(t *testing.T) {
	t.Parallel()
	const name, staying, left = "volumes", "volume-that-stays", "volume-of-an-evicted-pod"
	node := createGroup(t, steadyShard, name, 1)[0]
	env.CreateNamespace(t, name)
	createVolume(t, staying, corev1.ObjectReference{Namespace: name, Name: "data"})
	// The claim of a mirror Pod need not exist: no kubelet mounts it.
	mirror := newPod(name, "mirror", node)
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "mirror"}
	mirror.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	env.CreatePods(t, timeout, mirror)
	attach(t, staying, node)
	attach(t, left, node)

	from := env.AuditEnd(t)
	setProviderStatus(t, node, kwok.StatusImpaired)
	testcluster.Eventually(t, timeout, "the volumes are looked up", func(context.Context) error {
		for _, volume := range []string{staying, left} {
			if len(env.OperatorRequests(t, from, func(r controlplane.Request) bool {
				return r.Resource == "persistentvolumes" && r.Name == volume
			})) == 0 {
				return errors.New(volume + " is not")
			}
		}
		return nil
	})
	d, _ := env.drains[steadyShard].ofInstance(node)
	assert.Empty(t, d.Acknowledged, "a volume was attached when the drain was acknowledged")
	require.NoError(t, env.Kube.StorageV1().VolumeAttachments().Delete(t.Context(), left, metav1.DeleteOptions{}))
	untilDrained(t, node)
}

// createVolume creates a PersistentVolume that belongs to a claim.
func createVolume(t *testing.T, name string, claim corev1.ObjectReference) {
	t.Helper()
	volumes := env.Kube.CoreV1().PersistentVolumes()
	_, err := volumes.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			ClaimRef:               &claim,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, volumes.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
}

// attach attaches a volume to a Node.
func attach(t *testing.T, volume, node string) {
	t.Helper()
	attachments := env.Kube.StorageV1().VolumeAttachments()
	attachment, err := attachments.Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "none", NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(volume)},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		err := attachments.Delete(context.WithoutCancel(t.Context()), volume, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	attachment.Status.Attached = true
	_, err = attachments.UpdateStatus(t.Context(), attachment, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// When a shard withdraws a deletion, the Node that the operator cordoned for it is
// uncordoned, but not the Node that an administrator had cordoned before.
func TestWithdrawnDrains(t *testing.T) {
	t.Parallel()
	const ours, admins = "ours", "admins"
	old, replacements := map[string]string{}, map[string]string{}
	from := env.AuditEnd(t)
	for _, name := range []string{ours, admins} {
		old[name] = createGroup(t, forgetfulShard, name, 1)[0]
		env.CreateNamespace(t, name)
		env.CreatePods(t, timeout, newPod(name, "stuck", old[name]))
		protect(t, name, "stuck")
	}
	patchNode(t, old[admins], `{"spec":{"unschedulable":true}}`)
	for _, name := range []string{ours, admins} {
		setProviderStatus(t, old[name], kwok.StatusImpaired)
	}
	for _, name := range []string{ours, admins} {
		nodes := readyNodes(t, name, 2)
		replacements[name] = nodes[slices.IndexFunc(nodes, func(node string) bool { return node != old[name] })]
		testcluster.Eventually(t, timeout, "the eviction of the Pod was rejected", func(context.Context) error {
			if !slices.ContainsFunc(evictions(t, from, name, "stuck"), func(r controlplane.Request) bool {
				return r.Code == http.StatusTooManyRequests
			}) {
				return errors.New("no rejected eviction")
			}
			return nil
		})
	}
	expectCordoned(t, old[ours], forgetfulShard+"/"+old[ours])
	expectCordoned(t, old[admins], "")

	// Only the server's cache records which instances drain.
	shard := env.ShardServer(forgetfulShard)
	testcluster.Stop(t, shard)
	require.NoError(t, os.RemoveAll(env.Installation.CacheDir(shard.Name)))
	for _, name := range []string{ours, admins} {
		setProviderStatus(t, old[name], "")
		// One of the two is deleted.
		setProviderStatus(t, replacements[name], kwok.StatusFailed)
	}
	testcluster.Start(t, shard)

	testcluster.Eventually(t, timeout, "our Node is uncordoned", func(ctx context.Context) error {
		node, err := env.Kube.CoreV1().Nodes().Get(ctx, old[ours], metav1.GetOptions{})
		if err != nil {
			return err
		}
		if mark, marked := node.Annotations[v1beta1.AnnotationCordonedFor]; node.Spec.Unschedulable || marked {
			return fmt.Errorf("unschedulable %t, marked %q", node.Spec.Unschedulable, mark)
		}
		return nil
	})
	for _, name := range []string{ours, admins} {
		testcluster.Eventually(t, timeout, "the shard group has no drains", func(ctx context.Context) error {
			condition, err := progress(ctx, forgetfulShard, name)
			if err == nil && condition.Reason != v1beta1.ReasonNoDrains {
				err = fmt.Errorf("condition %+v", condition)
			}
			return err
		})
		if d, _ := env.drains[forgetfulShard].ofInstance(old[name]); len(d.Acknowledged) > 0 || !d.Deleted.IsZero() {
			t.Errorf("the instance that is not deleted any more: %+v", d)
		}
		if _, err := env.Kube.CoreV1().Pods(name).Get(t.Context(), "stuck", metav1.GetOptions{}); err != nil {
			t.Errorf("the Pod that is not evicted any more: %v", err)
		}
	}
	expectCordoned(t, old[admins], "")
}

func expectCordoned(t *testing.T, node, mark string) {
	t.Helper()
	assert.NoError(t, cordoned(t.Context(), node, mark))
}
