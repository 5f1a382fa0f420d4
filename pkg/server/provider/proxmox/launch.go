// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/nocloud"
)

// launchAge is how long after its last call a launch is expected to continue. A failed call
// is repeated much sooner.
const launchAge = 2 * time.Minute

// claimAge is how long after its last call the VMID of a launch is remembered. The server
// gives up a request long before that.
const claimAge = 24 * time.Hour

// launch is a launch in progress. One worker uses it at a time.
type launch struct {
	id string
	// last is when the last call ended, or zero during a call.
	last time.Time
	// source is the template, and target the node for the clone. They are set while vmid is.
	source source
	target string
	// vmid is the claimed VMID. The virtual machine may exist.
	vmid int
	// task is the task that clones. It is empty without a clone, or if the response was lost.
	task upid
	// lost is true if a virtual machine of the launch may have this VMID although the list does not show
	// it: the response to the request to clone was lost, or it was removed.
	lost bool
	// tasks are the tasks that have completed the virtual machine so far, by step, so that a
	// call continues where the last one has run out of time.
	tasks map[string]upid
	// rejection is why the virtual machine could not be completed, nil if it may be. It is being removed.
	rejection error
	// memory is the memory of the virtual machine in bytes.
	memory int64
}

// begin returns the launch of an instance, and creates it if needed.
func (a *API) begin(id string) *launch {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.launches, func(_ string, l *launch) bool {
		// A claimed virtual machine may exist, or will exist when a clone has finished.
		return !l.isFresh() && (l.vmid == 0 || time.Since(l.last) > claimAge)
	})
	l, begun := a.launches[id]
	if !begun {
		l = &launch{id: id, tasks: map[string]upid{}}
		a.launches[id] = l
	}
	l.last = time.Time{}
	return l
}

// isFresh reports whether the launch is running or will be continued. mu must be locked.
func (l *launch) isFresh() bool { return l.last.IsZero() || time.Since(l.last) < launchAge }

// end stores the result of a call.
func (a *API) end(l *launch, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.last = time.Now()
	_, rejected := errors.AsType[*cloud.Rejection](err)
	if err == nil || rejected {
		delete(a.launches, l.id)
	}
}

// isLaunching reports whether a launch of this process is in progress.
func (a *API) isLaunching(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, begun := a.launches[id]
	return begun && l.isFresh()
}

// isClaimed reports whether a launch of this process has claimed a VMID.
func (a *API) isClaimed(vmid int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.launches {
		if l.vmid == vmid && l.isFresh() {
			return true
		}
	}
	return false
}

// plan is the virtual machine that a launch creates.
type plan struct {
	spec   provider.Spec
	image  Image
	subnet Subnet
}

// Launch clones, configures and starts the virtual machine of a request. If a call is
// interrupted, the next call continues, because each step can be repeated.
func (a *API) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	image, err := a.options.Image.with(r.Args)
	if err != nil {
		return cloud.VM{}, rejectGroup(r.Spec, err)
	}
	l := a.begin(r.ID)
	vm, err := a.launch(ctx, l, plan{spec: r.Spec, image: image, subnet: a.options.Subnets[r.Subnet]})
	a.end(l, err)
	if err != nil {
		return cloud.VM{}, err
	}
	m := vm.identity.vm(a.shard)
	m.State = instance.Running
	a.step("return the machine")
	return m, nil
}

func (a *API) launch(ctx context.Context, l *launch, p plan) (virtualMachine, error) {
	until := time.Now().Add(a.timeout)
	found, err := a.inventory(ctx)
	if err != nil {
		return virtualMachine{}, err
	}
	if vm, exists := found.unidentifiedOf(l.id); exists {
		return virtualMachine{}, fmt.Errorf("the machine of the instance exists: %s", vm.unidentified)
	}
	vm, exists, err := a.locate(ctx, l, found, until)
	if err != nil {
		return virtualMachine{}, p.afterClone(err)
	}
	if !exists && l.rejection != nil {
		return virtualMachine{}, l.rejection
	}
	if !exists {
		if vm, err = a.clone(ctx, l, p, found, until); err != nil {
			return virtualMachine{}, err
		}
	}
	status, err := a.client.status(ctx, vm.node, vm.vmid)
	if err != nil || status.Status == statusRunning {
		return vm, err // it was started before
	}
	if l.rejection == nil {
		err := a.complete(ctx, l, vm, p, until)
		if err == nil {
			return vm, nil
		}
		if l.rejection = p.reject(err); l.rejection == nil {
			return virtualMachine{}, err
		}
	}
	return virtualMachine{}, a.abandon(ctx, vm, l.rejection, until)
}

