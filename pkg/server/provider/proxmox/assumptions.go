// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

const (
	pageOptions = "https://pve.proxmox.com/pve-docs/datacenter.cfg.5.html"
	pageClone   = "https://git.proxmox.com/?p=qemu-server.git;a=blob;f=src/PVE/API2/Qemu.pm"
	pageFile    = "https://git.proxmox.com/?p=pve-common.git;a=blob;f=src/PVE/File.pm"
)

const (
	// questionInterval is the time between two reads while a question waits for something.
	questionInterval = 200 * time.Millisecond
	// lateList is how long a question waits until a list is up to date.
	lateList = 2 * time.Minute
)

var _ provider.Examiner = (*Options)(nil)

// Examine returns the questions to Proxmox VE.
func (o *Options) Examine(shard provider.Shard) (provider.Examination, error) {
	api, err := NewAPI(o, shard)
	if err != nil {
		return provider.Examination{}, err
	}
	return examine(api), nil
}

func examine(api *API) provider.Examination {
	e := &examination{api: api}
	return provider.Examination{Assumptions: []provider.Assumption{
		{
			Subject: "tags", Ask: e.tags, Source: pageOptions,
			Expected: "the machine has the tags of its shard and its instance, unless user-tag-access or registered-tags limit them",
		},
		{
			Subject: "used VMIDs", Question: "on the node that has the VMID", Ask: e.usedHere, Source: pageClone,
			Expected: "the call or its task is refused, with one of the texts " + strings.Join(vmidUsed, ", "),
		},
		{
			Subject: "used VMIDs", Question: "on another node", Ask: e.usedElsewhere, Source: pageFile,
			Expected: "the call or its task is refused, with one of the texts " + strings.Join(vmidUsed, ", "),
		},
		{
			Subject: "texts of errors", Question: "start of a machine that runs", Ask: e.startTwice, Source: pageClone,
			Expected: alreadyRunning,
		},
		{
			Subject: "texts of errors", Question: "configuration of a machine that does not exist", Ask: e.noConfiguration,
			Expected: "404, does not exist, or no such file",
		},
		{
			Subject: "texts of errors", Question: "deletion of an image that does not exist", Ask: e.noImage,
			Expected: "accepted, does not exist, or no such file",
		},
		{
			Subject: "texts of errors", Question: "a storage without space, a lock that is held",
			Expected: strings.Join(append(slices.Clone(outOfSpace), lockTimeout), ", "),
			Ask: func(context.Context, *provider.Trial) (provider.Answer, error) {
				return provider.Answer{}, provider.NotAsked("a check does not fill storages and does not hold locks")
			},
		},
		{
			Subject: "other nodes", Ask: e.otherNodes,
			Expected: fmt.Sprintf("every endpoint lists a new machine with its tags after %s at the latest, and with its name soon", visibilityDelay),
		},
		{
			Subject: "first boot", Expected: "the image runs the userdata",
			Source: "https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html",
			Ask: func(context.Context, *provider.Trial) (provider.Answer, error) {
				return provider.Answer{}, provider.NotAsked("the API does not show consoles: look at the console of the machine in the web interface")
			},
		},
	}}
}

// examination asks the questions.
type examination struct{ api *API }

// machine returns the virtual machine of an instance.
func (e *examination) machine(ctx context.Context, id string) (virtualMachine, *inventory, error) {
	found, err := e.api.inventory(ctx)
	if err != nil {
		return virtualMachine{}, nil, err
	}
	all := found.of(id)
	if len(all) != 1 {
		return virtualMachine{}, nil, fmt.Errorf("instance %s has %d virtual machines", id, len(all))
	}
	return all[0], found, nil
}

// resultOf describes the result of a call and its task.
func resultOf(err error) string {
	if failed, ok := errors.AsType[*taskError](err); ok {
		return "a task that ends with " + failed.exit
	}
	if response, ok := errors.AsType[*apiError](err); ok {
		return fmt.Sprintf("%d %s", response.status, response.message)
	}
	return "accepted"
}

