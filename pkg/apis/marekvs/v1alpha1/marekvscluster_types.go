// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MarekvsCluster is one cluster of the replicated key-value store marekvs. The operator
// creates its Services, its disruption budget and its StatefulSet, and removes nodes one
// at a time, only while every copy of the data exists.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.nodes,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:path=marekvsclusters,scope=Namespaced,shortName=mkv,categories=marekvs
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desiredNodes`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyNodes`
// +kubebuilder:printcolumn:name="Underrep",type=integer,JSONPath=`.status.underreplicatedPartitions`
// +kubebuilder:printcolumn:name="Ops/s",type=string,JSONPath=`.status.opsPerSecond`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52",message="metadata.name must have at most 52 characters, because the names of Pods and their labels are made from it"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must begin with a letter and contain only lower case letters, digits and hyphens, because it is the name of a Service"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.storage) || !has(self.spec.storage.size) || !has(oldSelf.spec.storage) || !has(oldSelf.spec.storage.size) || quantity(string(self.spec.storage.size)).compareTo(quantity(string(oldSelf.spec.storage.size))) >= 0 || has(self.status) && has(self.status.storageReducibleTo) && quantity(string(self.spec.storage.size)).compareTo(quantity(string(self.status.storageReducibleTo))) >= 0",message="size cannot be reduced, because volumes do not shrink, but to status.storageReducibleTo while volumes still grow; a larger size is allowed, and another notation of the same quantity, such as 10240Mi instead of 10Gi",fieldPath=".spec.storage.size"
type MarekvsCluster struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata of the object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the wanted cluster.
	// +required
	Spec MarekvsClusterSpec `json:"spec,omitzero"`
	// status is the observed state of the cluster.
	// +optional
	Status MarekvsClusterStatus `json:"status,omitempty,omitzero"`
}

