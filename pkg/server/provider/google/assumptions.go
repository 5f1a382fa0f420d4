// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

const (
	pageInsert = "https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert"
	pageSpot   = "https://cloud.google.com/compute/docs/instances/spot"
	pageAlias  = "https://cloud.google.com/vpc/docs/configure-alias-ip-ranges"
)

const (
	// listDelay and preemptionDelay are how long a question waits for a list and a preemption.
	listDelay, preemptionDelay = visibilityDelay, 5 * time.Minute
	// consoleDelay is how long a console may not show the end of a boot.
	consoleDelay = 6 * time.Minute
)

var _ provider.Examiner = (*Options)(nil)

// Examine returns the questions to Compute Engine.
func (o *Options) Examine(shard provider.Shard) (provider.Examination, error) {
	api, err := NewAPI(o, shard)
	if err != nil {
		return provider.Examination{}, err
	}
	return examine(api), nil
}

func examine(api *API) provider.Examination {
	e := &examination{api: api, groups: newEndpointGroups(api)}
	return provider.Examination{Assumptions: []provider.Assumption{
		{
			Subject: "free addresses", Ask: e.freeAddresses,
			Expected: "a subnetwork shows the free addresses of its primary range, under no name",
		},
		{
			Subject: "missing machines", Ask: e.missing,
			Expected: "the reason is notFound, and the message has /instances/NAME",
		},
		{
			Subject: "long descriptions", Ask: e.description,
			Expected: fmt.Sprintf("a description may have %d characters", maxDescription),
		},
		{
			Subject: "request ids", Question: "the same id and content", Ask: e.sameRequest, Source: pageInsert,
			Expected: "the response has the first operation",
		},
		{
			Subject: "request ids", Question: "the same id with other userdata", Ask: e.otherRequest,
			Expected: "400 with a message about the request id, or the first operation: both are handled",
		},
		{
			Subject: "request ids of failed operations", Ask: e.failedRequest,
			Expected: "the failed operation, or a new one: both are handled",
		},
		{
			Subject: "lists by labels", Ask: e.labels,
			Expected: fmt.Sprintf("a list by labels has its kind, and shows a new machine after %s at the latest", listDelay),
		},
		{
			Subject: "early deletions", Ask: e.earlyDeletion,
			Expected: "a machine that is being created can be deleted; a second deletion is refused with resourceNotReady or gives an operation",
		},
		{
			Subject: "network endpoints", Ask: e.endpoints,
			Expected: "attaching twice, and detaching what is absent, succeeds or is refused",
		},
		{
			Subject: "alias ranges", Question: "an address of another machine, and a stale fingerprint", Ask: e.aliases, Source: pageAlias,
			Expected: "the address is refused as long as the other machine has it, and a stale fingerprint with 412",
		},
		{
			Subject: "instance templates", Ask: e.template,
			Expected: "the labels, the description and the userdata of the request replace those of the template",
			Source:   "https://cloud.google.com/compute/docs/instances/create-vm-from-instance-template",
		},
		{
			Subject: "preemptions", Ask: e.preemption, Source: pageSpot,
			Expected: "an operation " + operationPreempted + " has the id of the machine, which is stopped and not deleted",
		},
		{
			Subject: "first boot", Ask: e.boot, Source: "https://cloudinit.readthedocs.io/en/latest/reference/datasources/gce.html",
			Expected: "the image runs the userdata",
		},
	}}
}

// examination asks the questions. Those about one launch follow each other.
type examination struct {
	api    *API
	groups *endpointGroups

	// request is the launch that several questions are about. Its name is empty if there was none.
	request launchRequest
	op      operation
	began   time.Time
}

// launchRequest is a request to create a machine.
type launchRequest struct {
	body         virtualMachine
	id, template string
}

var errNoLaunch = provider.NotAsked("the launch for it has failed")

// newRequest returns the request for another machine of the check.
func (e *examination) newRequest(ctx context.Context, t *provider.Trial, change func(*provider.Spec)) (launchRequest, error) {
	spec, err := t.New(ctx)
	if err != nil {
		return launchRequest{}, err
	}
	change(&spec)
	request, err := e.requestOf(spec)
	if err != nil {
		t.Forget(spec.ID)
	}
	return request, err
}

