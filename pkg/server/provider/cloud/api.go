// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package cloud has what all providers of remote machines share. Such a provider
// implements API, the calls to its cloud, without state or goroutines. Provider decides
// which calls to make and when, and how far a response can be trusted
// (docs/providers.md#remote-machines).
package cloud

import (
	"context"
	"errors"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// API are the calls to a cloud, for the machines of one shard. A call blocks until it
// has its response.
type API interface {
	// Launch creates the machine of a request. It returns when the machine certainly
	// exists, whether or not it runs. Requests with the same token and the same content
	// give the same machine. The error wraps ErrTokenUsed if the token was used with
	// other content, and is a *Rejection if the request has certainly created nothing.
	// It wraps ErrInProgress if the launch has begun and takes longer than a call may: the
	// next call with the same token continues it. After any other error the machine may
	// exist.
	Launch(ctx context.Context, r Request) (VM, error)
	// Terminate deletes machines. That a machine is being deleted is no error. It returns
	// an error by instance id for each machine that is not being deleted. The error wraps
	// ErrNotFound if the cloud does not know the machine, ErrRefused if it has refused the
	// call because of this machine, and ErrRefusedTogether if others of the call may be the
	// reason.
	Terminate(ctx context.Context, machines []VM) map[string]error
	// List returns all machines, or an error: never a part of them.
	List(ctx context.Context) ([]VM, error)
	// Find reads the machine of one instance, as consistently as the cloud can. It
	// returns false only if the cloud has responded that there is no such machine.
	Find(ctx context.Context, id string) (VM, bool, error)
	// Room returns how many more machines a subnet has room for.
	Room(ctx context.Context, subnet string) (int, error)
	// Limits returns how the cloud may be called. They never change.
	Limits() Limits
}

// KnownFinder is implemented by an API that can read a machine by its provider id.
type KnownFinder interface {
	// FindKnown does what Find does for a machine that was listed before. What the cloud
	// does not report of it is as it was.
	FindKnown(ctx context.Context, known VM) (VM, bool, error)
}

// Request is a request to launch one machine.
type Request struct {
	provider.Spec
	// Token identifies the request at the cloud. It has at most 64 characters.
	Token string
}

// VM is one machine as its cloud reports it.
type VM struct {
	// ID is the instance id, which the cloud stores as metadata of the machine.
	ID         string
	ProviderID string
	Group      instance.GroupKey
	Origin     instance.Origin
	// Type is the name of the instance type.
	Type string
	// State is never Missing.
	State instance.State
	// Reason is why the machine is impaired, stopped or failed, in words for people.
	Reason string
	// Addresses are those of the machine, the one to prefer first.
	Addresses []netip.Addr
}

// Limits are how a cloud may be called.
type Limits struct {
	// Reads limits the calls of List, Find and Room, Writes those of Launch and Terminate.
	Reads, Writes Budget
	// Launches is how many calls of Launch may run at a time.
	Launches int
	// Batch is how many machines one call of Terminate may have.
	Batch int
	// VisibilityDelay is how long List and Find may take to show a machine that was
	// launched, and Terminate to know it. Zero means no time.
	VisibilityDelay time.Duration
	// EmptyDelay is how long lists prove nothing that show none of the machines that were
	// known: they may be of other credentials. Zero means no time.
	EmptyDelay time.Duration
	// PollInterval is the time between two calls of List while something is in progress,
	// and IdleInterval while nothing is.
	PollInterval, IdleInterval time.Duration
}

// Budget limits the rate of calls.
type Budget struct {
	PerSecond float64
	// Burst is how many calls may be made at once after a pause.
	Burst int
}

var (
	// ErrTokenUsed means that a token was used for a request with other content.
	ErrTokenUsed = errors.New("the token was used for another request")
	// ErrThrottled means that the cloud rejected a call because there were too many. The
	// call has changed nothing. It is repeated and not reported as a failure.
	ErrThrottled = errors.New("the cloud throttles calls")
	// ErrNotFound means that the cloud does not know a machine that it shall terminate. The
	// machine may only be invisible, so lists and Find decide whether it exists. It is not
	// reported as a failure.
	ErrNotFound = errors.New("the machine was not found")
	// ErrRefused means that the cloud has refused to terminate a machine, and that the same
	// call will fail until a user changes something there.
	ErrRefused = errors.New("the cloud refused the call")
	// ErrRefusedTogether means that the cloud has refused to terminate several machines, and
	// has terminated none, maybe because of others than this one. Calls for a part of them
	// follow.
	ErrRefusedTogether = errors.New("the cloud refused the call for several machines")
	// ErrInProgress means that a launch has begun and takes longer than one call. It is
	// continued by another call, maybe with other userdata, and not reported as a failure.
	ErrInProgress = errors.New("the launch is in progress")
)

// podsPerNode is the limit that a kubelet has without configuration.
const podsPerNode = 110

// LinuxNode returns the Node of a machine that runs Linux and has as much of the processors
// and the memory of its type.
func LinuxNode(shard provider.Shard, t provider.InstanceType, cpu, memory resource.Quantity) *corev1.Node {
	size := corev1.ResourceList{
		corev1.ResourceCPU:    cpu,
		corev1.ResourceMemory: memory,
		corev1.ResourcePods:   *resource.NewQuantity(podsPerNode, resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
			corev1.LabelArchStable:         t.Arch,
			corev1.LabelOSStable:           "linux",
			corev1.LabelInstanceTypeStable: t.Name,
			corev1.LabelTopologyRegion:     shard.Region,
			corev1.LabelTopologyZone:       shard.Zone,
		}},
		Status: corev1.NodeStatus{
			Capacity:    size,
			Allocatable: size,
			NodeInfo:    corev1.NodeSystemInfo{Architecture: t.Arch, OperatingSystem: "linux"},
		},
	}
}