// MarekvsClusterSpec is the wanted cluster.
//
// +kubebuilder:validation:XValidation:rule="!has(self.autoscale) || self.autoscale.maxNodes > self.replicationFactor",message="autoscale.maxNodes must be more than replicationFactor"
// +kubebuilder:validation:XValidation:rule="!has(self.secretEnv) || !has(self.extraEnv) || self.secretEnv.all(variable, !(variable.name in self.extraEnv))",message="a variable must not be in both extraEnv and secretEnv",fieldPath=".secretEnv"
// +kubebuilder:validation:XValidation:rule="!has(self.autoscale) || !has(oldSelf.autoscale) || self.nodes == oldSelf.nodes",message="nodes cannot be changed while autoscale is set, which determines the number of nodes",fieldPath=".nodes"
type MarekvsClusterSpec struct {
	// image is the container image of the nodes.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^\S+$`
	Image string `json:"image,omitempty"`
	// nodes is the number of nodes. With autoscale it is only the initial number. A
	// cluster never has fewer nodes than replicationFactor + 1.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Nodes int32 `json:"nodes,omitempty"`
	// replicationFactor is the number of copies of each partition. With 1, no node is ever
	// removed: nothing else has its data.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	ReplicationFactor int32 `json:"replicationFactor,omitempty"`
	// storage is the volume of each node.
	// +optional
	// +kubebuilder:default={}
	Storage Storage `json:"storage,omitempty,omitzero"`
	// resources are the processor time and the memory of each node.
	// +optional
	Resources Resources `json:"resources,omitempty,omitzero"`
	// autoscale determines the number of nodes by load. If it is not set, the number is
	// nodes.
	// +optional
	Autoscale *Autoscale `json:"autoscale,omitempty"`
	// reclaimPvcs is true if the volume claims of removed nodes are to be deleted,
	// reclaimAfterSeconds after the last removal and only while every copy exists. By default
	// they are kept. With replicationFactor 1 they are never deleted.
	// +optional
	ReclaimPvcs bool `json:"reclaimPvcs,omitempty"`
	// reclaimAfterSeconds is how long the volume claims of removed nodes are kept after the last
	// removal of a node, if reclaimPvcs is true. An unset field means 86400, a day. The metrics of
	// the nodes do not prove that every copy is complete: this is the time to notice lost data
	// and to bring a node back.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	ReclaimAfterSeconds int32 `json:"reclaimAfterSeconds,omitempty"`
	// progressDeadlineSeconds is how long an updated Pod may take to become ready, and how long an
	// update or a removal may wait for its next step before the phase is Blocked. An unset field
	// means 600.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds,omitempty"`
	// paused is true if the operator is to change nothing: no object is written, and no node is
	// added, removed, updated or replaced. The status is still published, with condition Paused.
	// The StatefulSet controller still replaces Pods that are deleted.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// envFrom are Secrets and ConfigMaps whose entries are environment variables of the container.
	// A variable of the operator or of extraEnv overrides an entry of the same name, and the
	// operator sets all variables that extraEnv must not have. It does not read the entries: a
	// change updates no Pod.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	EnvFrom []EnvFromSource `json:"envFrom,omitempty"`
	// extraEnv are more environment variables of the container. The variables that the
	// operator sets cannot be overridden, nor the identity, the addresses and the rounds of
	// the nodes, which it relies on. A value has at most 32768 characters.
	// +optional
	// +kubebuilder:validation:MaxProperties=128
	// +kubebuilder:validation:XValidation:rule="self.all(name, name.matches('^[-._a-zA-Z][-._a-zA-Z0-9]*$'))",message="the name of a variable must consist of letters, digits, '-', '_' and '.', and must not begin with a digit"
	// +kubebuilder:validation:XValidation:rule="self.all(name, self[name].size() <= 32768)",message="the value of a variable must have at most 32768 characters"
	// +kubebuilder:validation:XValidation:rule="!('MAREKVS_SEEDS' in self || 'MAREKVS_ADVERTISE_IP' in self || 'MAREKVS_REPLICAS_N' in self || 'MAREKVS_DATA_DIR' in self || 'MAREKVS_METRICS_ADDR' in self)",message="MAREKVS_SEEDS, MAREKVS_ADVERTISE_IP, MAREKVS_REPLICAS_N, MAREKVS_DATA_DIR and MAREKVS_METRICS_ADDR are determined by the operator"
	// +kubebuilder:validation:XValidation:rule="!('MAREKVS_CLUSTER' in self || 'MAREKVS_NODE_ID' in self || 'HOSTNAME' in self || 'MAREKVS_RESP_ADDR' in self || 'MAREKVS_MESH_ADDR' in self || 'MAREKVS_GOSSIP_ADDR' in self || 'MAREKVS_AE_PARTITIONS_PER_ROUND' in self)",message="MAREKVS_CLUSTER, MAREKVS_NODE_ID, HOSTNAME, MAREKVS_RESP_ADDR, MAREKVS_MESH_ADDR, MAREKVS_GOSSIP_ADDR and MAREKVS_AE_PARTITIONS_PER_ROUND are not allowed: the identity of the nodes, their ports and their rounds of repair would not be those that the operator relies on"
	ExtraEnv map[string]string `json:"extraEnv,omitempty"`
	// secretEnv are more environment variables of the container, whose values are entries of
	// Secrets. The Secrets and the entries must exist. The operator does not read them: a change of
	// an entry updates no Pod.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	SecretEnv []SecretVariable `json:"secretEnv,omitempty"`
	// imagePullSecrets are the Secrets with which the image is pulled.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ImagePullSecrets []LocalReference `json:"imagePullSecrets,omitempty"`
	// podLabels are more labels of the Pods. The labels of the operator and of the StatefulSet
	// controller are not allowed. A change updates the Pods.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="!self.exists(name, name in ['app', 'app.kubernetes.io/name', 'app.kubernetes.io/instance', 'app.kubernetes.io/managed-by', 'statefulset.kubernetes.io/pod-name', 'apps.kubernetes.io/pod-index', 'controller-revision-hash'])",message="app, app.kubernetes.io/name, app.kubernetes.io/instance, app.kubernetes.io/managed-by, statefulset.kubernetes.io/pod-name, apps.kubernetes.io/pod-index and controller-revision-hash are determined by the operator and the StatefulSet controller"
	PodLabels map[string]string `json:"podLabels,omitempty"`
	// restartedAt is when the Pods were last to be restarted. Another time restarts them, one at a
	// time as in any update.
	// +optional
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
	// podAnnotations are annotations of the Pods. A change updates the Pods.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	PodAnnotations map[string]string `json:"podAnnotations,omitempty"`
	// priorityClassName is the PriorityClass of the Pods. An unset field means the default of the
	// Kubernetes cluster.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// nodeSelector are the labels of Kubernetes Nodes that the Pods may run on.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// tolerations are the tolerations of the Pods.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []Toleration `json:"tolerations,omitempty"`
	// affinity restricts the Kubernetes Nodes that the Pods may run on, or prefers some. A change
	// updates the Pods.
	// +optional
	Affinity Affinity `json:"affinity,omitempty,omitzero"`
	// spread is how the Pods are spread.
	// +optional
	Spread Spread `json:"spread,omitempty,omitzero"`
}

