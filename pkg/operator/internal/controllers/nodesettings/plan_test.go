// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nodesettings

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// newNode returns a Node with labels, as key=value, and taints, as key=value:effect.
func newNode(annotation string, labels []string, taints ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "uid-1", ResourceVersion: "7"}}
	if annotation != "" {
		node.Annotations = map[string]string{v1beta1.AnnotationNodeSettings: annotation}
	}
	for _, label := range labels {
		key, value, _ := strings.Cut(label, "=")
		metav1.SetMetaDataLabel(&node.ObjectMeta, key, value)
	}
	for _, text := range taints {
		node.Spec.Taints = append(node.Spec.Taints, newTaint(text))
	}
	return node
}

func newTaint(text string) corev1.Taint {
	rest, effect, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(rest, "=")
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
}

// newSettings returns settings with labels, and taints with Always. A taint that begins with "once "
// has OnInitialization.
func newSettings(labels []string, taints ...string) v1beta1.NodeSettings {
	settings := v1beta1.NodeSettings{}
	for _, label := range labels {
		key, value, _ := strings.Cut(label, "=")
		if settings.Labels == nil {
			settings.Labels = map[string]string{}
		}
		settings.Labels[key] = value
	}
	for _, text := range taints {
		text, once := strings.CutPrefix(text, "once ")
		taint := newTaint(text)
		propagation := v1beta1.TaintAlways
		if once {
			propagation = v1beta1.TaintOnInitialization
		}
		settings.Taints = append(settings.Taints, v1beta1.NodeTaint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect, Propagation: propagation})
	}
	return settings
}

// apply returns the Node after the change that plan wants.
func apply(t *testing.T, node *corev1.Node, settings v1beta1.NodeSettings) (after *corev1.Node, changed bool) {
	t.Helper()
	next, err := plan(node, settings)
	require.NoError(t, err)
	if next == nil {
		return node, false
	}
	after = node.DeepCopy()
	for key, value := range next.labels {
		if value == nil {
			delete(after.Labels, key)
		} else {
			metav1.SetMetaDataLabel(&after.ObjectMeta, key, *value)
		}
	}
	after.Spec.Taints = next.taints
	delete(after.Annotations, v1beta1.AnnotationNodeSettings)
	if next.annotation != nil {
		metav1.SetMetaDataAnnotation(&after.ObjectMeta, v1beta1.AnnotationNodeSettings, *next.annotation)
	}
	return after, true
}

// describe returns labels and taints of a Node, and its annotation.
func describe(node *corev1.Node) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(node.Labels)) {
		all = append(all, key+"="+node.Labels[key])
	}
	for _, taint := range node.Spec.Taints {
		all = append(all, taint.Key+"="+taint.Value+":"+string(taint.Effect))
	}
	if annotation, ok := node.Annotations[v1beta1.AnnotationNodeSettings]; ok {
		all = append(all, annotation)
	}
	return strings.Join(all, " ")
}

