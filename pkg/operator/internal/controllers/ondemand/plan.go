// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"fmt"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// observation is the state of a Pod and its machine in the caches.
type observation struct {
	uid types.UID
	// pod is nil if no Pod requests the machine, or if podsSynced is false.
	pod        *metav1.PartialObjectMetadata
	podsSynced bool
	// refused is why the Pod may not request a machine, nil if it may.
	refused *rejection
	// machine and nstanceMachine are the pair of the Pod, nil if they do not exist.
	machine        *clusterv1.Machine
	nstanceMachine *v1beta1.NstanceMachine
	// nameTaken: another object has the name of the Machine or of the NstanceMachine.
	nameTaken bool
	// cluster is the Cluster of the Machines, nil if it does not exist.
	cluster *clusterv1.Cluster
	// groups is the state of the group that the Pod names.
	groups groupState
}

// groupState is the state of a group on all shards.
type groupState struct {
	// found: a shard has the group. complete: the groups of all shards are known.
	found, complete bool
}

// step is the action of a sync.
type step int

const (
	// nothing: the Pod has its machine, or waits for something.
	nothing step = iota
	// createPair: neither the Machine nor the NstanceMachine exists.
	createPair
	// createMachine: the NstanceMachine exists and waits for its Machine.
	createMachine
	// deletePair: the cache does not have the Pod.
	deletePair
	// deleteStrayMachine: the cache does not have the NstanceMachine of the Machine.
	deleteStrayMachine
)

// decision is a step, or the reason for which the Pod gets no machine.
type decision struct {
	step      step
	request   request
	rejection *rejection
}

// plan decides on the machine of a Pod.
func plan(observed observation) decision {
	switch {
	case pausedBy(observed) != "":
		return decision{}
	case observed.pod == nil:
		return planWithoutPod(observed)
	case beingDeleted(observed.machine), beingDeleted(observed.nstanceMachine):
		return decision{}
	case observed.machine != nil && observed.nstanceMachine != nil:
		return decision{rejection: machineProblem(observed.nstanceMachine)}
	case observed.machine != nil:
		return decision{step: deleteStrayMachine}
	case beingDeleted(observed.pod), observed.cluster == nil, beingDeleted(observed.cluster):
		return decision{}
	case observed.nameTaken:
		return decision{rejection: nameTaken(observed.uid)}
	case observed.nstanceMachine != nil:
		// An NstanceMachine that had a Machine is deleted after it. A new Machine would
		// remain.
		if metav1.GetControllerOfNoCopy(observed.nstanceMachine) != nil {
			return decision{}
		}
		return decision{step: createMachine}
	default:
		return planNew(observed)
	}
}

// planWithoutPod decides about a pair whose Pod is not in the cache. It deletes the Machine
// first, so that Cluster API drains its Node.
func planWithoutPod(observed observation) decision {
	deleted := observed.machine == nil && observed.nstanceMachine == nil
	if deleted || !observed.podsSynced || beingDeleted(observed.machine) || observed.machine == nil && beingDeleted(observed.nstanceMachine) {
		return decision{}
	}
	return decision{step: deletePair}
}

// planNew decides whether a Pod gets a machine.
func planNew(observed observation) decision {
	wanted, invalid := requestOf(observed.pod)
	switch {
	case invalid != nil:
		return decision{rejection: invalid}
	case observed.refused != nil:
		return decision{rejection: observed.refused}
	case observed.groups.found:
		return decision{step: createPair, request: wanted}
	case observed.groups.complete:
		return decision{rejection: unknownGroup(wanted.group)}
	default:
		return decision{}
	}
}

// foreign reports whether an object has the name of a Pod's machine but belongs to another
// client.
func foreign[T any, O object[T]](uid types.UID, object O) bool {
	return object != nil && object.GetLabels()[v1beta1.LabelPodUID] != string(uid)
}

// beingDeleted reports whether an object exists and is being deleted.
func beingDeleted[T any, O object[T]](object O) bool {
	return object != nil && !object.GetDeletionTimestamp().IsZero()
}

// object is a pointer to a Kubernetes object; it may be nil.
type object[T any] interface {
	*T
	metav1.Object
}

func pausedBy(observed observation) string {
	var pair []metav1.Object
	if observed.machine != nil {
		pair = append(pair, observed.machine)
	}
	if observed.nstanceMachine != nil {
		pair = append(pair, observed.nstanceMachine)
	}
	return controllers.PausedBy(observed.cluster, pair...)
}

