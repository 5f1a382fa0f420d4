// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// The steps in their order. stepRemoveFormer is skipped if an earlier check has left nothing,
// stepFind if the provider is no Finder, stepRegister and stepDeregister without
// --load-balancers, and stepCleanUp if nothing is left.
const (
	stepList         = "list the instances"
	stepRemoveFormer = "remove what an earlier check has left"
	stepRoom         = "read the room of the subnet"
	stepCreate       = "create an instance"
	stepRun          = "wait until it runs"
	stepListAgain    = "list it as another process does"
	stepFind         = "find it by its id"
	stepExamine      = "ask the questions"
	stepRegister     = "register it with the load balancers"
	stepDeregister   = "deregister it"
	stepTerminate    = "terminate it"
	stepConfirm      = "confirm as another process that it does not exist"
	stepCleanUp      = "remove what the check has created"
)

// check is one run of the command.
type check struct {
	*target
	stepTimeout, cleanupTimeout time.Duration
	output                      io.Writer
	// skipAssumptions is true if no questions are asked.
	skipAssumptions bool
	// storageName is the value of --storage if there is a storage.
	storageName string
	// examinations have the questions, in their order, and outcomes the answers.
	examinations []provider.Examination
	outcomes     []outcome
	// examined is true when the first question may have been asked.
	examined bool

	// session is the running provider, or nil.
	session *session
	// existing has the instances of checks that may exist, by id.
	existing map[string]instance.VM
	// unlisted has the ids of those that questions have requested and that no list has shown.
	unlisted map[string]bool
	// gone has the ids of those that a session has removed.
	gone map[string]bool
	// targets has the instances that may be targets of load balancers, by id.
	targets map[string]instance.VM
}

// run makes all steps and removes what they have created.
func (c *check) run(ctx context.Context) error {
	c.existing, c.targets = map[string]instance.VM{}, map[string]instance.VM{}
	c.unlisted, c.gone = map[string]bool{}, map[string]bool{}
	market := ""
	if name := provider.MarketOf(c.config.Shard.Infra.Options, c.group.Args); name != "" {
		market = ", market " + name
	}
	c.print("Checking provider %s as shard %s of cluster %s: template %s, instance type %s%s, subnet %s.\n",
		c.config.Shard.Infra.Provider, c.shard.ID, c.shard.ClusterID, c.group.Template, c.group.InstanceType, market, c.subnet)
	err := c.steps(ctx)
	if len(c.existing)+len(c.targets) > 0 || err != nil && c.examined {
		err = errors.Join(err, c.cleanUp(ctx))
	}
	if c.session != nil {
		c.session.stop()
	}
	err = errors.Join(err, c.report())
	if err != nil {
		return fmt.Errorf("the check of provider %s has failed: %w", c.config.Shard.Infra.Provider, err)
	}
	c.print("All steps succeeded. Nothing is left.\n")
	return nil
}

