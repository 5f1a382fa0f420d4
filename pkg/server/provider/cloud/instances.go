// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// table has an entry for each instance, by id.
type table map[string]*entry

// entry has the known facts about one instance.
type entry struct {
	id     string
	group  instance.GroupKey
	origin instance.Origin
	// request is nil once the VM is known.
	request *request
	// vm is the VM as the cloud last reported it. It is nil until the VM is known.
	vm *VM
	// spec is the spec, without secrets, with which this process launched the VM. It is nil if
	// another process launched it.
	spec *provider.Spec
	// launched is when this process learned of the launch, or the zero time if the VM was
	// found at the start.
	launched time.Time
	// listed is true once List or Find has shown the VM, or would show it.
	listed bool
	// leftOut is true while lists leave out the VM, and unlisted until Find has found it.
	leftOut, unlisted bool
	// expected is true for an instance from Expect until this process has found its VM.
	expected bool
	// refresh is true until a list after Refresh shows the VM.
	refresh bool
	// ran is true once the VM has been running.
	ran bool
	// absences is how many times in succession Find did not find the VM.
	absences int
	// lookedUp is when Find was last called because a list has left out the VM.
	lookedUp time.Time
	// unidentified is the reported reason why the VM cannot be identified.
	unidentified string
	// userdata says whether the userdata of the VM is removed.
	userdata userdata
	// delete is true once the deletion of the instance was requested.
	delete bool
	// terminated is when Terminate last succeeded.
	terminated time.Time
	// due is when Terminate may be called next, and backoff the delay after its next
	// failure.
	due     time.Time
	backoff time.Duration
	// refused is when the cloud last refused a call to terminate only this VM, or the zero
	// time.
	refused time.Time
}

// request is a request whose VM is not known yet.
type request struct {
	spec provider.Spec
	// created is when the caller requested the instance.
	created time.Time
	// launching is true during a call of Launch. Then the result of the call counts, and not
	// a list made meanwhile: the launch may fail and undo its work.
	launching bool
	// uncertain is true if an attempt to launch the VM has failed in an unknown way: the VM
	// may exist.
	uncertain bool
	// search is true if the VM must be searched for before it is launched: it may exist
	// although its launch has failed, or another process may have launched it.
	search bool
	// tokenUsed is true if the search began because the token was used, or because the cloud has
	// rejected a request with the token.
	tokenUsed bool
	// hiddenUntil is until when an existing VM may not be found.
	hiddenUntil time.Time
}

// instanceVM returns the instance of an entry. Until its VM is listed, it has no provider id
// and does not run. The next process may not see the VM in its first list, and would count
// an instance with a known provider id as missing.
func (e *entry) instanceVM() instance.VM {
	i := instance.VM{ID: e.id, Group: e.group, Origin: e.origin, State: instance.Pending, Expected: e.expected, Unlisted: e.unlisted}
	switch {
	case e.vm == nil:
	case e.listed:
		i.ProviderID, i.State, i.Reason = e.vm.ProviderID, e.vm.State, e.vm.Reason
		i.Addresses, i.Hostname, i.MayReturn = e.vm.Addresses, e.vm.Hostname, e.vm.MayReturn
	case e.vm.State != instance.Running:
		i.State, i.Reason = e.vm.State, e.vm.Reason
	}
	if e.delete {
		i.State = instance.Terminating
	}
	return i
}

// typeName returns the name of the instance type.
func (e *entry) typeName() string {
	switch {
	case e.request != nil:
		return e.request.spec.Type.Name
	case (e.vm == nil || e.vm.Type == "") && e.spec != nil:
		return e.spec.Type.Name
	case e.vm == nil:
		return ""
	default:
		return e.vm.Type
	}
}

// hasEnded reports whether the cloud has terminated the VM.
func (e *entry) hasEnded() bool { return e.vm != nil && e.vm.Ended }

// leaving reports whether the instance is being deleted.
func (e *entry) leaving() bool {
	return e.delete || e.vm != nil && e.vm.State == instance.Terminating
}

// isOver reports whether a VM has ended whose instance is being deleted, so that nothing of the
// instance is left.
func (e *entry) isOver(vm VM) bool { return vm.Ended && e.leaving() }

// identified returns the VM of an entry with the facts of the entry that its cloud does not know.
func (e *entry) identified(vm VM) VM {
	if vm.Unidentified != "" {
		vm.Group, vm.Origin, vm.Type = e.group, e.origin, e.typeName()
		if vm.ProviderID == "" && e.vm != nil {
			vm.ProviderID = e.vm.ProviderID
		}
	}
	return vm
}

// inProgress reports whether a list is expected to show a change soon.
func (e *entry) inProgress() bool {
	if e.vm == nil {
		return e.request.uncertain
	}
	return !e.listed || e.expected || e.refresh || e.absences > 0 || e.vm.State == instance.Pending || e.leaving()
}

// update stores a VM that the cloud has reported.
func (e *entry) update(vm VM) {
	vm = e.identified(vm)
	e.vm, e.group, e.origin = &vm, vm.Group, vm.Origin
	e.ran = e.ran || vm.State == instance.Running
}

// countType returns how many instances of a type are pending or running.
func (t table) countType(name string) int {
	count := 0
	for _, e := range t {
		if !e.leaving() && !e.hasEnded() && e.typeName() == name {
			count++
		}
	}
	return count
}

// countUnseen returns how many VMs of a subnet are requested, or were launched so late that
// the room read at since may not include them.
func (t table) countUnseen(subnet string, since time.Time) int {
	count := 0
	for _, e := range t {
		switch {
		case e.request != nil:
			if e.request.spec.Subnet == subnet && (!e.delete || e.request.uncertain) {
				count++
			}
		case e.spec != nil && e.spec.Subnet == subnet && (!e.listed || !e.launched.Before(since)):
			count++
		}
	}
	return count
}

// outcome collects the changes and failures to report after the table is unlocked.
type outcome struct {
	groups   map[instance.GroupKey]struct{}
	failures []failure
}

type failure struct {
	group instance.GroupKey
	id    string
	err   error
}

func (o *outcome) change(group instance.GroupKey) {
	if o.groups == nil {
		o.groups = map[instance.GroupKey]struct{}{}
	}
	o.groups[group] = struct{}{}
}

func (o *outcome) fail(e *entry, err error) {
	o.failures = append(o.failures, failure{e.group, e.id, err})
}

// reportOutcome reports failures and changes. It reports nothing during the first list.
func (p *Provider) reportOutcome(ctx context.Context, o outcome) {
	select {
	case <-p.synced:
	default:
		return
	}
	for _, f := range o.failures {
		p.reportFailure(ctx, f.group, f.id, f.err)
	}
	for group := range o.groups {
		p.changed(group)
	}
}