// maxInstanceType is the maximum length of an instance type in the CRD of NstanceMachines, in
// characters.
const maxInstanceType = 128

// MaxDrainTimeout is the maximum of a drain timeout.
const MaxDrainTimeout = 365 * 24 * time.Hour

// request is the machine that a Pod requests.
type request struct {
	group, instanceType string
}

// requestOf parses the annotations of a Pod. Messages contain the rule before the value,
// because events cut off a long value.
func requestOf(pod *metav1.PartialObjectMetadata) (request, *rejection) {
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil && excluded(controller) {
		return request{}, invalidController(controller)
	}
	group := pod.Annotations[v1beta1.AnnotationOnDemandGroup]
	if err := identifier.Validate(group); err != nil {
		return request{}, invalidAnnotation(v1beta1.AnnotationOnDemandGroup,
			"the id of a group: lower case letters, digits and single hyphens, at most 32 characters", group)
	}
	instanceType, given := pod.Annotations[v1beta1.AnnotationOnDemandInstanceType]
	if given && (instanceType == "" || utf8.RuneCountInString(instanceType) > maxInstanceType || len(instanceType) > maxValue) {
		return request{}, invalidAnnotation(v1beta1.AnnotationOnDemandInstanceType,
			fmt.Sprintf("an instance type: 1 to %d characters", maxInstanceType), instanceType)
	}
	if _, _, invalid := annotatedDrainTimeout(pod); invalid != nil {
		return request{}, invalid
	}
	return request{group, instanceType}, nil
}

// annotatedDrainTimeout parses the annotation with a Pod's own drain timeout.
func annotatedDrainTimeout(pod *metav1.PartialObjectMetadata) (timeout time.Duration, given bool, invalid *rejection) {
	value, given := pod.Annotations[v1beta1.AnnotationOnDemandDrainTimeout]
	if !given {
		return 0, false, nil
	}
	timeout, err := time.ParseDuration(value)
	if err != nil || timeout < 0 || timeout > MaxDrainTimeout || len(value) > maxValue {
		return 0, false, invalidAnnotation(v1beta1.AnnotationOnDemandDrainTimeout,
			fmt.Sprintf("a duration, such as 90s or 1h30m, of 0s to %s", MaxDrainTimeout), value)
	}
	return timeout, true, nil
}

// Kinds of controllers whose Pods get no machine.
const (
	kindDaemonSet = "DaemonSet"
	kindNode      = "Node"
)

// excluded reports whether the Pods of a controller get no machine. A DaemonSet, of whichever
// API group, creates a Pod for each Node: a machine for it would get another Pod, and so on
// without end. A static Pod runs on the Node that controls it
// (https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/).
func excluded(controller *metav1.OwnerReference) bool {
	return controller.Kind == kindDaemonSet || controller.Kind == kindNode
}

func invalidController(controller *metav1.OwnerReference) *rejection {
	message := fmt.Sprintf("a Pod of DaemonSet %q gets no machine, because each new machine would get another Pod", controller.Name)
	if controller.Kind == kindNode {
		message = fmt.Sprintf("a static Pod of Node %q gets no machine, because it runs on that Node", controller.Name)
	}
	return &rejection{reason: reasonInvalidAnnotation, subject: controller.Kind + "/" + controller.Name,
		message: fmt.Sprintf("annotation %s: %s", v1beta1.AnnotationOnDemandGroup, message)}
}

func alreadyBound() *rejection {
	return &rejection{reason: reasonAlreadyBound, message: "the Pod is bound to a Node already, and gets no other machine"}
}

func invalidAnnotation(name, allowed, value string) *rejection {
	return &rejection{reason: reasonInvalidAnnotation, subject: name + "=" + value,
		message: fmt.Sprintf("annotation %s must be %s; it is %q", name, allowed, value)}
}

// unknownGroup does not list the groups that exist: whoever may create a Pod reads the event.
func unknownGroup(group string) *rejection {
	return &rejection{reason: reasonUnknownGroup, subject: group,
		message: fmt.Sprintf("annotation %s: no shard has a group %q", v1beta1.AnnotationOnDemandGroup, group)}
}

func limitReached(of slot, limit int) *rejection {
	return &rejection{reason: reasonLimit, subject: of.String(),
		message: fmt.Sprintf("the Pods of namespace %q have as many on-demand machines of group %q as the limit allows: %d", of.namespace, of.group, limit)}
}

// machineProblems are the reasons of Ready=False of an NstanceMachine that become events of
// its Pod.
var machineProblems = []string{v1beta1.ReasonProviderError, v1beta1.ReasonInstanceRefused, v1beta1.ReasonOutOfCapacity, v1beta1.ReasonNoShard}

