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

// reconciler does with records in a folder what the reconciler of a server does.
type reconciler struct {
	records
	provider provider.Provider
	// size is how many instances there shall be.
	size int
	// spec has what all requests have in common.
	spec provider.Spec
	step func(string)
	// rejected is true once the provider has rejected a request. It rejects others like it for
	// half a minute if a machine has failed that an earlier process has not finished. The
	// provider of another process does not.
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

// expect gives the provider of a new process the instances that have a record.
func expect(p provider.Provider, all map[string]record) {
	var vms []instance.VM
	for id, one := range all {
		vms = append(vms, instance.VM{ID: id, ProviderID: one.ProviderID, Group: workers})
	}
	p.(provider.Expecter).Expect(vms)
}

// reconcile does what is due for each instance.
func (r *reconciler) reconcile(ctx context.Context) error {
	all, err := r.read()
	if err != nil {
		return err
	}
	if err := r.observe(all); err != nil {
		return err
	}
	var wanted []string
	for id, one := range all {
		if err := r.act(ctx, id, one); err != nil {
			return err
		}
		if !one.Deleted {
			wanted = append(wanted, id)
		}
	}
	return r.scale(wanted, all)
}

// observe records what the provider reports.
func (r *reconciler) observe(all map[string]record) error {
	for _, vm := range r.provider.List(workers) {
		one, recorded := all[vm.ID]
		switch {
		case !recorded:
			one = record{Deleted: true} // none is wanted that was forgotten
		case vm.State == instance.Failed || vm.State == instance.Stopped:
			one.Deleted = true
		}
		if vm.ProviderID != "" && vm.ProviderID != one.ProviderID {
			r.step(recordStep)
			one.ProviderID = vm.ProviderID
		}
		if one != all[vm.ID] {
			if err := r.write(vm.ID, one); err != nil {
				return err
			}
			all[vm.ID] = one
		}
	}
	return nil
}

// act requests or deletes an instance if that is due.
func (r *reconciler) act(ctx context.Context, id string, one record) error {
	vm, known := r.provider.Get(id)
	switch {
	case one.Deleted && known && vm.State != instance.Terminating:
		return r.provider.Delete(ctx, id)
	case one.Deleted && !known:
		return r.remove(id)
	case !one.Deleted && !known && one.ProviderID != "":
		return r.note(missingPrefix, id)
	case !one.Deleted && !known:
		spec := r.spec
		spec.ID, spec.Group, spec.CreatedAt = id, workers, one.CreatedAt
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
		one := all[newest]
		one.Deleted = true
		return r.write(newest, one)
	}
	return nil
}

// settled returns the instances if there are as many as there shall be, and all run.
func (r *reconciler) settled() (ids []string, settled bool) {
	all, err := r.read()
	if err != nil || len(all) != r.size {
		return nil, false
	}
	for id, one := range all {
		vm, _ := r.provider.Get(id)
		if one.Deleted || one.ProviderID == "" || vm.State != instance.Running {
			return nil, false
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, true
}