// Storage is the volume of a node.
//
// +kubebuilder:validation:XValidation:rule="has(self.className) == has(oldSelf.className) && (!has(self.className) || self.className == oldSelf.className)",message="className is immutable, because the volume claims of a StatefulSet are",fieldPath=".className"
type Storage struct {
	// size is the requested size. If it is raised, the volume claims of the nodes grow, as far as
	// their StorageClass allows the expansion of volumes; condition VolumesExpanded shows it. It
	// can be reduced only while a volume has not grown to it, and not below
	// status.storageReducibleTo, because volumes do not shrink.
	// +optional
	// +kubebuilder:default="10Gi"
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 : quantity(self).isGreaterThan(quantity('0'))",message="must be more than 0"
	Size *resource.Quantity `json:"size,omitempty"`
	// className is the StorageClass. An unset field means the default of the Kubernetes
	// cluster. It is immutable.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	ClassName string `json:"className,omitempty"`
	// replaceLostAfterSeconds is how long a volume must have been lost before its claim and its Pod are
	// deleted, so that the node begins with an empty volume. A volume is lost when it no longer exists,
	// or when only Kubernetes Nodes that no longer exist can use it. The other nodes must then have
	// every copy, as before a removal. An unset field means never; the annotation marekvs.io/replace of
	// a claim, with the value true, asks for the replacement of any node at once.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	ReplaceLostAfterSeconds int32 `json:"replaceLostAfterSeconds,omitempty"`
}

// Resources are the processor time and the memory of a node.
type Resources struct {
	// cpu is the requested processor time. There is no limit of it. An unset field means
	// 500m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 : quantity(self).isGreaterThan(quantity('0'))",message="must be more than 0"
	CPU *resource.Quantity `json:"cpu,omitempty"`
	// memory is the requested memory, and the limit. An unset field means 1Gi.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 : quantity(self).isGreaterThan(quantity('0'))",message="must be more than 0"
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// Autoscale determines the number of nodes by load.
//
// +kubebuilder:validation:XValidation:rule="self.minNodes <= self.maxNodes",message="minNodes must not be more than maxNodes"
type Autoscale struct {
	// minNodes is the least number of nodes. It is raised to replicationFactor + 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MinNodes int32 `json:"minNodes,omitempty"`
	// maxNodes is the largest number of nodes.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxNodes int32 `json:"maxNodes,omitempty"`
	// targetOpsPerNode is how many commands a node is to execute per second.
	// +required
	// +kubebuilder:validation:Minimum=1
	TargetOpsPerNode int64 `json:"targetOpsPerNode,omitempty"`
	// targetDiskPercent is the used share of a volume above which a node is added, and
	// that a removal must not exceed. If it is not set, nodes are not added because of
	// their volumes, and a removal must not exceed 80.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=95
	TargetDiskPercent int32 `json:"targetDiskPercent,omitempty"`
	// scaleDownStabilizationSeconds is how long the load must be low, and the number of
	// nodes unchanged, before a node is removed. An unset field means 300.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	ScaleDownStabilizationSeconds *int32 `json:"scaleDownStabilizationSeconds,omitempty"`
	// scaleUpCooldownSeconds is how long the number of nodes must be unchanged before nodes
	// are added. An unset field means 60.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	ScaleUpCooldownSeconds *int32 `json:"scaleUpCooldownSeconds,omitempty"`
}

// TolerationOperator is the operator of a toleration. It is not an enumeration, because newer
// versions of Kubernetes have more operators
// (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/).
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z]*$`
type TolerationOperator string

// Toleration is a toleration of the Pods.
type Toleration struct {
	// key is the key of the taint; empty with operator Exists for every taint.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`
	// operator compares the values. An unset field means Equal. Operators that only newer
	// versions of Kubernetes have, such as Lt and Gt, are passed on. If Kubernetes rejects
	// an operator, the condition Reconciled has its message.
	// +optional
	Operator TolerationOperator `json:"operator,omitempty"`
	// value is the value of the taint.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`
	// effect is the effect of the taint. An unset field means every effect.
	// +optional
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect,omitempty"`
	// tolerationSeconds is how long a taint with effect NoExecute is tolerated. An unset
	// field means forever.
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// Spread is how the Pods are spread.
//
// +kubebuilder:validation:MinProperties=1
type Spread struct {
	// hostname is how the Pods are spread over Kubernetes Nodes.
	// +optional
	Hostname HostnameSpread `json:"hostname,omitempty,omitzero"`
}