// locate returns the virtual machine of a launch, if an earlier call has cloned it.
func (a *API) locate(ctx context.Context, l *launch, found *inventory, until time.Time) (vm virtualMachine, exists bool, err error) {
	if all := found.of(l.id); len(all) > 0 {
		a.release(l)
		a.found(l)
		return all[0], true, nil
	}
	if l.task != "" {
		vm, err := a.awaitClone(ctx, l, until)
		switch {
		case isTaskError(err, vmidUsed...) && l.lost:
			// The request whose response was lost may have created it.
			return virtualMachine{}, false, fmt.Errorf("virtual machine %d exists: %w", l.vmid, cloud.ErrInProgress)
		case isTaskError(err, vmidUsed...):
			a.claim(l, 0) // another client has it
			return virtualMachine{}, false, nil
		case isTaskError(err, lockTimeout):
			return virtualMachine{}, false, nil // try again
		}
		return vm, err == nil, err
	}
	// It is unknown whether the request to clone has arrived. A repetition claims the same VMID,
	// so no second virtual machine is created.
	for _, unknown := range found.unknown {
		if unknown.vmid == l.vmid || unknown.identity.InstanceID == l.id {
			return virtualMachine{}, false, fmt.Errorf("virtual machine %d is being cloned: %w", unknown.vmid, cloud.ErrInProgress)
		}
	}
	if l.vmid != 0 && slices.ContainsFunc(found.resources, func(r entry) bool { return r.VMID == l.vmid }) {
		a.claim(l, 0) // another client has it
	}
	return virtualMachine{}, false, nil
}

// claim stores the VMID of a launch, 0 for no VMID.
func (a *API) claim(l *launch, vmid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.vmid, l.task, l.lost = vmid, "", false
	clear(l.tasks)
}

// complete configures a virtual machine that does not run, and starts it.
func (a *API) complete(ctx context.Context, l *launch, vm virtualMachine, p plan, until time.Time) error {
	image, err := nocloud.New(vm.identity.InstanceID, p.spec.Userdata)
	if err != nil {
		return err
	}
	storage, name, _ := strings.Cut(vm.identity.Resources.Userdata, ":iso/")
	a.step("upload the userdata")
	// A later request has other userdata.
	upload := fmt.Sprintf("upload %x", sha256.Sum256(p.spec.Userdata))
	if err := a.run(ctx, until, l.step(upload), func() (upid, error) {
		return a.client.upload(ctx, vm.node, storage, name, image)
	}); err != nil {
		return fmt.Errorf("upload the userdata: %w", err)
	}
	a.step("configure the virtual machine")
	if err := a.configure(ctx, l, vm, p, until); err != nil {
		return fmt.Errorf("configure virtual machine %d: %w", vm.vmid, err)
	}
	if err := a.enlarge(ctx, l, vm, p.image, until); err != nil {
		return fmt.Errorf("enlarge the disk of virtual machine %d: %w", vm.vmid, err)
	}
	a.step("start the virtual machine")
	err = a.run(ctx, until, l.step("start"), func() (upid, error) { return a.client.start(ctx, vm.node, vm.vmid) })
	// A request whose response was lost may have started it.
	if err != nil && !is(err, alreadyRunning) && !isTaskError(err, alreadyRunning) {
		return fmt.Errorf("start virtual machine %d: %w", vm.vmid, err)
	}
	return nil
}

// tagRefusal is in the error message if the token may not set a tag: the cluster limits the tags
// that users without Sys.Modify may set
// (https://pve.proxmox.com/pve-docs/datacenter.cfg.5.html, user-tag-access and registered-tags).
const tagRefusal = "for modifying tag"

// configure sets the configuration of a virtual machine, without tags if the token may not set
// them: the notes identify it.
func (a *API) configure(ctx context.Context, l *launch, vm virtualMachine, p plan, until time.Time) error {
	form := a.configuration(vm, p)
	set := func() error {
		return a.run(ctx, until, l.step("configure"), func() (upid, error) { return a.client.configure(ctx, vm.node, vm.vmid, form) })
	}
	err := set()
	if is(err, tagRefusal) {
		klog.FromContext(ctx).Info("The API token may not set the tags of a virtual machine, which is launched without them",
			"instance", vm.identity.InstanceID, "vmid", vm.vmid, "reason", err.Error())
		form.Del("tags")
		err = set()
	}
	return err
}

// configuration returns the configuration of a virtual machine
// (https://pve.proxmox.com/pve-docs/qm.conf.5.html).
func (a *API) configuration(vm virtualMachine, p plan) url.Values {
	network := "virtio,bridge=" + p.subnet.Bridge
	if p.subnet.VLAN != nil {
		network += fmt.Sprintf(",tag=%d", *p.subnet.VLAN)
	}
	return url.Values{
		"tags":    {strings.Join(append(tagsOf(a.shard), instanceTag+vm.identity.InstanceID), ";")},
		"sockets": {"1"},
		"cores":   {fmt.Sprint(cpus(p.spec.Type))},
		"memory":  {fmt.Sprint(p.spec.Type.Memory.Value() >> 20)},
		"net0":    {network},
		"ide2":    {vm.identity.Resources.Userdata + ",media=cdrom"},
		"onboot":  {"1"},
		// A template may be protected, but its clones must not be.
		"protection": {"0"},
	}
}

// cpus returns the number of processors of an instance type.
func cpus(t provider.InstanceType) int64 { return max(1, t.CPU.Value()) }