// steps makes the steps in order until one fails.
func (c *check) steps(ctx context.Context) error {
	var former []string
	err := c.step(ctx, stepList, func(ctx context.Context) (result string, err error) {
		former, err = c.list(ctx)
		return fmt.Sprintf("%d of an earlier check", len(former)), err
	})
	if err != nil {
		return err
	}
	if len(former) > 0 {
		if err := c.step(ctx, stepRemoveFormer, func(ctx context.Context) (string, error) {
			return strings.Join(former, ", "), c.remove(ctx, former)
		}); err != nil {
			return err
		}
	}
	var spec provider.Spec
	for _, step := range []struct {
		name string
		do   func(context.Context) (string, error)
	}{
		{stepRoom, c.room},
		{stepCreate, func(ctx context.Context) (result string, err error) {
			if spec, err = c.spec(ctx); err != nil {
				return "", err
			}
			return c.create(ctx, spec)
		}},
		{stepRun, func(ctx context.Context) (string, error) { return c.awaitRunning(ctx, spec.ID) }},
		{stepListAgain, func(ctx context.Context) (string, error) { return c.listAgain(ctx, spec.ID) }},
		{stepFind, func(ctx context.Context) (string, error) { return c.find(ctx, spec.ID) }},
		{stepExamine, func(ctx context.Context) (string, error) { return "", c.examine(ctx, spec) }},
		{stepRegister, func(ctx context.Context) (string, error) { return c.register(ctx, spec.ID) }},
		{stepDeregister, func(ctx context.Context) (string, error) { return "", c.deregister(ctx) }},
		{stepTerminate, func(ctx context.Context) (string, error) {
			return "", c.removeWithSession(ctx, []string{spec.ID})
		}},
		{stepConfirm, func(ctx context.Context) (string, error) { return "", c.confirm(ctx) }},
	} {
		_, canFind := c.session.Provider.(provider.Finder)
		switch step.name {
		case stepFind:
			if !canFind {
				continue
			}
		case stepExamine:
			// It has steps of its own.
			if _, err := step.do(ctx); err != nil {
				return err
			}
			continue
		case stepRegister, stepDeregister:
			if len(c.balancers) == 0 {
				continue
			}
		}
		if err := c.step(ctx, step.name, step.do); err != nil {
			return err
		}
	}
	return nil
}

// step makes one step and prints its result and its duration.
func (c *check) step(ctx context.Context, name string, do func(context.Context) (result string, err error)) error {
	c.print("%s ... ", name)
	began := time.Now()
	err := context.Cause(ctx)
	var result string
	if err == nil {
		limited, cancel := context.WithTimeoutCause(ctx, c.stepTimeout, fmt.Errorf("it took longer than %s", c.stepTimeout))
		defer cancel()
		result, err = do(limited)
	}
	took := time.Since(began).Round(10 * time.Millisecond)
	switch {
	case err != nil:
		c.print("FAILED after %s: %v\n", took, err)
		return fmt.Errorf("%s: %w", name, err)
	case result == "":
		c.print("ok, %s\n", took)
	default:
		c.print("ok, %s: %s\n", took, result)
	}
	return nil
}

func (c *check) print(format string, args ...any) {
	// If the output is closed, instances must still be removed.
	_, _ = fmt.Fprintf(c.output, format, args...)
}

// restart replaces the session, like a restart of a server.
func (c *check) restart(ctx context.Context) error {
	if c.session != nil {
		c.session.stop()
		c.session = nil
	}
	s, err := c.start(ctx)
	if err != nil {
		return err
	}
	c.session = s
	if expecter, ok := s.Provider.(provider.Expecter); ok && len(c.existing) > 0 {
		var expected []instance.VM
		for id, vm := range c.existing {
			if c.gone[id] {
				// An empty list proves nothing to a session that expects it.
				continue
			}
			if c.unlisted[id] {
				// A provider id would mean that a list has shown it. It may be hidden still.
				vm.ProviderID = ""
			}
			expected = append(expected, vm)
		}
		expecter.Expect(expected)
	}
	return nil
}

// list returns the instances that an earlier check has left. If it finds an instance of
// another group, it returns an error, so that nothing is removed.
func (c *check) list(ctx context.Context) (ids []string, err error) {
	if err := c.restart(ctx); err != nil {
		return nil, err
	}
	list, err := c.session.instances()
	for _, vm := range list {
		c.existing[vm.ID] = vm
		if len(c.balancers) > 0 {
			c.targets[vm.ID] = vm
		}
		ids = append(ids, vm.ID)
	}
	return ids, err
}

// remove removes instances, and then forgets them.
func (c *check) remove(ctx context.Context, ids []string) error {
	if err := c.deregister(ctx); err != nil {
		return err
	}
	if err := c.removeWithSession(ctx, ids); err != nil {
		return err
	}
	for _, id := range ids {
		delete(c.existing, id)
	}
	return nil
}

// removeWithSession removes instances, and notes which are gone. They are not forgotten: another
// session has to confirm it.
func (c *check) removeWithSession(ctx context.Context, ids []string) error {
	gone, err := c.session.remove(ctx, ids)
	for _, id := range gone {
		c.gone[id] = true
	}
	return err
}