// HostnameSpread is how the Pods are spread over Kubernetes Nodes.
//
// +kubebuilder:validation:MinProperties=1
type HostnameSpread struct {
	// whenUnsatisfiable decides about a Pod that cannot be spread evenly. An unset field
	// means ScheduleAnyway, counting all Nodes. If it is set, Nodes with taints that the
	// Pods do not tolerate are left out.
	// +optional
	// +kubebuilder:validation:Enum=ScheduleAnyway;DoNotSchedule
	WhenUnsatisfiable corev1.UnsatisfiableConstraintAction `json:"whenUnsatisfiable,omitempty"`
}

// MaxMessage is the longest message of a status, in characters. The API server rejects the whole
// status if it is exceeded.
const MaxMessage = 32768

// MarekvsClusterStatus is the observed state of the cluster.
//
// +kubebuilder:validation:MinProperties=1
type MarekvsClusterStatus struct {
	// conditions are the current conditions: Ready, Available, Progressing, ScaleDownBlocked,
	// MetricsAvailable, RolledOut, VolumesExpanded, VolumesAvailable, Owned, Reconciled, DiskPressure,
	// SurvivesZoneLoss, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation that the status was computed from.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase summarizes the conditions.
	// +optional
	// +kubebuilder:validation:Enum=Reconciling;Healthy;ScalingUp;ScalingDown;Blocked
	Phase Phase `json:"phase,omitempty"`
	// message explains the phase.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32768
	Message string `json:"message,omitempty"`
	// replicas is the present number of nodes of the StatefulSet.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// selector selects the Pods, for the scale subresource.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Selector string `json:"selector,omitempty"`
	// desiredNodes is the number of nodes that the cluster is brought to.
	// +optional
	DesiredNodes *int32 `json:"desiredNodes,omitempty"`
	// readyNodes is the number of Pods that are ready and not being deleted.
	// +optional
	ReadyNodes *int32 `json:"readyNodes,omitempty"`
	// underreplicatedPartitions is the largest number of partitions with too few owners
	// that a node reports. It is not set without a report of every node.
	// +optional
	UnderreplicatedPartitions *int64 `json:"underreplicatedPartitions,omitempty"`
	// storageReducibleTo is the size to which spec.storage.size can be reduced while volumes have not
	// grown to it: the size of the largest of these volumes, 0 if no node has a volume yet. It is not
	// set while every volume has the size.
	// +optional
	StorageReducibleTo *resource.Quantity `json:"storageReducibleTo,omitempty"`
	// opsPerSecond is the rate of commands of all nodes. It is not set without a rate of
	// every node, and changes only with a rate that differs by more than 5 %.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=320
	OpsPerSecond string `json:"opsPerSecond,omitempty"`
	// lastScaleUpTime is when nodes were last added, their creation excluded.
	// +optional
	LastScaleUpTime *metav1.Time `json:"lastScaleUpTime,omitempty"`
	// lastScaleDownTime is when a node was last removed.
	// +optional
	LastScaleDownTime *metav1.Time `json:"lastScaleDownTime,omitempty"`
}

// MarekvsClusterList is a list of MarekvsClusters.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type MarekvsClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []MarekvsCluster `json:"items"`
}