func (e *examination) requestOf(spec provider.Spec) (launchRequest, error) {
	args, err := e.api.options.arguments(spec.Args)
	if err != nil {
		return launchRequest{}, err
	}
	body, err := e.api.body(spec, args)
	if err != nil {
		return launchRequest{}, err
	}
	id, err := requestIDOf(cloud.Request{Spec: spec, Token: spec.ID})
	return launchRequest{body: body, id: id, template: args.instanceTemplate}, err
}

// insert requests a machine, even if ctx is done meanwhile. A machine with the name of a request
// exists or will exist then, so its provider id is known.
func (e *examination) insert(ctx context.Context, t *provider.Trial, request launchRequest) (operation, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.api.timeout)
	defer cancel()
	op, err := e.api.insert(ctx, request.body, request.id, request.template)
	switch {
	case err == nil:
		t.Created(request.body.Name, providerID(e.api.options.Project, e.api.shard.Zone, request.body.Name))
	case isRefused(err):
		t.Forget(request.body.Name)
	}
	return op, err
}

// forgetMissing forgets a machine that does not exist.
func (e *examination) forgetMissing(ctx context.Context, t *provider.Trial, name string) {
	if _, found, err := e.api.find(ctx, name); err == nil && !found {
		t.Forget(name)
	}
}

// awaitOperation waits for an operation without a limit but the limit of ctx.
func (e *examination) awaitOperation(ctx context.Context, op operation) error {
	until, has := ctx.Deadline()
	if !has {
		until = time.Now().Add(time.Hour)
	}
	return e.api.await(ctx, op, until)
}

// resultOf describes the result of a call and its operation.
func resultOf(err error) string {
	if failed, ok := errors.AsType[*operationFailure](err); ok {
		return "an operation that fails with " + strings.Join(failed.codes, ", ")
	}
	if response, ok := googleapi.AsError(err); ok {
		return fmt.Sprintf("%d %s: %s", response.Status, strings.Join(response.Reasons, ", "), response.Message)
	}
	return "accepted"
}

// isAnswer reports whether an error is what the service has responded, and not the lack of a
// response or of a permission.
func isAnswer(err error) bool {
	response, ok := googleapi.AsError(err)
	return err == nil || isFailure(err) || ok && isRefused(err) && response.Status != http.StatusForbidden && response.Status != http.StatusUnauthorized
}

func (e *examination) freeAddresses(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	configured := e.api.options.Subnets[t.Spec.Subnet]
	if configured.StackType == ipv6Only {
		return provider.Answer{}, provider.NotAsked("subnet " + t.Spec.Subnet + " has IPv6 addresses only")
	}
	read, err := e.api.subnetwork(ctx, configured)
	if err != nil {
		return provider.Answer{}, err
	}
	if read.Utilization == nil {
		return provider.Answered(false, "subnetwork %s shows no utilization, so all of %s counts as free", read.Name, read.Range)
	}
	for _, part := range read.Utilization.IPv4 {
		if part.Range == "" && part.Free != nil {
			return provider.Answered(true, "subnetwork %s has %d free addresses in %s", read.Name, *part.Free, read.Range)
		}
	}
	return provider.Answered(false, "subnetwork %s shows the utilization of other ranges than its primary range %s", read.Name, read.Range)
}

func (e *examination) missing(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	id, err := puidv7.New(t.Spec.Kind)
	if err != nil {
		return provider.Answer{}, err
	}
	_, err = e.api.get(ctx, id.String())
	response, ok := googleapi.AsError(err)
	if !ok {
		return provider.Answer{}, err
	}
	return provider.Answered(isNotFound(err, id.String()) && response.Has("notFound"), "%s", resultOf(err))
}

// description launches the machine that the next questions are about.
func (e *examination) description(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	request, err := e.newRequest(ctx, t, func(spec *provider.Spec) {
		// The key makes the description as long as possible.
		spec.Origin.IdempotencyKey = "k"
		if text, err := newIdentity(e.api.shard, *spec).description(); err == nil {
			spec.Origin.IdempotencyKey = strings.Repeat("k", 1+maxDescription-len(text))
		}
	})
	if err != nil {
		return provider.Answer{}, err
	}
	e.began = time.Now()
	op, err := e.insert(ctx, t, request)
	if err != nil && !isAnswer(err) {
		return provider.Answer{}, err
	}
	if err != nil {
		return provider.Answered(false, "%d characters: %s", len(request.body.Description), resultOf(err))
	}
	e.request, e.op = request, op
	return provider.Answered(true, "%d characters: accepted", len(request.body.Description))
}