func TestPlan(t *testing.T) {
	const uninitialized = v1beta1.TaintUninitialized + "=:NoSchedule"
	for name, test := range map[string]struct {
		node     *corev1.Node
		settings v1beta1.NodeSettings
		want     string // "" for no change
	}{
		"nothing is wanted": {newNode("", []string{"a=1"}, "x=:NoSchedule"), newSettings(nil), ""},
		"a label and a taint are set": {newNode("", []string{"a=1"}, "x=:NoSchedule"), newSettings([]string{"b=2"}, "y=1:NoExecute"),
			`a=1 b=2 x=:NoSchedule y=1:NoExecute {"labels":["b"],"taints":["y:NoExecute"]}`},
		"the kubelet has set them": {newNode("", []string{"b=2"}), newSettings([]string{"b=2"}), `b=2 {"labels":["b"]}`},
		"the kubelet has registered with them": {newNode("", []string{"b=2"}, "y=1:NoExecute", "s=:NoSchedule"), newSettings([]string{"b=2"}, "y=1:NoExecute", "once s=:NoSchedule"),
			`b=2 y=1:NoExecute s=:NoSchedule {"labels":["b"],"taints":["y:NoExecute"]}`},
		"a taint that is no longer set again": {newNode(`{"taints":["y:NoExecute"]}`, nil, "y=1:NoExecute"), newSettings(nil, "once y=1:NoExecute"), `y=1:NoExecute`},
		"they are set already":                {newNode(`{"labels":["b"]}`, []string{"b=2"}), newSettings([]string{"b=2"}), ""},
		"another value":                       {newNode(`{"labels":["b"],"taints":["y:NoExecute"]}`, []string{"b=2"}, "y=1:NoExecute"), newSettings([]string{"b=3"}, "y=2:NoExecute"), `b=3 y=2:NoExecute {"labels":["b"],"taints":["y:NoExecute"]}`},
		"removed from the pool":               {newNode(`{"labels":["b"],"taints":["y:NoExecute"]}`, []string{"a=1", "b=2"}, "x=:NoSchedule", "y=1:NoExecute"), newSettings(nil), `a=1 x=:NoSchedule`},
		"removed by another writer": {newNode(`{"labels":["b"],"taints":["y:NoExecute"]}`, nil), newSettings([]string{"b=2"}, "y=1:NoExecute"),
			`b=2 y=1:NoExecute {"labels":["b"],"taints":["y:NoExecute"]}`},
		"another effect is another taint":        {newNode(`{"taints":["y:NoExecute"]}`, nil, "y=1:NoExecute", "y=1:NoSchedule"), newSettings(nil, "y=1:PreferNoSchedule"), `y=1:NoSchedule y=1:PreferNoSchedule {"taints":["y:PreferNoSchedule"]}`},
		"a new Node":                             {newNode("", nil, uninitialized), newSettings([]string{"b=2"}, "once s=:NoSchedule"), `b=2 s=:NoSchedule {"labels":["b"]}`},
		"a new Node of a pool without settings":  {newNode("", nil, uninitialized), newSettings(nil), ``},
		"a new Node that the kubelet has tained": {newNode("", nil, uninitialized, "s=1:NoSchedule"), newSettings(nil, "once s=:NoSchedule"), `s=1:NoSchedule`},
		"the startup taint of an old Node":       {newNode("", nil), newSettings(nil, "once s=:NoSchedule"), ""},
		"an annotation that cannot be read":      {newNode("{", []string{"a=1"}), newSettings([]string{"b=2"}), `a=1 b=2 {"labels":["b"]}`},
	} {
		t.Run(name, func(t *testing.T) {
			after, changed := apply(t, test.node, test.settings)
			if test.want == "" && name != "a new Node of a pool without settings" {
				assert.False(t, changed)
				return
			}
			assert.True(t, changed)
			assert.Equal(t, test.want, describe(after))
			_, again := apply(t, after, test.settings)
			assert.False(t, again, "a second time")
		})
	}
}

