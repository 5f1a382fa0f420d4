// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package change has the changes that the commands rotate and replace of the plugin make: each is a
// merge patch of one object, and has the call of kubectl that makes the same change.
package change

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Kind is the kind of a Change in JSON and YAML.
const Kind = "Change"

// Change is a change that a user has requested.
type Change struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Namespace is the namespace of the pool.
	Namespace string `json:"namespace"`
	// Pool is the pool that is changed, or the pool of the Node.
	Pool string `json:"pool"`
	// Node is the Node that is changed, empty for a change of the pool.
	Node string `json:"node,omitempty"`
	// Messages say what the change does.
	Messages []string `json:"messages"`
	// Command is the call of kubectl that makes the same change.
	Command string `json:"command"`

	uid    types.UID
	fields map[string]any
}

// ofPool returns a change of fields of spec.rotation.
func ofPool(pool *v1beta1.NstanceMachinePool, rotation map[string]any, messages ...string) Change {
	fields := map[string]any{"spec": map[string]any{"rotation": rotation}}
	return Change{
		APIVersion: objects.APIVersion, Kind: Kind, Namespace: pool.Namespace, Pool: pool.Name, Messages: messages,
		Command: fmt.Sprintf("kubectl patch nstancemachinepool %s -n %s --type=merge -p '%s'", pool.Name, pool.Namespace, encode(fields)),
		uid:     pool.UID, fields: fields,
	}
}

// Rotate lets all instances of a pool that exist now be replaced, as its policy says.
func Rotate(pool *v1beta1.NstanceMachinePool, now time.Time) Change {
	// The field has seconds. An instance of the present second is replaced too.
	after := now.UTC().Add(time.Second - 1).Truncate(time.Second).Format(time.RFC3339)
	change := ofPool(pool, map[string]any{"after": after},
		fmt.Sprintf("The instances of pool %s from before %s are outdated, and are replaced.", pool.Name, after))
	switch policy := pool.Spec.Rotation; {
	case policy == nil:
		change.Messages = append(change.Messages,
			"The pool had no policy for its rotation. It has the default policy now: one instance of the pool at a time, and the next when its Node is Ready.")
	case ptr.Deref(policy.Paused, false):
		change.Messages = append(change.Messages,
			fmt.Sprintf("The rotation is paused: nothing is replaced before kubectl nstance rotate %s --resume.", pool.Name))
	}
	return change
}

// Pause stops the rotation of a pool.
func Pause(pool *v1beta1.NstanceMachinePool) Change {
	change := ofPool(pool, map[string]any{"paused": true},
		fmt.Sprintf("No further instance of pool %s is replaced. What has begun is finished.", pool.Name))
	if pool.Spec.Rotation == nil {
		change.Messages = append(change.Messages, "The pool had no policy for its rotation, and has one now.")
	}
	return change
}

// Resume ends a pause. It sets the field to false instead of removing it: the policy may have no other
// field, and a policy without fields is not valid.
func Resume(pool *v1beta1.NstanceMachinePool) (Change, error) {
	if pool.Spec.Rotation == nil {
		return Change{}, fmt.Errorf("pool %s has no spec.rotation, and so its rotation is not paused", pool.Name)
	}
	return ofPool(pool, map[string]any{"paused": false},
		fmt.Sprintf("The rotation of pool %s goes on as its policy says.", pool.Name)), nil
}

// Replace lets the instance of a Node be replaced.
func Replace(subject objects.Subject) (Change, error) {
	return ofNode(subject, "", "=", "is replaced: another one is created, and then it is drained and deleted")
}

// Keep takes the request of Replace back.
func Keep(subject objects.Subject) (Change, error) {
	return ofNode(subject, nil, "-", "is not replaced, unless that has begun")
}

// ofNode returns a change of the annotation of a Node. suffix follows the key of the annotation in the
// call of kubectl annotate.
func ofNode(subject objects.Subject, value any, suffix, what string) (Change, error) {
	node, pool := subject.Node, subject.Pool
	switch {
	case node == nil:
		return Change{}, errors.New("the instance has no Node, whose annotation would request its replacement")
	case pool == nil:
		return Change{}, fmt.Errorf("instances of pools are replaced, and Node %s has none", node.Name)
	}
	return Change{
		APIVersion: objects.APIVersion, Kind: Kind, Namespace: pool.Namespace, Pool: pool.Name, Node: node.Name,
		Messages: []string{fmt.Sprintf("Pool %s: the instance of Node %s %s.", pool.Name, node.Name, what)},
		Command:  fmt.Sprintf("kubectl annotate node %s %s%s", node.Name, v1beta1.AnnotationRemediateInstance, suffix),
		uid:      node.UID,
		fields:   map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1beta1.AnnotationRemediateInstance: value}}},
	}, nil
}

// Patch returns the merge patch. It fails for an object of the same name that was created later.
func (c *Change) Patch() []byte {
	fields := map[string]any{"metadata": map[string]any{"uid": c.uid}}
	for key, value := range c.fields {
		metadata, ok := value.(map[string]any)
		if key != "metadata" || !ok {
			fields[key] = value
			continue
		}
		fields[key] = map[string]any{"uid": c.uid, "annotations": metadata["annotations"]}
	}
	return []byte(encode(fields))
}

// encode returns the JSON of maps with strings as keys, which can always be encoded.
func encode(fields map[string]any) string {
	data, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// Print writes a change as text.
func Print(w io.Writer, change Change) error {
	for _, message := range change.Messages {
		if _, err := fmt.Fprintln(w, message); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\nThe same with kubectl:\n  %s\n", change.Command)
	return err
}