func (e *examination) sameRequest(ctx context.Context, _ *provider.Trial) (provider.Answer, error) {
	if e.op.Name == "" {
		return provider.Answer{}, errNoLaunch
	}
	op, err := e.api.insert(ctx, e.request.body, e.request.id, e.request.template)
	if !isAnswer(err) {
		return provider.Answer{}, err
	}
	return provider.Answered(op.Name == e.op.Name, "%s%s, the first operation is %s", op.Name, refusal(err), e.op.Name)
}

// refusal describes an error, or is empty without an error.
func refusal(err error) string {
	if err == nil {
		return ""
	}
	return resultOf(err)
}

func (e *examination) otherRequest(ctx context.Context, _ *provider.Trial) (provider.Answer, error) {
	if e.op.Name == "" {
		return provider.Answer{}, errNoLaunch
	}
	other := e.request.body
	if other.Metadata == nil || len(other.Metadata.Items) == 0 {
		return provider.Answer{}, provider.NotAsked("the machine has no userdata")
	}
	items := slices.Clone(other.Metadata.Items)
	items[0].Value += "# other\n"
	other.Metadata = &metadata{Items: items}
	op, err := e.api.insert(ctx, other, e.request.id, e.request.template)
	if !isAnswer(err) {
		return provider.Answer{}, err
	}
	response, refused := googleapi.AsError(err)
	return provider.Answered(op.Name == e.op.Name || refused && response.Status == http.StatusBadRequest && mentionsRequestID(response.Message),
		"%s%s, the first operation is %s", op.Name, refusal(err), e.op.Name)
}

// failedRequest requests a machine with the address of the instance of the check.
func (e *examination) failedRequest(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	vm, err := e.api.get(ctx, t.VM.ID)
	if err != nil {
		return provider.Answer{}, err
	}
	if len(vm.NetworkInterfaces) == 0 || vm.NetworkInterfaces[0].NetworkIP == "" {
		return provider.Answer{}, provider.NotAsked("the instance of the check has no IPv4 address")
	}
	request, err := e.newRequest(ctx, t, func(*provider.Spec) {})
	if err != nil {
		return provider.Answer{}, err
	}
	request.body.NetworkInterfaces = slices.Clone(request.body.NetworkInterfaces)
	request.body.NetworkInterfaces[0].NetworkIP = vm.NetworkInterfaces[0].NetworkIP
	first, err := e.insert(ctx, t, request)
	if err != nil {
		if !isAnswer(err) {
			return provider.Answer{}, err
		}
		return provider.Answer{}, provider.NotAsked("a used address is refused before there is an operation, so no operation fails: " + resultOf(err))
	}
	failure := e.awaitOperation(ctx, first)
	if !isFailure(failure) {
		return provider.Answer{}, errors.Join(provider.NotAsked("the operation has not failed"), failure)
	}
	second, err := e.insert(ctx, t, request)
	switch {
	case !isAnswer(err):
		return provider.Answer{}, err
	case err == nil:
		if err := e.awaitOperation(ctx, second); err != nil && !isFailure(err) {
			return provider.Answer{}, err
		}
	}
	e.forgetMissing(ctx, t, request.body.Name)
	kind := "the failed operation"
	if second.Name != first.Name {
		kind = "another operation, " + second.Name + refusal(err)
	}
	return provider.Answered(true, "%s: %s", resultOf(failure), kind)
}

func (e *examination) labels(ctx context.Context, _ *provider.Trial) (provider.Answer, error) {
	if e.op.Name == "" {
		return provider.Answer{}, errNoLaunch
	}
	name := e.request.body.Name
	err := wait(ctx, listDelay, func() (bool, error) {
		list, err := e.api.list(ctx)
		return slices.ContainsFunc(list, func(vm virtualMachine) bool { return vm.Name == name }), err
	})
	switch {
	case errors.Is(err, provider.ErrLate):
		return provider.Answered(false, "%s is not listed after %s", name, listDelay)
	case errors.Is(err, errIncomplete):
		return provider.Answered(false, "%v", err)
	case err != nil:
		return provider.Answer{}, err
	}
	return provider.Answered(true, "%s was listed %s after the request", name, time.Since(e.began).Round(100*time.Millisecond))
}