// abandon removes a virtual machine that could not be completed, because another attempt would fail for
// the same reason. The error is the rejection once nothing is left. Until then the caller repeats the call.
func (a *API) abandon(ctx context.Context, vm virtualMachine, rejection error, until time.Time) error {
	deleted, removal := a.terminate(ctx, vm, until)
	if !deleted && !errors.Is(removal, cloud.ErrNotFound) {
		return errors.Join(errors.Unwrap(rejection), removal)
	}
	return rejection
}

const (
	// retryAfter is the delay after a rejection that a user has to correct.
	retryAfter = 30 * time.Second
	// spaceRetryAfter is the delay after a clone ran out of space. A clone writes much until
	// then.
	spaceRetryAfter = 5 * time.Minute
)

// rejectGroup rejects the requests of a group, whose arguments have caused an error.
func rejectGroup(spec provider.Spec, err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Group: spec.Group}, RetryAfter: retryAfter, Err: err}
}

// afterClone converts the error of a clone that has not begun, or has removed everything that
// it had created. It returns the error itself if the clone may exist or may be repeated.
func (p plan) afterClone(err error) error {
	if rejection := p.reject(err); rejection != nil {
		return rejection
	}
	return err
}

// Texts in messages of the API and of tasks, in lower case. The API has no error codes.
var (
	// transient are texts of errors after which the same call may succeed.
	transient  = []string{lockTimeout, "already exists", "file exists", "quorum", "is locked", "not ready", "unexpected status", "interrupted", "timeout"}
	outOfSpace = []string{"no space left", "not enough space", "not enough free space", "out of space", "insufficient free space", "disk quota exceeded"}
	noMemory   = []string{"cannot allocate memory", "cannot set up guest memory"}
	// subnetFaults are texts of errors about the storage or the network.
	subnetFaults = []string{"storage '", "no such storage", "bridge '", "no such bridge", "non-shared storage", "uses local storage"}
)

// permissionChecks matches the message about a missing privilege: its path and its name
// (https://git.proxmox.com/?p=pve-access-control.git;a=blob;f=src/PVE/RPCEnvironment.pm).
var permissionChecks = regexp.MustCompile(`\((/[^,)]*), ([^)]+)\)`)

// forbidden returns the scope of a rejection because the token lacks a privilege. Only a privilege
// that every launch needs concerns other groups.
func (p plan) forbidden(message string) cloud.Scope {
	group, subnet := cloud.Scope{Group: p.spec.Group}, cloud.Scope{Subnet: p.spec.Subnet}
	match := permissionChecks.FindStringSubmatch(message)
	if match == nil {
		return group
	}
	path, privilege := match[1], match[2]
	switch {
	case strings.HasPrefix(path, "/sdn/") && slices.Contains(strings.Split(path, "/"), p.subnet.Bridge),
		p.subnet.Storage != "" && path == "/storage/"+p.subnet.Storage:
		return subnet
	case strings.HasPrefix(path, "/sdn/"), strings.Contains(privilege, "Datastore.AllocateSpace"), strings.Contains(privilege, "VM.Clone"):
		return group // a network or a disk of its template, or the template itself
	}
	return cloud.Scope{}
}

// reject returns the rejection that an error means, or nil if it says nothing about other
// requests.
func (p plan) reject(err error) error {
	var message, log string
	scope := cloud.Scope{Group: p.spec.Group, Type: p.spec.Type.Name, Subnet: p.spec.Subnet}
	if errors.Is(err, cloud.ErrInProgress) || errors.Is(err, cloud.ErrThrottled) {
		return nil
	}
	if failed, ok := errors.AsType[*taskError](err); ok {
		message, log = failed.exit, failed.log
	} else if response, ok := errors.AsType[*apiError](err); ok && response.isDefinite() {
		switch response.status {
		case http.StatusUnauthorized:
			return nil
		case http.StatusForbidden:
			return &cloud.Rejection{Scope: p.forbidden(response.message), RetryAfter: retryAfter, Err: err}
		}
		message = response.message
	} else {
		return nil
	}
	after := retryAfter
	switch said := message + "\n" + log; {
	case containsAny(said, outOfSpace...):
		scope, after = cloud.Scope{Subnet: p.spec.Subnet}, spaceRetryAfter
		err = fmt.Errorf("%w: %w", provider.OutOfCapacity("no space left for subnet %s", p.spec.Subnet), err)
	case containsAny(said, noMemory...):
		scope = cloud.Scope{Type: p.spec.Type.Name}
		err = fmt.Errorf("%w: %w", provider.OutOfCapacity("no memory left for type %s", p.spec.Type.Name), err)
	case containsAny(said, subnetFaults...):
		scope = cloud.Scope{Subnet: p.spec.Subnet}
	case containsAny(message, transient...):
		return nil
	}
	return &cloud.Rejection{Scope: scope, RetryAfter: after, Err: err}
}

// found stores that the virtual machine of a launch exists. It may be removed before it is complete, by
// an administrator or because the launch was rejected: then it does not appear again.
func (a *API) found(l *launch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.task, l.lost = "", true
}