// isAnswer reports whether an error is what the cluster has responded, and not the lack of a
// response or of a privilege.
func isAnswer(err error) bool {
	_, failed := errors.AsType[*taskError](err)
	response, responded := errors.AsType[*apiError](err)
	return err == nil || failed || responded && response.isDefinite() && response.status != http.StatusUnauthorized && response.status != http.StatusForbidden
}

// await waits for a task without a limit but the limit of ctx.
func (e *examination) await(ctx context.Context, task upid, err error) error {
	if err != nil {
		return err
	}
	until, has := ctx.Deadline()
	if !has {
		until = time.Now().Add(time.Hour)
	}
	return e.api.await(ctx, task, until)
}

func (e *examination) tags(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	var options struct {
		Access     any `json:"user-tag-access"`
		Registered any `json:"registered-tags"`
		Style      any `json:"tag-style"`
	}
	if err := e.api.client.get(ctx, "cluster/options", nil, &options); err != nil {
		return provider.Answer{}, err
	}
	vm, _, err := e.machine(ctx, t.VM.ID)
	if err != nil {
		return provider.Answer{}, err
	}
	config, err := e.api.client.config(ctx, vm.node, vm.vmid)
	if err != nil {
		return provider.Answer{}, err
	}
	has := config.text("tags")
	complete := hasTags(e.api.shard, has) && slices.Contains(splitTags(has), instanceTag+t.VM.ID)
	limited := options.Access != nil || options.Registered != nil
	return provider.Answered(complete || limited, "the machine has the tags %q; user-tag-access: %s, registered-tags: %s, tag-style: %s",
		has, orDefault(options.Access), orDefault(options.Registered), orDefault(options.Style))
}

func orDefault(value any) string {
	if value == nil {
		return "default"
	}
	return fmt.Sprint(value)
}

func (e *examination) usedHere(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	return e.used(ctx, t, func(own, node string) bool { return own == node }, "the node of the machine has no template")
}

func (e *examination) usedElsewhere(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	return e.used(ctx, t, func(own, node string) bool { return own != node }, "no other node has the template")
}

// used requests a clone with the VMID of the instance of the check, which the cluster must refuse.
func (e *examination) used(ctx context.Context, t *provider.Trial, isNode func(own, node string) bool, otherwise provider.NotAsked) (provider.Answer, error) {
	vm, found, err := e.machine(ctx, t.VM.ID)
	if err != nil {
		return provider.Answer{}, err
	}
	image, err := e.api.options.Image.with(t.Spec.Args)
	if err != nil {
		return provider.Answer{}, err
	}
	p := plan{spec: t.Spec, image: image, subnet: e.api.options.Subnets[t.Spec.Subnet]}
	for _, resource := range found.resources {
		if resource.Type != typeVM || !bool(resource.Template) || resource.Name != image.Template || !found.online[resource.Node] || !isNode(vm.node, resource.Node) {
			continue
		}
		form, err := e.api.cloneForm(&launch{
			id: t.VM.ID, vmid: vm.vmid, source: source{vmid: resource.VMID, node: resource.Node}, target: resource.Node,
		}, p)
		if err != nil {
			return provider.Answer{}, err
		}
		task, err := e.api.client.clone(ctx, resource.Node, resource.VMID, form)
		err = e.await(ctx, task, err)
		if !isAnswer(err) {
			return provider.Answer{}, err
		}
		return provider.Answered(is(err, vmidUsed...) || isTaskError(err, vmidUsed...), "node %s: %s", resource.Node, resultOf(err))
	}
	return provider.Answer{}, otherwise
}

