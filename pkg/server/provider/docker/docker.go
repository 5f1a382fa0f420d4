// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package docker is an instance provider whose VMs are containers of a Docker daemon
// (docs/providers.md#docker).
package docker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// retryAfter is how long requests like a rejected one are not repeated: an administrator has
// to correct something first.
const retryAfter = 30 * time.Second

// API makes the calls for the containers of one shard. The concrete type of the client is
// in no interface, because the linker would then keep all of its methods
// (https://pkg.go.dev/reflect#Type, Method).
type API struct {
	docker  *client.Client
	options *Options
	shard   provider.Shard
}

var _ cloud.API = (*API)(nil)

// checkDeadline keeps a process that was paused from sending a request too late.
func checkDeadline(r *http.Request) error { return deadline.Check(r.Context()) }

// visibilityDelay is how long a daemon may take to create a container after the process
// that requested it has given up. The daemon's lists are consistent.
const visibilityDelay = 5 * time.Second

// Limits returns limits that a local daemon serves without delay.
func (*API) Limits() cloud.Limits {
	return cloud.Limits{
		Reads:           cloud.Budget{PerSecond: 20, Burst: 40},
		Writes:          cloud.Budget{PerSecond: 10, Burst: 20},
		Launches:        4,
		Batch:           16,
		VisibilityDelay: visibilityDelay,
		PollInterval:    time.Second,
		IdleInterval:    5 * time.Second,
	}
}

// List returns the containers of the shard.
func (a *API) List(ctx context.Context) ([]cloud.VM, error) {
	list, err := a.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: ours(a.shard)})
	if err != nil {
		return nil, fmt.Errorf("list the containers of shard %s: %w", a.shard.ID, err)
	}
	found := make([]cloud.VM, 0, len(list.Items))
	for _, c := range list.Items {
		s := statusOf(c)
		found = append(found, s.vm(a.shard))
	}
	return found, nil
}

// Find returns the container of an instance.
func (a *API) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	c, err := a.docker.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return cloud.VM{}, false, nil
	case err != nil:
		return cloud.VM{}, false, fmt.Errorf("inspect container %s: %w", id, err)
	}
	s := statusOfInspected(c.Container)
	return s.vm(a.shard), isOurs(a.shard, s.labels), nil
}

// Launch creates and starts the container of an instance. Its name is the instance id, and
// names are unique, so no instance has two containers.
func (a *API) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	args, err := a.options.arguments(r.Spec)
	if err != nil {
		return cloud.VM{}, rejected(r.Spec, err)
	}
	create := newContainer(a.shard, r.Spec, args, a.options.MetadataAddress)
	_, err = a.docker.ContainerCreate(ctx, create)
	if errdefs.IsConflict(err) {
		existing, found, findErr := a.Find(ctx, r.ID)
		switch {
		case findErr != nil:
			return cloud.VM{}, findErr
		case !found:
			return cloud.VM{}, fmt.Errorf("create container %s: %w", r.ID, err)
		case existing.Reason != neverStarted:
			return existing, nil
		}
		// An attempt has created the container and not started it, so removing it loses nothing.
		if err := a.remove(ctx, r.ID); err != nil {
			return cloud.VM{}, err
		}
		_, err = a.docker.ContainerCreate(ctx, create)
	}
	if err != nil {
		return cloud.VM{}, a.rejection(r.Spec, fmt.Errorf("create container %s: %w", r.ID, err))
	}
	if err := a.start(ctx, r); err != nil {
		// A container that was not started is no VM.
		if removeErr := a.remove(ctx, r.ID); removeErr != nil {
			return cloud.VM{}, errors.Join(err, removeErr)
		}
		return cloud.VM{}, a.rejection(r.Spec, err)
	}
	launched, found, err := a.Find(ctx, r.ID)
	if err == nil && !found {
		err = fmt.Errorf("container %s was removed at once", r.ID)
	}
	return launched, err
}

// start gives a container its userdata and starts it.
func (a *API) start(ctx context.Context, r cloud.Request) error {
	archive, err := userdataArchive(r.Userdata)
	if err != nil {
		return fmt.Errorf("archive the userdata of container %s: %w", r.ID, err)
	}
	if _, err := a.docker.CopyToContainer(ctx, r.ID, client.CopyToContainerOptions{DestinationPath: "/", Content: archive}); err != nil {
		return fmt.Errorf("copy the userdata to container %s: %w", r.ID, err)
	}
	if _, err := a.docker.ContainerStart(ctx, r.ID, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start container %s: %w", r.ID, err)
	}
	return nil
}

// rejection returns the rejection that an error of the daemon means for similar requests. An
// error of the connection is no rejection.
func (a *API) rejection(spec provider.Spec, err error) error {
	switch {
	case client.IsErrConnectionFailed(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errdefs.IsUnavailable(err):
		return err
	case isOutOfAddresses(err):
		err = fmt.Errorf("%w: %w", provider.OutOfCapacity("no address left in network %s", spec.Subnet), err)
		return &cloud.Rejection{Scope: cloud.Scope{Subnet: spec.Subnet}, RetryAfter: retryAfter, Err: err}
	case errdefs.IsNotFound(err), errdefs.IsInvalidArgument(err), errdefs.IsPermissionDenied(err), errdefs.IsInternal(err), errdefs.IsUnknown(err):
		return rejected(spec, err)
	default:
		return err
	}
}

// rejected rejects requests of the same group, type and subnet.
func rejected(spec provider.Spec, err error) error {
	return &cloud.Rejection{
		Scope:      cloud.Scope{Group: spec.Group, Type: spec.Type.Name, Subnet: spec.Subnet},
		RetryAfter: retryAfter,
		Err:        err,
	}
}

// Terminate stops and removes containers, with their anonymous volumes.
func (a *API) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	errs := make([]error, len(list))
	var running sync.WaitGroup
	for i, vm := range list {
		running.Go(func() { errs[i] = a.terminate(ctx, vm.ID) })
	}
	running.Wait()
	failed := map[string]error{}
	for i, vm := range list {
		if errs[i] != nil {
			failed[vm.ID] = errs[i]
		}
	}
	return failed
}

func (a *API) terminate(ctx context.Context, id string) error {
	seconds := int(a.options.StopTimeout / time.Second)
	_, err := a.docker.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &seconds})
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("%w: stop container %s: %w", cloud.ErrNotFound, id, err)
	}
	// The daemon does not stop a paused container, for example. Then remove kills it.
	if ctx.Err() != nil {
		return fmt.Errorf("stop container %s: %w", id, err)
	}
	return a.remove(ctx, id)
}

// remove removes a container, whatever its state.
func (a *API) remove(ctx context.Context, id string) error {
	_, err := a.docker.ContainerRemove(ctx, id, client.ContainerRemoveOptions{RemoveVolumes: true, Force: true})
	// A conflict means that the container is being removed.
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

// Room returns how many more containers the addresses of a network suffice for.
func (a *API) Room(ctx context.Context, subnet string) (int, error) {
	inspected, err := a.docker.NetworkInspect(ctx, subnet, client.NetworkInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return math.MaxInt32, nil // a launch reports it
	case err != nil:
		return 0, fmt.Errorf("inspect network %s: %w", subnet, err)
	}
	return roomOf(inspected.Network), nil
}