// The example of docs/reference.md#labels-and-taints gives a new Node what the text below it says.
func TestTheDocumentedSettings(t *testing.T) {
	document, err := os.ReadFile("../../../../../docs/reference.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(document), "\n## Labels and taints\n")
	require.True(t, found)
	_, example, found := strings.Cut(section, "```yaml\n")
	require.True(t, found)
	example, _, found = strings.Cut(example, "```\n")
	require.True(t, found)
	var pool v1beta1.NstanceMachinePool
	require.NoError(t, yaml.UnmarshalStrict([]byte(example), &pool))

	node, changed := apply(t, newNode("", nil, v1beta1.TaintUninitialized+"=:NoSchedule"), *pool.Spec.Node)
	require.True(t, changed)
	assert.Equal(t, `node-role.kubernetes.io/worker= team=search dedicated=search:NoSchedule example.com/agent-not-ready=:NoExecute `+
		`{"labels":["node-role.kubernetes.io/worker","team"],"taints":["dedicated:NoSchedule"]}`, describe(node))
	node.Spec.Taints = node.Spec.Taints[:1]
	_, changed = apply(t, node, *pool.Spec.Node)
	assert.False(t, changed, "its component has removed the taint that is set once")
}

// The cache shows that a Node waits, and no taint or label of others.
func TestTrim(t *testing.T) {
	const uninitialized = v1beta1.TaintUninitialized + "=:NoSchedule"
	kept := newNode("", nil)
	Trim(kept, newNode("", []string{"a=1"}, "x=:NoSchedule", uninitialized))
	assert.Equal(t, uninitialized, describe(kept))
}

// A patch has what changes only, and names the version of the Node. The last taint is removed by an empty
// list.
func TestPatch(t *testing.T) {
	for name, test := range map[string]struct {
		node     *corev1.Node
		settings v1beta1.NodeSettings
		want     string
	}{
		"a label": {newNode("", nil, "x=:NoSchedule"), newSettings([]string{"b=2"}),
			`{"metadata":{"annotations":{"nstance.dev/node-settings":"{\"labels\":[\"b\"]}"},"labels":{"b":"2"},"resourceVersion":"7","uid":"uid-1"}}`},
		"a taint": {newNode("", nil, "x=:NoSchedule"), newSettings(nil, "y=1:NoExecute"),
			`{"metadata":{"annotations":{"nstance.dev/node-settings":"{\"taints\":[\"y:NoExecute\"]}"},"resourceVersion":"7","uid":"uid-1"},` +
				`"spec":{"taints":[{"effect":"NoSchedule","key":"x"},{"effect":"NoExecute","key":"y","value":"1"}]}}`},
		"nothing is left": {newNode(`{"labels":["b"],"taints":["y:NoExecute"]}`, []string{"b=2"}, "y=1:NoExecute"), newSettings(nil),
			`{"metadata":{"annotations":{"nstance.dev/node-settings":null},"labels":{"b":null},"resourceVersion":"7","uid":"uid-1"},"spec":{"taints":[]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			next, err := plan(test.node, test.settings)
			require.NoError(t, err)
			patch, err := next.patch(test.node)
			require.NoError(t, err)
			assert.JSONEq(t, test.want, string(patch))
		})
	}
}

// Whatever the settings were before and others have set: what the pool wants is there, what it no longer
// wants is gone, what others have set stays, a second time changes nothing, and the trimmed Node in the
// cache leads to the same decision.
func TestOthersLabelsAndTaintsStay(t *testing.T) {
	for _, seed := range tier.Seeds(t, 200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			random := func(prefix string) v1beta1.NodeSettings {
				var labels, taints []string
				for n := range 4 {
					if r.IntN(2) == 0 {
						labels = append(labels, fmt.Sprintf("%s%d=%d", prefix, n, r.IntN(2)))
					}
					if r.IntN(2) == 0 {
						taints = append(taints, fmt.Sprintf("%s%d=%d:%s", prefix, n, r.IntN(2), []string{"NoSchedule", "NoExecute"}[r.IntN(2)]))
					}
				}
				return newSettings(labels, taints...)
			}
			others := random("others")
			node := newNode("", nil)
			node.Labels = maps.Clone(others.Labels)
			for _, taint := range others.Taints {
				node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect})
			}
			foreign := slices.Clone(node.Spec.Taints)
			for range 4 {
				wanted := random("ours")
				node, _ = apply(t, node, wanted)
				labels := maps.Clone(others.Labels)
				if labels == nil {
					labels = map[string]string{}
				}
				maps.Copy(labels, wanted.Labels)
				require.True(t, maps.Equal(labels, node.Labels), "%v, and not %v", node.Labels, labels)
				taints := slices.Clone(foreign)
				for _, taint := range wanted.Taints {
					taints = append(taints, corev1.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect})
				}
				require.ElementsMatch(t, taints, node.Spec.Taints)

				trimmed := newNode(node.Annotations[v1beta1.AnnotationNodeSettings], nil)
				Trim(trimmed, node)
				for _, same := range []*corev1.Node{node, trimmed} {
					_, again := apply(t, same, wanted)
					require.False(t, again, "%s with %v", describe(same), wanted)
				}
			}
		})
	}
}