func (e *examination) startTwice(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	vm, _, err := e.machine(ctx, t.VM.ID)
	if err != nil {
		return provider.Answer{}, err
	}
	task, err := e.api.client.start(ctx, vm.node, vm.vmid)
	err = e.await(ctx, task, err)
	if !isAnswer(err) {
		return provider.Answer{}, err
	}
	return provider.Answered(is(err, alreadyRunning) || isTaskError(err, alreadyRunning), "%s", resultOf(err))
}

func (e *examination) noConfiguration(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	vm, found, err := e.machine(ctx, t.VM.ID)
	if err != nil {
		return provider.Answer{}, err
	}
	absent := lastVMID
	for slices.ContainsFunc(found.resources, func(r entry) bool { return r.VMID == absent }) {
		absent--
	}
	_, err = e.api.client.config(ctx, vm.node, absent)
	if !isAnswer(err) {
		return provider.Answer{}, err
	}
	return provider.Answered(isNotExist(err), "virtual machine %d: %s", absent, resultOf(err))
}

// noImage deletes an image that only the instance of the check could have, and of another name.
func (e *examination) noImage(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	vm, _, err := e.machine(ctx, t.VM.ID)
	if err != nil {
		return provider.Answer{}, err
	}
	volume := e.api.userdataVolume(t.VM.ID + "-absent")
	task, err := e.api.client.removeVolume(ctx, vm.node, volume)
	err = e.await(ctx, task, err)
	if !isAnswer(err) {
		return provider.Answer{}, err
	}
	return provider.Answered(err == nil || isNotExist(err) || isTaskError(err, "does not exist", "no such file"), "%s: %s", volume, resultOf(err))
}

// otherNodes launches another machine, and reads the lists of all endpoints.
func (e *examination) otherNodes(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	if len(e.api.client.endpoints) < 2 {
		return provider.Answer{}, provider.NotAsked("the options have one endpoint")
	}
	spec, err := t.New(ctx)
	if err != nil {
		return provider.Answer{}, err
	}
	for {
		vm, err := e.api.Launch(ctx, cloud.Request{Spec: spec, Token: spec.ID})
		if _, rejected := errors.AsType[*cloud.Rejection](err); rejected {
			t.Forget(spec.ID)
		}
		if err == nil {
			t.Created(spec.ID, vm.ProviderID)
			break
		}
		if !errors.Is(err, cloud.ErrInProgress) {
			return provider.Answer{}, err
		}
		select {
		case <-ctx.Done():
			return provider.Answer{}, context.Cause(ctx)
		case <-time.After(questionInterval):
		}
	}
	began := time.Now()
	agrees := true
	var texts []string
	for _, endpoint := range e.api.client.endpoints {
		single := &client{endpoints: []*url.URL{endpoint}, token: e.api.client.token, http: e.api.client.http}
		var tags, name time.Duration
		for name == 0 || tags == 0 {
			list, err := single.resources(ctx)
			if err != nil {
				return provider.Answer{}, fmt.Errorf("endpoint %s: %w", endpoint.Host, err)
			}
			since := max(time.Since(began), 1)
			for _, resource := range list {
				if slices.Contains(splitTags(resource.Tags), instanceTag+spec.ID) && tags == 0 {
					tags = since
				}
				if resource.Name == spec.ID && name == 0 {
					name = since
				}
			}
			if since > lateList {
				break
			}
			select {
			case <-ctx.Done():
				return provider.Answer{}, context.Cause(ctx)
			case <-time.After(questionInterval):
			}
		}
		agrees = agrees && tags > 0 && tags <= visibilityDelay && name > 0
		texts = append(texts, fmt.Sprintf("%s: tags %s, name %s", endpoint.Host, describeDelay(tags), describeDelay(name)))
	}
	return provider.Answered(agrees, "%s", strings.Join(texts, "; "))
}

// describeDelay describes when a list has shown something, 0 for never.
func describeDelay(d time.Duration) string {
	if d == 0 {
		return fmt.Sprintf("not after %s", lateList)
	}
	return "after " + d.Round(100*time.Millisecond).String()
}
