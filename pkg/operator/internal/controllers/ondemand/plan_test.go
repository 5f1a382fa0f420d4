// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

func TestPlan(t *testing.T) {
	pod := newPod("requesting", "gpu")
	found, unknown, notYet := groupState{found: true}, groupState{complete: true}, groupState{}
	tests := map[string]struct {
		// The Cluster is there, the Pods have synced, and the group was found,
		// unless change says otherwise.
		change func(*observation)
		want   step
		reason string
	}{
		"nothing is there":            {func(*observation) {}, nothing, ""},
		"a Pod requestsMachine":       {func(o *observation) { o.pod = inCache(pod) }, createPair, ""},
		"a Pod that is being deleted": {func(o *observation) { o.pod = inCache(controllertest.Deleting(newPod("requesting", "gpu"))) }, nothing, ""},
		"a Pod has its machine": {func(o *observation) {
			o.pod, o.machine, o.nstanceMachine = inCache(pod), newMachine(pod), newNstanceMachine(pod)
		}, nothing, ""},
		"a Pod that is being deleted keeps its machine": {func(o *observation) {
			o.pod, o.machine, o.nstanceMachine = inCache(controllertest.Deleting(newPod("requesting", "gpu"))), newMachine(pod), newNstanceMachine(pod)
		}, nothing, ""},

		"a group that no shard has":     {func(o *observation) { o.pod, o.groups = inCache(pod), unknown }, nothing, reasonUnknownGroup},
		"a group that is not known yet": {func(o *observation) { o.pod, o.groups = inCache(pod), notYet }, nothing, ""},
		"an invalid group":              {func(o *observation) { o.pod = inCache(newPod("requesting", "No--Group")) }, nothing, reasonInvalidAnnotation},
		"a bad annotation that made a machine once": {func(o *observation) {
			o.pod, o.machine, o.nstanceMachine = inCache(newPod("requesting", "")), newMachine(pod), newNstanceMachine(pod)
		}, nothing, ""},
		"a name that is taken": {func(o *observation) { o.pod, o.nameTaken = inCache(pod), true }, nothing, reasonNameTaken},

		"no Cluster yet": {func(o *observation) { o.pod, o.cluster = inCache(pod), nil }, nothing, ""},
		"a Cluster that is being deleted": {func(o *observation) {
			o.pod, o.cluster = inCache(pod), controllertest.Deleting(controllertest.NewCluster())
		}, nothing, ""},
		"a paused Cluster": {func(o *observation) {
			o.pod, o.cluster = inCache(pod), controllertest.PausedCluster(controllertest.NewCluster())
		}, nothing, ""},

		"a crash between the two": {func(o *observation) { o.pod, o.nstanceMachine = inCache(pod), newNstanceMachine(pod) }, createMachine, ""},
		"a crash between the two, and no shard has the group any more": {func(o *observation) {
			o.pod, o.nstanceMachine, o.groups = inCache(pod), newNstanceMachine(pod), unknown
		}, createMachine, ""},
		"a crash between the two, and the Cluster leaves": {func(o *observation) {
			o.pod, o.nstanceMachine, o.cluster = inCache(pod), newNstanceMachine(pod), controllertest.Deleting(controllertest.NewCluster())
		}, nothing, ""},
		"the Machine was deleted, the other follows": {func(o *observation) { o.pod, o.nstanceMachine = inCache(pod), owned(newNstanceMachine(pod)) }, nothing, ""},
		"the Machine was deleted, the other is being deleted": {func(o *observation) {
			o.pod, o.nstanceMachine = inCache(pod), controllertest.Deleting(newNstanceMachine(pod))
		}, nothing, ""},
		"the Machine is being deleted": {func(o *observation) { o.pod, o.machine = inCache(pod), controllertest.Deleting(newMachine(pod)) }, nothing, ""},
		"only the Machine is left":     {func(o *observation) { o.pod, o.machine = inCache(pod), newMachine(pod) }, deleteStrayMachine, ""},

		"the Pod was deleted":                            {func(o *observation) { o.machine, o.nstanceMachine = newMachine(pod), newNstanceMachine(pod) }, deletePair, ""},
		"the Pod was deleted before there was a Machine": {func(o *observation) { o.nstanceMachine = newNstanceMachine(pod) }, deletePair, ""},
		"the Pod was deleted, and the NstanceMachine":    {func(o *observation) { o.machine = newMachine(pod) }, deletePair, ""},
		"the Pod was deleted, and there is no Cluster":   {func(o *observation) { o.machine, o.cluster = newMachine(pod), nil }, deletePair, ""},
		"the Pod was deleted, its Machine is being deleted": {func(o *observation) {
			o.machine, o.nstanceMachine = controllertest.Deleting(newMachine(pod)), newNstanceMachine(pod)
		}, nothing, ""},
		"the Pod was deleted, its NstanceMachine is being deleted": {func(o *observation) { o.nstanceMachine = controllertest.Deleting(newNstanceMachine(pod)) }, nothing, ""},
		"the Pod was deleted, only its Machine is not beingDeleted": {func(o *observation) {
			o.machine, o.nstanceMachine = newMachine(pod), controllertest.Deleting(newNstanceMachine(pod))
		}, deletePair, ""},
		"not all Pods are known": {func(o *observation) {
			o.machine, o.nstanceMachine, o.podsSynced = newMachine(pod), newNstanceMachine(pod), false
		}, nothing, ""},
		"the Pod was deleted, the Cluster is paused": {func(o *observation) {
			o.machine, o.nstanceMachine, o.cluster = newMachine(pod), newNstanceMachine(pod), controllertest.PausedCluster(controllertest.NewCluster())
		}, nothing, ""},
		"the Pod was deleted, its Machine is paused": {func(o *observation) {
			o.machine, o.nstanceMachine = controllertest.Paused(newMachine(pod)), newNstanceMachine(pod)
		}, nothing, ""},
		"the Pod was deleted, its NstanceMachine is paused": {func(o *observation) { o.nstanceMachine = controllertest.Paused(newNstanceMachine(pod)) }, nothing, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			seen := observation{uid: pod.UID, podsSynced: true, cluster: controllertest.NewCluster(), groups: found}
			test.change(&seen)
			got := plan(seen)
			reason := ""
			if got.rejection != nil {
				reason = got.rejection.reason
			}
			if got.step != test.want || reason != test.reason {
				t.Errorf("decided for step %d, rejection %v", got.step, got.rejection)
			}
			if got.step == createPair && got.request.group != "gpu" {
				t.Errorf("orders %+v", got.request)
			}
		})
	}
}