// machineProblem returns why a created machine does not run, nil if the Pod need not report
// it.
func machineProblem(nstanceMachine *v1beta1.NstanceMachine) *rejection {
	ready := meta.FindStatusCondition(nstanceMachine.Status.Conditions, v1beta1.ConditionReady)
	if ready == nil || ready.Status != metav1.ConditionFalse || !slices.Contains(machineProblems, ready.Reason) {
		return nil
	}
	return &rejection{reason: ready.Reason, subject: nstanceMachine.Name,
		message: fmt.Sprintf("machine %s: %s", nstanceMachine.Name, ready.Message)}
}

func nameTaken(uid types.UID) *rejection {
	return &rejection{reason: reasonNameTaken, subject: machineName(uid),
		message: fmt.Sprintf("a Machine or NstanceMachine %q exists already, and is not the machine of this Pod", machineName(uid))}
}

// bySlot indexes NstanceMachines by slot.
const bySlot = "slot"

// slot is the scope of the limit: the Pods of one namespace that name one group.
type slot struct{ namespace, group string }

func (s slot) String() string { return s.namespace + "/" + s.group }

// slotOf returns the slot of an NstanceMachine, zero if the NstanceMachine does not belong to
// a Pod.
func slotOf(machine *v1beta1.NstanceMachine) slot {
	if _, ok := machine.Labels[v1beta1.LabelPodUID]; !ok {
		return slot{}
	}
	return slot{machine.Annotations[v1beta1.AnnotationPodNamespace], string(machine.Spec.GroupRef.Name)}
}

var slotIndexers = cache.Indexers{bySlot: func(obj any) ([]string, error) {
	if machine, ok := obj.(*v1beta1.NstanceMachine); ok {
		if slot := slotOf(machine); slot.group != "" {
			return []string{slot.String()}, nil
		}
	}
	return nil, nil
}}

// limiter limits the NstanceMachines per slot. It counts NstanceMachines in the cache, and
// claims of NstanceMachines that are not in the cache yet.
type limiter struct {
	limit int
	index cache.Indexer

	mu      sync.Mutex
	claimed map[types.UID]slot
}

func newLimiter(limit int, index cache.Indexer) *limiter {
	return &limiter{limit: limit, index: index, claimed: make(map[types.UID]slot)}
}

// claim reports whether the machine of a Pod may be created, and counts it from now on. A
// machine that is already counted may be created.
func (l *limiter) claim(pod types.UID, of slot) bool {
	if l.limit <= 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := map[types.UID]bool{}
	for _, machine := range controller.Indexed[v1beta1.NstanceMachine](l.index, bySlot, of.String()) {
		taken[types.UID(machine.Labels[v1beta1.LabelPodUID])] = true
	}
	for uid, slot := range l.claimed {
		if slot == of {
			taken[uid] = true
		}
	}
	if !taken[pod] && len(taken) >= l.limit {
		return false
	}
	l.claimed[pod] = of
	return true
}

// release drops a claim, because the cache has the machine or it will not be created. It
// returns the slot of the claim, and whether there was a claim.
func (l *limiter) release(pod types.UID) (slot, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of, ok := l.claimed[pod]
	delete(l.claimed, pod)
	return of, ok
}

// AllNamespaces allows the Pods of all namespaces to request machines.
const AllNamespaces = "*"

// allowed restricts which Pods may request machines: a machine costs money, and whoever may create
// a Pod could have it.
type allowed struct {
	// namespaces are the namespaces of the Pods, or AllNamespaces.
	namespaces sets.Set[string]
	// groups are the groups that they may name. An empty set is no restriction.
	groups sets.Set[string]
}

// refuse returns why a Pod may not request a machine, nil if it may.
func (a allowed) refuse(pod *metav1.PartialObjectMetadata) *rejection {
	group := pod.Annotations[v1beta1.AnnotationOnDemandGroup]
	switch {
	case !a.namespaces.HasAny(pod.Namespace, AllNamespaces):
		return &rejection{reason: reasonNotAllowed, subject: pod.Namespace,
			message: fmt.Sprintf("the Pods of namespace %q may not request machines (--on-demand-namespaces of the operator)", pod.Namespace)}
	case a.groups.Len() > 0 && !a.groups.Has(group):
		return &rejection{reason: reasonNotAllowed, subject: group,
			message: fmt.Sprintf("Pods may not request machines of group %q", group)}
	}
	return nil
}
