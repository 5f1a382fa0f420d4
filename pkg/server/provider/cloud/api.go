// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package cloud has the parts that all providers of remote VMs share. Such a provider
// implements API, the calls to its cloud, without state or goroutines. Provider decides
// which calls to make and when, and how far a response can be trusted
// (docs/providers.md#remote-machines).
package cloud

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// API calls a cloud for the VMs of one shard. A call blocks until it has its response.
type API interface {
	// Launch creates the VM of a request. It returns when the VM certainly exists, whether or
	// not it runs. Requests with the same token and the same content give the same VM. The
	// error wraps ErrTokenUsed if the token was used with other content, and is a *Rejection
	// if the request has certainly created nothing. It wraps ErrInProgress if the launch has
	// begun and takes longer than a call may: the next call with the same token continues it.
	// After any other error the VM may exist.
	Launch(ctx context.Context, r Request) (VM, error)
	// Terminate deletes VMs. It is no error if a VM is being deleted already. It returns
	// an error by instance id for each VM that is not being deleted. The error wraps
	// ErrNotFound if the cloud does not know the VM, ErrRefused if the cloud has refused the
	// call because of this VM, and ErrRefusedTogether if another VM of the call may be the
	// reason.
	Terminate(ctx context.Context, machines []VM) map[string]error
	// List returns all VMs. It never returns an incomplete list, but for VMs of which not even
	// the instance id is known: then Find returns an error for every VM that it does not find.
	List(ctx context.Context) ([]VM, error)
	// Find reads the VM of one instance, as consistently as the cloud can. It returns false
	// only if the cloud has responded that there is no such VM. A VM that has ended is returned
	// only if no other VM of the instance exists.
	Find(ctx context.Context, id string) (VM, bool, error)
	// Room returns how many more VMs a subnet has room for.
	Room(ctx context.Context, subnet string) (int, error)
	// Limits returns the limits of the calls, which never change.
	Limits() Limits
}

// KnownFinder is implemented by an API that can read a VM by its provider id.
type KnownFinder interface {
	// FindKnown does the same as Find for a VM that was listed before. Fields that the cloud
	// does not report stay as in known.
	FindKnown(ctx context.Context, known VM) (VM, bool, error)
}

// UserdataRemover is implemented by an API that can remove the userdata of a VM.
type UserdataRemover interface {
	// RemoveUserdata removes the userdata of a VM that has read it. It succeeds if there is none.
	RemoveUserdata(ctx context.Context, vm VM) error
}

// Request is a request to launch one VM.
type Request struct {
	provider.Spec
	// Token identifies the request at the cloud. It has at most 64 characters.
	Token string
}

// VM is a virtual VM, or a container, as its cloud reports it.
type VM struct {
	// ID is the instance id, which the cloud stores as metadata of the VM.
	ID         string
	ProviderID string
	Group      instance.GroupKey
	Origin     instance.Origin
	// Type is the name of the instance type.
	Type string
	// State is never Missing.
	State instance.State
	// Reason says why the VM is impaired, stopped, failed or terminating, for users.
	Reason string
	// MayReturn is true for a stopped VM that its cloud starts again without a request.
	MayReturn bool
	// Ended is true for a VM that its cloud still shows although the cloud has terminated it:
	// it has stopped or failed for good, uses nothing, and need not be terminated.
	Ended bool
	// NoCapacity is true if the VM has ended, or ends, because its cloud has no capacity for it. If it
	// has not run before, requests like its request are rejected for lack of capacity.
	NoCapacity bool
	// Unidentified says why the VM cannot be identified, because a user has changed its metadata
	// or they cannot be read at present. It is empty for other VMs. Only ID, State and Reason of
	// such a VM are known, and maybe ProviderID, Addresses and Hostname. Provider takes it for the VM of the
	// instance with this id, if it knows the instance, and does not terminate it.
	Unidentified string
	// Addresses are the addresses of the VM, the preferred address first.
	Addresses []netip.Addr
	// Hostname is the host name that the cloud gives to the VM, if it is not the instance id.
	Hostname string
}

// Limits limit the calls to a cloud, and say how soon its responses are up to date.
type Limits struct {
	// Reads limits the calls of List, Find and Room, Writes the calls of Launch and Terminate.
	Reads, Writes Budget
	// Launches is how many calls of Launch may run at a time.
	Launches int
	// Batch is how many VMs one call of Terminate may have.
	Batch int
	// VisibilityDelay is how long List and Find may fail to show a launched VM, and
	// Terminate may not know it. Zero means no time.
	VisibilityDelay time.Duration
	// EmptyDelay is how long a list proves nothing if it shows none of the known VMs: it may
	// have been made with other credentials. Zero means no time.
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
	// call has changed nothing. Provider repeats it and does not report it as a failure.
	ErrThrottled = errors.New("the cloud throttles calls")
	// ErrNotFound means that the cloud does not know a VM that it should terminate. The VM
	// may only be invisible, so lists and Find decide whether it exists. Provider does not
	// report this error as a failure.
	ErrNotFound = errors.New("the machine was not found")
	// ErrRefused means that the cloud has refused to terminate a VM, and will refuse the same
	// call until a user changes something there.
	ErrRefused = errors.New("the cloud refused the call")
	// ErrRefusedTogether means that the cloud has refused to terminate several VMs and has
	// terminated none of them, maybe because of another VM than this one. Provider then
	// divides the call.
	ErrRefusedTogether = errors.New("the cloud refused the call for several machines")
	// ErrInProgress means that a launch has begun and takes longer than one call. Provider
	// continues it with another call, maybe with other userdata, and does not report a
	// failure.
	ErrInProgress = errors.New("the launch is in progress")
)

// podsPerNode is the kubelet's default for maxPods
// (https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/).
const podsPerNode = 110

// LinuxNode returns the Node of a VM that runs Linux with this much of the processors and
// the memory of its type.
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

// Collect calls read for each item, at most limit calls at a time, and returns the VMs that
// exist in the order of the items. It returns the first error. The caller decides by the kind
// of group whether an error cancels the other calls.
func Collect[T any](group *errgroup.Group, limit int, items []T, read func(item T) (vm VM, exists bool, err error)) ([]VM, error) {
	found := make([]*VM, len(items))
	group.SetLimit(limit)
	for n, item := range items {
		group.Go(func() error {
			vm, exists, err := read(item)
			if exists {
				found[n] = &vm
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var vms []VM
	for _, vm := range found {
		if vm != nil {
			vms = append(vms, *vm)
		}
	}
	return vms, nil
}