func TestRequestOfAPod(t *testing.T) {
	group, kind := v1beta1.AnnotationOnDemandGroup, v1beta1.AnnotationOnDemandInstanceType
	tests := map[string]struct {
		annotations map[string]string
		want        request
		rejection   string
	}{
		"a group":                 {map[string]string{group: "gpu"}, request{group: "gpu"}, ""},
		"a group and a type":      {map[string]string{group: "gpu", kind: "g5.xlarge"}, request{"gpu", "g5.xlarge"}, ""},
		"the longest type":        {map[string]string{group: "gpu", kind: strings.Repeat("ä", 128)}, request{"gpu", strings.Repeat("ä", 128)}, ""},
		"an empty group":          {map[string]string{group: ""}, request{}, "annotation on-demand.nstance.dev/group must be the id of a group: lower case letters, digits and single hyphens, at most 32 characters; it is \"\""},
		"a group that is none":    {map[string]string{group: "a--b"}, request{}, "annotation on-demand.nstance.dev/group must be the id of a group: lower case letters, digits and single hyphens, at most 32 characters; it is \"a--b\""},
		"an empty type":           {map[string]string{group: "gpu", kind: ""}, request{}, "annotation on-demand.nstance.dev/instance-type must be an instance type: 1 to 128 characters; it is \"\""},
		"a type that is too long": {map[string]string{group: "gpu", kind: strings.Repeat("x", 129)}, request{}, "annotation on-demand.nstance.dev/instance-type must be an instance type: 1 to 128 characters; it is \"" + strings.Repeat("x", 129) + "\""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.Annotations = test.annotations
			got, invalid := requestOf(inCache(pod))
			message := ""
			if invalid != nil {
				message = invalid.message
			}
			if got != test.want || message != test.rejection {
				t.Errorf("got %+v, %s", got, message)
			}
		})
	}
}

func TestAnObjectWithTheNameAndWithoutTheLabelIsForeign(t *testing.T) {
	pod := newPod("requesting", "gpu")
	if foreign(pod.UID, newMachine(pod)) || foreign[clusterv1.Machine](pod.UID, nil) {
		t.Error("the Pod's own machine, or none, is foreign")
	}
	if !foreign(pod.UID, &clusterv1.Machine{}) || !foreign(pod.UID, newMachine(newPod("another", "gpu"))) {
		t.Error("another machine is not foreign")
	}
}
