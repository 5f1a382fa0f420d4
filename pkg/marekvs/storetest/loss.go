// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storetest

import (
	"maps"
	"slices"
)

// Stuck reports whether the node never starts, because its volume is lost.
func (n *Node) Stuck() bool { return n.stuck }

// LoseVolume loses the volume of a node together with its Kubernetes Node: its data is gone, and the
// Pods that are created with its claim never start. It reports false, and loses nothing, if the volume has
// the last copy of data, also if only volumes whose claims are being deleted have others.
func (m *Model) LoseVolume(ordinal int32) bool {
	without := slices.AppendSeq([]int32{ordinal}, maps.Keys(m.doomed))
	if m.lost[ordinal] || len(m.Volumes.Lost(m.Replicas, without...)) > 0 {
		return false
	}
	m.Pods = slices.DeleteFunc(m.Pods, func(n *Node) bool { return n.Ordinal == ordinal })
	m.Volumes.Delete(ordinal)
	delete(m.doomed, ordinal)
	m.lost[ordinal] = true
	return true
}

// VolumeLost reports whether the volume of a node is lost.
func (m *Model) VolumeLost(ordinal int32) bool { return m.lost[ordinal] }

// VolumesLost returns how many volumes of the nodes of the StatefulSet are lost. What a removed node has
// lost is replaced only if the cluster grows again.
func (m *Model) VolumesLost() (volumes int) {
	for ordinal := range m.lost {
		if ordinal < m.Replicas {
			volumes++
		}
	}
	return volumes
}

// DeletingVolume reports whether the claim of a node is being deleted.
func (m *Model) DeletingVolume(ordinal int32) bool { return m.doomed[ordinal] }

// DeleteClaim deletes the claim of a node. It exists, with its volume, until the Pod of the node has ended
// (https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection).
func (m *Model) DeleteClaim(ordinal int32) {
	m.doomed[ordinal] = true
	m.deleteDoomed()
}

// KeepVolume gives the volume of a node whose claim is being deleted to another claim, as an administrator does who wants
// to keep its data.
func (m *Model) KeepVolume(ordinal int32) { delete(m.doomed, ordinal) }

// ReplaceVolume deletes the claim and the Pod of a node.
func (m *Model) ReplaceVolume(ordinal int32) {
	for _, n := range m.Pods {
		if n.Ordinal == ordinal {
			m.terminate(n)
		}
	}
	m.DeleteClaim(ordinal)
}

// deleteDoomed deletes the volumes of claims that are being deleted and that no Pod uses. A Pod that has
// never started uses none, and the StatefulSet controller creates another claim for it
// (k8s.io/kubernetes v1.36.3, pkg/controller/statefulset/stateful_set_control.go, createMissingPersistentVolumeClaims).
func (m *Model) deleteDoomed() {
	for ordinal := range m.doomed {
		if !m.lost[ordinal] && m.exists(ordinal) {
			continue
		}
		delete(m.doomed, ordinal)
		delete(m.lost, ordinal)
		m.Volumes.Delete(ordinal)
		m.DeletedVolumes[ordinal]++
		for _, n := range m.Pods {
			if n.Ordinal == ordinal && n.stuck {
				n.stuck = false
				m.Volumes.Open(n)
			}
		}
	}
}

func (m *Model) exists(ordinal int32) bool {
	return slices.ContainsFunc(m.Pods, func(n *Node) bool { return n.Ordinal == ordinal })
}
