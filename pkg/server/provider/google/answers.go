// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider"
)

func (e *examination) earlyDeletion(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	request, err := e.newRequest(ctx, t, func(*provider.Spec) {})
	if err != nil {
		return provider.Answer{}, err
	}
	name := request.body.Name
	created, err := e.insert(ctx, t, request)
	if err != nil {
		return provider.Answer{}, err
	}
	remove := func() (operation, error) {
		id, err := uuid.NewRandom()
		if err != nil {
			return operation{}, err
		}
		return e.api.delete(ctx, name, id.String())
	}
	status := "not visible"
	if vm, err := e.api.get(ctx, name); err == nil {
		status = vm.Status
	}
	deleted, first := remove()
	second, again := error(nil), error(nil)
	if isAnswer(first) {
		_, again = remove()
	}
	switch {
	case !isAnswer(first):
		return provider.Answer{}, first
	case !isAnswer(again):
		return provider.Answer{}, again
	}
	if first == nil {
		second = e.awaitOperation(ctx, deleted)
	}
	insertion := e.awaitOperation(ctx, created)
	e.forgetMissing(ctx, t, name)
	if err := errors.Join(answerless(second), answerless(insertion)); err != nil {
		return provider.Answer{}, err
	}
	agrees := first == nil && (again == nil || googleapi.IsNotFound(again) || hasReason(again, "resourceNotReady"))
	return provider.Answered(agrees, "deletion of a machine that is %s: %s; a second deletion: %s; the operation of the creation: %s",
		status, resultOf(errors.Join(first, second)), resultOf(again), resultOf(insertion))
}

// answerless returns an error unless it is what the service has responded.
func answerless(err error) error {
	if isAnswer(err) {
		return nil
	}
	return err
}

func hasReason(err error, reason string) bool {
	response, ok := googleapi.AsError(err)
	return ok && response.Has(reason)
}

func (e *examination) endpoints(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	if len(t.Balancers) == 0 {
		return provider.Answer{}, provider.NotAsked("--load-balancers is not set")
	}
	group, err := endpointGroupOf(t.Balancers[0])
	if err != nil {
		return provider.Answer{}, err
	}
	var texts []string
	agrees := true
	for _, call := range []string{attach, attach, detach, detach} {
		err := e.groups.call(ctx, call, group, []string{t.VM.ID})
		if !isAnswer(err) {
			return provider.Answer{}, err
		}
		agrees = agrees && (err == nil || len(texts)%2 == 1)
		texts = append(texts, call+": "+resultOf(err))
	}
	return provider.Answered(agrees, "%s", strings.Join(texts, "; "))
}

// aliases gives the instance of the check an address, and the same address to another machine.
func (e *examination) aliases(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	if e.op.Name == "" {
		return provider.Answer{}, errNoLaunch
	}
	if err := e.awaitOperation(ctx, e.op); err != nil {
		return provider.Answer{}, err
	}
	before, err := e.interfaceOf(ctx, t.VM.ID)
	if err != nil {
		return provider.Answer{}, err
	}
	// Compute Engine selects an address of the primary range.
	if err := e.update(ctx, t.VM.ID, before, append(slices.Clone(before.AliasIPRanges), aliasRange{Range: "/32"})); err != nil {
		return provider.Answer{}, err
	}
	after, err := e.interfaceOf(ctx, t.VM.ID)
	if err != nil {
		return provider.Answer{}, err
	}
	added := slices.DeleteFunc(slices.Clone(after.AliasIPRanges), func(r aliasRange) bool { return slices.Contains(before.AliasIPRanges, r) })
	if len(added) != 1 {
		return provider.Answered(false, "the interface has the alias ranges %v", after.AliasIPRanges)
	}
	prefix, _ := added[0].prefix()
	other, err := e.interfaceOf(ctx, e.request.body.Name)
	if err != nil {
		return provider.Answer{}, err
	}
	taken := e.update(ctx, e.request.body.Name, other, other.with(prefix.Addr()))
	stale := e.update(ctx, t.VM.ID, before, before.AliasIPRanges)
	removed := e.update(ctx, t.VM.ID, after, before.AliasIPRanges)
	if err := errors.Join(answerless(taken), answerless(stale), answerless(removed)); err != nil {
		return provider.Answer{}, err
	}
	response, refused := googleapi.AsError(stale)
	return provider.Answered(taken != nil && refused && response.Status == http.StatusPreconditionFailed && removed == nil,
		"%s for another machine: %s; a stale fingerprint: %s; its removal: %s", netip.PrefixFrom(prefix.Addr(), prefix.Bits()), resultOf(taken), resultOf(stale), resultOf(removed))
}

func (e *examination) interfaceOf(ctx context.Context, name string) (networkInterface, error) {
	vm, err := e.api.get(ctx, name)
	if err == nil && len(vm.NetworkInterfaces) == 0 {
		err = fmt.Errorf("virtual machine %s has no network interface", name)
	}
	if err != nil {
		return networkInterface{}, err
	}
	return vm.NetworkInterfaces[0], nil
}

