// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// RotationPolicy decides how the outdated instances of a pool are replaced: those of another
// configuration, of a certain age, or from before a time
// (docs/reference.md#rotation).
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.maxSurge) || (type(self.maxSurge) == int ? self.maxSurge > 0 : self.maxSurge != '0%') || has(self.maxUnavailable) && (type(self.maxUnavailable) == int ? self.maxUnavailable > 0 : self.maxUnavailable != '0%')",message="maxSurge and maxUnavailable must not both be 0"
type RotationPolicy struct {
	// maxSurge is how many instances the pool may have above its replicas, as a number or as a
	// percentage of the replicas, which is rounded up. An unset field means 1.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : self.matches('^([0-9]|[1-9][0-9]|100)%$')",message="must be a number from 0 on, or a percentage from 0% to 100%"
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// maxUnavailable is how many instances fewer than the replicas may work, as a number or as a
	// percentage of the replicas, which is rounded down, and is at least 1 if maxSurge is 0. An
	// unset field means 0. With maxSurge 0 an instance is deleted before its replacement is
	// created, so that no room for another one is needed.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : self.matches('^([0-9]|[1-9][0-9]|100)%$')",message="must be a number from 0 on, or a percentage from 0% to 100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// order is Together or ShardByShard. Together, which an unset field means: the shards are
	// rotated at the same time. ShardByShard: a shard begins when those before it in spec.shards
	// have finished.
	// +optional
	Order RotationOrder `json:"order,omitempty"`
	// canary is how many instances of the first shard are replaced before all others. An unset
	// field means none.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Canary int32 `json:"canary,omitempty"`
	// bakeSeconds is for how long the Nodes of new instances must be Ready after the canary, and
	// before the next shard of ShardByShard, in seconds. 0 and an unset field mean that they must be
	// Ready.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	BakeSeconds *int32 `json:"bakeSeconds,omitempty"`
	// minReadySeconds is for how long the Node of every new instance must be Ready before more are
	// replaced, in seconds. 0 and an unset field mean that it must be Ready.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	MinReadySeconds *int32 `json:"minReadySeconds,omitempty"`
	// progressDeadlineSeconds is how long after its creation a new instance may have no Ready Node
	// before the rotation stops, in seconds. An unset field means 1800. 0 means that no Nodes are
	// looked at, for instances that are no Nodes: an instance is ready when it runs.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
	// pauseWhile are states of the pool in which no replacement is started. An unset field or an
	// empty list is no state.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=3
	PauseWhile []PoolState `json:"pauseWhile,omitempty"`
	// windows are the times at which replacements may be started. An unset field or an empty list
	// means always. What has begun when a window closes is finished.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Windows []TimeWindow `json:"windows,omitempty"`
	// paused starts no further replacement. What has begun is finished.
	// +optional
	Paused *bool `json:"paused,omitempty"`
	// after is a time. Once it has passed, all instances that were created before are outdated.
	// Removing it, or setting it to an earlier time than before, makes no further instance outdated.
	// +optional
	After *metav1.Time `json:"after,omitempty"`
	// maxAgeSeconds is the age at which an instance is outdated, in seconds. The configuration of a
	// shard may have a smaller age. An unset field means the age of the configuration.
	// +optional
	// +kubebuilder:validation:Minimum=3600
	MaxAgeSeconds int32 `json:"maxAgeSeconds,omitempty"`
}

// RotationOrder is the order in which the shards of a pool are rotated.
//
// +kubebuilder:validation:Enum=Together;ShardByShard
type RotationOrder string

// Orders of a rotation.
const (
	RotationTogether     RotationOrder = "Together"
	RotationShardByShard RotationOrder = "ShardByShard"
)

// TimeWindow is a time that comes again and again.
type TimeWindow struct {
	// schedule is when the window opens: minute, hour, day of the month, month and day of the week,
	// as in a CronJob. A time that the clocks of the time zone skip opens no window.
	// +required
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z*,/?-]+( [0-9A-Za-z*,/?-]+){4}$`
	Schedule string `json:"schedule,omitempty"`
	// durationMinutes is for how long the window is open, in minutes.
	// +required
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=10080
	DurationMinutes int32 `json:"durationMinutes,omitempty"`
	// timeZone is the time zone of the schedule, such as Europe/Berlin. An unset field means UTC.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}

// MaxTarget is the maximum length of RotationGrant.Target.
const MaxTarget = 64

// RotationGrant is how far a shard may replace outdated instances now.
type RotationGrant struct {
	// maxSurge is how many instances the shard may have above its size.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxSurge int32 `json:"maxSurge"`
	// maxUnavailable is by how many fewer instances than its size may work.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxUnavailable int32 `json:"maxUnavailable"`
	// upToDate is the number of instances that are up to date from which on no replacement is
	// started.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	UpToDate int32 `json:"upToDate"`
	// notAfter is when the last replacement may be started. An unset field means that it may be
	// started at any time.
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
	// after is a time. Once it has passed, instances that were created before are outdated.
	// +optional
	After *metav1.Time `json:"after,omitempty"`
	// maxAgeSeconds is the age at which an instance is outdated, in seconds. An unset field means
	// the age of the configuration of the shard.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxAgeSeconds int32 `json:"maxAgeSeconds,omitempty"`
	// target is what the shard compared instances with when upToDate was decided. While it compares them
	// with something else, it starts no replacement. An unset field means anything.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Target string `json:"target,omitempty"`
}
