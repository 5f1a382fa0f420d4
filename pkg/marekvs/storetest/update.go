// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storetest

// Update is how a StatefulSet updates its Pods
// (https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#update-strategies).
type Update struct {
	// Template names the template, which is the name of its revision too. Pods with an ordinal of
	// at least Partition are updated to it.
	Template  string
	Partition int32
	// OnDelete is true if no Pod is updated until it is deleted.
	OnDelete bool
	// CurrentRevision and UpdateRevision belong to the status. The controller sets UpdateRevision
	// when it observes the template, and CurrentRevision when every Pod has it.
	CurrentRevision, UpdateRevision string
}

// newUpdate returns the update of a StatefulSet that rests.
func newUpdate(size int32) Update {
	return Update{Template: "1", Partition: size, CurrentRevision: "1", UpdateRevision: "1"}
}

// revisionOf returns the revision of a Pod that is created
// (k8s.io/kubernetes v1.36.3, pkg/controller/statefulset/stateful_set_utils.go, isCurrentRevisionNeeded).
func (u *Update) revisionOf(ordinal int32) string {
	if !u.OnDelete && ordinal < u.Partition {
		return u.CurrentRevision
	}
	return u.UpdateRevision
}

// Roll changes the spec of the StatefulSet: its template, the lowest ordinal that is updated to it, and
// whether Pods are only updated when they are deleted.
func (m *Model) Roll(template string, partition int32, onDelete bool) {
	if u := &m.Update; u.Template != template || u.Partition != partition || u.OnDelete != onDelete {
		u.Template, u.Partition, u.OnDelete = template, partition, onDelete
		m.Generation++
	}
}

// updatePods deletes the Pod with the highest ordinal that is to be updated, if all Pods above it are
// ready.
func (m *Model) updatePods() {
	u := &m.Update
	if u.OnDelete {
		return
	}
	pods := map[int32]*Node{}
	updated := int32(0)
	for _, n := range m.Pods {
		pods[n.Ordinal] = n
		if n.Ordinal < m.Replicas && n.Revision == u.UpdateRevision && n.online() {
			updated++
		}
	}
	if updated == m.Replicas {
		u.CurrentRevision = u.UpdateRevision
		return
	}
	for ordinal := m.Replicas - 1; ordinal >= u.Partition; ordinal-- {
		n := pods[ordinal]
		if n.Revision != u.UpdateRevision && !n.Terminating {
			m.terminate(n)
			return
		}
		if !n.online() {
			return
		}
	}
}
