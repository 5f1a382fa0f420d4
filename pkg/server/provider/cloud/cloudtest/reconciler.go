// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloudtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/puidv7"
)

// workers is the group of all instances of crashes and walks.
var workers = instance.GroupKey{Tenant: "default", Group: "workers"}

// recordStep is between the return of a launch and the write of the record.
const recordStep = "record the machine"

// reconciler works like the reconciler of a server, with records in a folder.
type reconciler struct {
	records
	provider provider.Provider
	// size is the wanted number of instances.
	size int
	// spec has the fields that all requests have in common.
	spec provider.Spec
	step func(string)
	// rejected is true once the provider has rejected a request. If a VM of an earlier process
	// has failed, the provider rejects similar requests for half a minute. The provider of
	// another process does not.
	rejected bool
}

// run reconciles until done returns true.
func (r *reconciler) run(ctx context.Context, done func() bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan error, 1)
	changes := make(chan struct{}, 1)
	go func() {
		stopped <- r.provider.Run(ctx, func(instance.GroupKey) {
			select {
			case changes <- struct{}{}:
			default:
			}
		}, func(instance.GroupKey, string, error) {})
	}()
	select {
	case <-r.provider.Synced():
	case err := <-stopped:
		return err
	}
	all, err := r.read()
	if err != nil {
		return err
	}
	expect(r.provider, all)
	for !done() {
		if err := r.reconcile(ctx); err != nil {
			return err
		}
		select {
		case <-changes:
		case <-time.After(20 * time.Millisecond):
		}
	}
	cancel()
	return <-stopped
}

// expect tells the provider of a new process about the instances that have a record.
func expect(p provider.Provider, all map[string]record) {
	var vms []instance.VM
	for id, stored := range all {
		vms = append(vms, instance.VM{ID: id, ProviderID: stored.ProviderID, Group: workers})
	}
	p.(provider.Expecter).Expect(vms)
}

// reconcile makes the next step for each instance.
func (r *reconciler) reconcile(ctx context.Context) error {
	all, err := r.read()
	if err != nil {
		return err
	}
	if err := r.observe(all); err != nil {
		return err
	}
	var wanted []string
	for id, stored := range all {
		if err := r.act(ctx, id, stored); err != nil {
			return err
		}
		if !stored.Deleted {
			wanted = append(wanted, id)
		}
	}
	return r.scale(wanted, all)
}

// observe stores the state of instances as the provider reports it.
func (r *reconciler) observe(all map[string]record) error {
	for _, vm := range r.provider.List(workers) {
		stored, recorded := all[vm.ID]
		switch {
		case !recorded:
			stored = record{Deleted: true} // none is wanted that was forgotten
		case vm.State == instance.Failed || vm.State == instance.Stopped:
			stored.Deleted = true
		}
		if vm.ProviderID != "" && vm.ProviderID != stored.ProviderID {
			r.step(recordStep)
			stored.ProviderID = vm.ProviderID
		}
		if stored != all[vm.ID] {
			if err := r.write(vm.ID, stored); err != nil {
				return err
			}
			all[vm.ID] = stored
		}
	}
	return nil
}

// act requests or deletes an instance if that is due.
func (r *reconciler) act(ctx context.Context, id string, stored record) error {
	vm, known := r.provider.Get(id)
	switch {
	case stored.Deleted && known && vm.State != instance.Terminating:
		return r.provider.Delete(ctx, id)
	case stored.Deleted && !known:
		return r.remove(id)
	case !stored.Deleted && !known && stored.ProviderID != "":
		return r.note(missingPrefix, id)
	case !stored.Deleted && !known:
		spec := r.spec
		spec.ID, spec.Group, spec.CreatedAt = id, workers, stored.CreatedAt
		spec.Userdata = []byte(fmt.Sprint("nonce ", time.Now())) // another one each time
		if err := r.provider.Create(ctx, spec); err != nil {
			r.rejected = true // is tried again, here or by the next process
		}
	}
	return nil
}

// scale records a new instance or the deletion of the newest one.
func (r *reconciler) scale(wanted []string, all map[string]record) error {
	slices.Sort(wanted)
	switch {
	case len(wanted) < r.size:
		id, err := puidv7.New("knd")
		if err != nil {
			return err
		}
		return r.write(id.String(), record{CreatedAt: time.Now()})
	case len(wanted) > r.size:
		newest := wanted[len(wanted)-1]
		stored := all[newest]
		stored.Deleted = true
		return r.write(newest, stored)
	}
	return nil
}

// settled returns the instances if their number is as wanted and all run.
func (r *reconciler) settled() (ids []string, settled bool) {
	all, err := r.read()
	if err != nil || len(all) != r.size {
		return nil, false
	}
	for id, stored := range all {
		vm, _ := r.provider.Get(id)
		if stored.Deleted || stored.ProviderID == "" || vm.State != instance.Running {
			return nil, false
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, true
}
