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

// entry is what is known about one instance.
type entry struct {
	id     string
	group  instance.GroupKey
	origin instance.Origin
	// request is nil once the machine is known.
	request *request
	// machine is what the cloud reported last. It is nil until the machine is known.
	machine *VM
	// spec is what the machine was launched with by this process, without secrets. It is
	// nil for other machines.
	spec *provider.Spec
	// launched is when this process learned of its launch, the zero time for a machine
	// that was found at the start.
	launched time.Time
	// listed is true once List or Find has shown the machine, or would show it.
	listed bool
	// leftOut is true while lists leave out the machine, and unlisted until Find has found it.
	leftOut, unlisted bool
	// expected is true of an instance from Expect until this process has found its
	// machine.
	expected bool
	// refresh is true until a list after Refresh shows the machine.
	refresh bool
	// ran is true once the machine has been running.
	ran bool
	// absences is how many times in succession Find did not find the machine.
	absences int
	// lookedUp is when Find was last called because a list has left out the machine.
	lookedUp time.Time
	// delete is true once the instance shall be deleted.
	delete bool
	// terminated is when Terminate last succeeded.
	terminated time.Time
	// due is when Terminate may be called next, and backoff the delay after its next
	// failure.
	due     time.Time
	backoff time.Duration
	// refused is when the cloud has last refused to terminate the machine alone, the zero
	// time if it has not.
	refused time.Time
}

// request is a request that has not given a machine yet.
type request struct {
	spec provider.Spec
	// created is when it was requested.
	created time.Time
	// launching is true during a call of Launch. Its result counts, and not what a list
	// shows meanwhile: the launch may fail and undo what it did.
	launching bool
	// uncertain is true when the machine may exist: an attempt to launch it has failed in
	// an unknown way.
	uncertain bool
	// search is true when the machine may exist although its launch has failed or was not
	// tried by this process. Then it is searched for first.
	search bool
	// tokenUsed is true when the search is because the token was used.
	tokenUsed bool
	// hiddenUntil is how long a machine that exists may not be found.
	hiddenUntil time.Time
}

// vm returns the instance of an entry. An instance that was not listed yet has no provider
// id and does not run: the next process, which may not see it in its first list, would
// take an instance whose provider id is known for one that is missing.
func (e *entry) vm() instance.VM {
	vm := instance.VM{ID: e.id, Group: e.group, Origin: e.origin, State: instance.Pending, Expected: e.expected, Unlisted: e.unlisted}
	switch m := e.machine; {
	case m == nil:
	case e.listed:
		vm.ProviderID, vm.State, vm.Reason, vm.Addresses = m.ProviderID, m.State, m.Reason, m.Addresses
	case m.State != instance.Running:
		vm.State, vm.Reason = m.State, m.Reason
	}
	if e.delete {
		vm.State = instance.Terminating
	}
	return vm
}

// typeName returns the name of the instance type.
func (e *entry) typeName() string {
	switch {
	case e.request != nil:
		return e.request.spec.Type.Name
	case e.machine.Type == "" && e.spec != nil:
		return e.spec.Type.Name
	default:
		return e.machine.Type
	}
}

// leaving reports whether the instance is being deleted.
func (e *entry) leaving() bool {
	return e.delete || e.machine != nil && e.machine.State == instance.Terminating
}

// inProgress reports whether a list is expected to show a change soon.
func (e *entry) inProgress() bool {
	if e.machine == nil {
		return e.request.uncertain
	}
	return !e.listed || e.expected || e.refresh || e.absences > 0 || e.machine.State == instance.Pending || e.leaving()
}

// update replaces what is known about the machine.
func (e *entry) update(m VM) {
	e.machine, e.group, e.origin = &m, m.Group, m.Origin
	e.ran = e.ran || m.State == instance.Running
}

// countType returns how many instances of a type are pending or running.
func (t table) countType(name string) int {
	count := 0
	for _, e := range t {
		if !e.leaving() && e.typeName() == name {
			count++
		}
	}
	return count
}

// countUnseen returns how many machines of a subnet are requested, or were launched after
// the subnet's room was read or too shortly before for that to show them.
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

// outcome collects what to report after the table is unlocked.
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

// reportOutcome reports failures and changes. During the first list there are none.
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