func (c *check) room(ctx context.Context) (string, error) {
	room, err := c.session.Capacity(ctx, c.subnet)
	if err != nil {
		return "", err
	}
	if room == 0 {
		return "", fmt.Errorf("subnet %s has no room", c.subnet)
	}
	return fmt.Sprintf("%d", room), nil
}

// create requests an instance and waits until the provider has listed it.
func (c *check) create(ctx context.Context, spec provider.Spec) (string, error) {
	c.existing[spec.ID] = instance.VM{ID: spec.ID, Group: checkGroup}
	if err := c.session.Create(ctx, spec); err != nil {
		return "", err
	}
	failed := 0
	err := c.session.await(ctx, spec.ID, func() (bool, error) {
		vm, known := c.session.Get(spec.ID)
		failures, last := c.session.failuresOf(spec.ID)
		switch {
		case known && vm.ProviderID != "":
			c.existing[spec.ID] = vm
			return true, nil
		case known:
			return false, instanceFailed(vm)
		case failures > failed:
			return false, last
		}
		// The launch is in progress, and the provider needs a new request to continue.
		failed = failures
		return false, c.session.Create(ctx, spec)
	})
	return fmt.Sprintf("%s, %s", spec.ID, c.existing[spec.ID].ProviderID), err
}

// instanceFailed returns an error if an instance will never run.
func instanceFailed(vm instance.VM) error {
	switch vm.State {
	case instance.Failed, instance.Stopped, instance.Terminating:
		return fmt.Errorf("it will not run: %s", vm.Reason)
	}
	return nil
}

func (c *check) awaitRunning(ctx context.Context, id string) (string, error) {
	var addresses []string
	err := c.session.await(ctx, id, func() (bool, error) {
		vm, known := c.session.Get(id)
		if !known {
			_, last := c.session.failuresOf(id)
			return false, errors.Join(errors.New("the instance does not exist any more"), last)
		}
		addresses = nil
		for _, address := range vm.Addresses {
			addresses = append(addresses, address.String())
		}
		return vm.State == instance.Running, instanceFailed(vm)
	})
	return strings.Join(addresses, ", "), err
}

// listAgain expects that a new session finds the instance by a list.
func (c *check) listAgain(ctx context.Context, id string) (string, error) {
	if err := c.restart(ctx); err != nil {
		return "", err
	}
	before := c.existing[id]
	err := c.session.await(ctx, id, func() (bool, error) {
		vm, known := c.session.Get(id)
		switch {
		case !known:
			return false, errors.New("it is not listed")
		case !vm.Expected && vm.ProviderID != before.ProviderID:
			return false, fmt.Errorf("its provider id is %q, it was %q", vm.ProviderID, before.ProviderID)
		}
		return !vm.Expected, nil
	})
	if err != nil {
		return "", err
	}
	return c.removeLate(ctx, id)
}

// removeLate removes instances of an earlier check that was killed while they were created: its
// cloud did not list them before.
func (c *check) removeLate(ctx context.Context, id string) (string, error) {
	list, err := c.session.instances()
	if err != nil {
		return "", err
	}
	var late []string
	for _, vm := range list {
		if vm.ID == id {
			continue
		}
		late, c.existing[vm.ID] = append(late, vm.ID), vm
		if len(c.balancers) > 0 {
			c.targets[vm.ID] = vm
		}
	}
	if len(late) == 0 {
		return "", nil
	}
	return "removed " + strings.Join(late, ", ") + " of an earlier check", c.remove(ctx, late)
}

func (c *check) find(ctx context.Context, id string) (string, error) {
	vm, found, err := c.session.Provider.(provider.Finder).Find(ctx, id)
	switch {
	case err != nil:
		return "", err
	case !found:
		return "", errors.New("it is not found")
	case vm.ProviderID != c.existing[id].ProviderID || vm.Group != checkGroup:
		return "", fmt.Errorf("another instance is found, %s of group %s", vm.ProviderID, vm.Group)
	}
	return vm.ProviderID, nil
}