func (e *examination) update(ctx context.Context, name string, nic networkInterface, ranges []aliasRange) error {
	if ranges == nil {
		ranges = []aliasRange{}
	}
	op, err := e.api.updateInterface(ctx, name, nic, ranges)
	if err != nil {
		return err
	}
	return e.awaitOperation(ctx, op)
}

// template compares the instance of the check with its request.
func (e *examination) template(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	request, err := e.requestOf(t.Spec)
	if err != nil {
		return provider.Answer{}, err
	}
	if request.template == "" {
		return provider.Answer{}, provider.NotAsked("the template of the check has no argument " + argInstanceTemplate)
	}
	var vm virtualMachine
	if err := e.api.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.instances.get", Method: http.MethodGet, Path: e.api.zonePath("instances", t.VM.ID),
		Query: url.Values{"fields": {vmFields + ",metadata,tags,serviceAccounts"}},
	}, &vm); err != nil {
		return provider.Answer{}, err
	}
	sent := request.body
	labels := maps.Clone(sent.Labels)
	maps.DeleteFunc(labels, func(key, value string) bool { return vm.Labels[key] == value })
	userdata := vm.Metadata != nil && sent.Metadata != nil && slices.Contains(vm.Metadata.Items, sent.Metadata.Items[0])
	var texts []string
	texts = append(texts, fmt.Sprintf("%d labels are missing", len(labels)), fmt.Sprintf("the description is that of the request: %t", vm.Description == sent.Description),
		fmt.Sprintf("the userdata is that of the request: %t", userdata))
	if vm.Scheduling != nil {
		texts = append(texts, fmt.Sprintf("provisioning model %s, on host maintenance %s", vm.Scheduling.ProvisioningModel, vm.Scheduling.OnHostMaintenance))
	}
	if vm.Tags != nil {
		texts = append(texts, fmt.Sprintf("network tags %v", vm.Tags.Items))
	}
	texts = append(texts, fmt.Sprintf("%d service accounts", len(vm.ServiceAccounts)))
	return provider.Answered(len(labels) == 0 && vm.Description == sent.Description && userdata, "%s", strings.Join(texts, "; "))
}

// preemption launches a spot machine and simulates its preemption
// (https://cloud.google.com/compute/docs/instances/simulating-host-maintenance).
func (e *examination) preemption(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	request, err := e.newRequest(ctx, t, func(spec *provider.Spec) {
		args := maps.Clone(spec.Args)
		if args == nil {
			args = map[string]any{}
		}
		args[argProvisioning] = spot
		spec.Args = args
	})
	if err != nil {
		return provider.Answer{}, err
	}
	op, err := e.insert(ctx, t, request)
	if err == nil {
		err = e.awaitOperation(ctx, op)
	}
	if err != nil {
		return provider.Answer{}, err
	}
	name := request.body.Name
	var vm virtualMachine
	if err := wait(ctx, 0, func() (bool, error) {
		vm, err = e.api.get(ctx, name)
		return err == nil && vm.Status == "RUNNING", err
	}); err != nil {
		return provider.Answer{}, err
	}
	var simulated operation
	if err := e.api.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.instances.simulateMaintenanceEvent", Method: http.MethodPost, Path: e.api.zonePath("instances", name, "simulateMaintenanceEvent"),
	}, &simulated); err != nil {
		return provider.Answer{}, err
	}
	found := false
	err = wait(ctx, preemptionDelay, func() (bool, error) {
		stopped, err := e.api.get(ctx, name)
		if isNotFound(err, name) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		found = e.api.preempted(ctx, []virtualMachine{stopped})[vm.ID]
		vm = stopped
		return found, nil
	})
	if err != nil && !errors.Is(err, provider.ErrLate) {
		return provider.Answer{}, err
	}
	return provider.Answered(found, "status %s, an operation with its id was found: %t", vm.Status, found)
}

// wait calls done until it returns true, or an error other than throttling.
func wait(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	return provider.AwaitAnswer(ctx, limit, googleapi.IsThrottled, done)
}

// boot waits until the console shows what the userdata writes.
func (e *examination) boot(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	err := wait(ctx, consoleDelay, func() (bool, error) {
		var output struct {
			Contents string `json:"contents"`
		}
		err := e.api.client.DoJSON(ctx, googleapi.Call{
			Name: "compute.instances.getSerialPortOutput", Method: http.MethodGet, Path: e.api.zonePath("instances", t.VM.ID, "serialPort"),
			Query: url.Values{"port": {"1"}},
		}, &output)
		return strings.Contains(output.Contents, provider.BootMark(t.VM.ID)), err
	})
	if errors.Is(err, provider.ErrLate) {
		return provider.Answered(false, "the console of %s does not show it after %s: the image may have no cloud-init, as those of Debian", t.VM.ID, consoleDelay)
	}
	if err != nil {
		return provider.Answer{}, err
	}
	return provider.Answered(true, "the console of %s shows it", t.VM.ID)
}
