// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// plan is what a launch makes.
type plan struct {
	spec provider.Spec
	args arguments
}

// Launch requests the virtual machine of a request and waits for the operation. The request
// id makes a repetition find the same operation, and the name, which is the instance id,
// makes any other request fail.
func (a *API) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	args, err := a.options.arguments(r.Args)
	if err == nil {
		err = validateSpec(r.Spec)
	}
	if err != nil {
		return cloud.VM{}, rejectGroup(r.Spec, err)
	}
	p := plan{spec: r.Spec, args: args}
	body, err := a.body(r.Spec, args)
	if err != nil {
		return cloud.VM{}, rejectGroup(r.Spec, err)
	}
	requestID, err := requestIDOf(r)
	if err != nil {
		return cloud.VM{}, rejectGroup(r.Spec, err)
	}
	until := time.Now().Add(a.timeout)
	a.step("request the machine")
	op, err := a.insert(ctx, body, requestID, args.instanceTemplate)
	if err != nil {
		return a.afterInsert(ctx, p, err)
	}
	a.step("wait for the operation")
	if err := a.await(ctx, op, until); err != nil {
		return a.afterOperation(ctx, p, err)
	}
	return a.launched(ctx, r.ID)
}

// requestIDOf returns the UUID of a request: the one in the instance id, and for each further
// token another one that follows from it.
func requestIDOf(r cloud.Request) (string, error) {
	id, err := puidv7.Parse(r.ID)
	if err != nil {
		return "", err
	}
	if r.Token == r.ID {
		return id.UUID.String(), nil
	}
	return uuid.NewSHA1(id.UUID, []byte(r.Token)).String(), nil
}

// launched returns the machine of an operation that has finished. If it does not exist, it is
// not visible yet, or another client has deleted it: the same request would never create
// it again.
func (a *API) launched(ctx context.Context, id string) (cloud.VM, error) {
	a.step("read the machine")
	m, found, err := a.find(ctx, id)
	switch {
	case err != nil:
		return cloud.VM{}, accepted(err)
	case !found:
		return cloud.VM{}, fmt.Errorf("virtual machine %s was created and is not found: %w", id, cloud.ErrTokenUsed)
	}
	a.step("return the machine")
	return m.VM, nil
}

// accepted returns the error of a call that follows one that may have changed something: a
// throttled one would count as a launch that has changed nothing.
func accepted(err error) error {
	if errors.Is(err, cloud.ErrThrottled) || googleapi.IsThrottled(err) {
		return fmt.Errorf("%w: %v", cloud.ErrInProgress, err) //nolint:errorlint // must not be ErrThrottled
	}
	return err
}

// afterInsert returns what an error of the request means.
func (a *API) afterInsert(ctx context.Context, p plan, err error) (cloud.VM, error) {
	response, ok := googleapi.AsError(err)
	switch {
	case ok && response.Has("alreadyExists"):
		return a.adopt(ctx, p, err)
	case ok && response.Status == http.StatusBadRequest && mentionsRequestID(response.Message):
		return cloud.VM{}, fmt.Errorf("%w: %w", cloud.ErrTokenUsed, err)
	}
	return cloud.VM{}, p.rejectResponse(err)
}

// mentionsRequestID reports whether a message is about the request id, which is in order: it
// was used for a request with other content, such as other userdata.
func mentionsRequestID(message string) bool {
	message = strings.ToLower(message)
	return strings.Contains(message, "requestid") || strings.Contains(message, "request id")
}

// adopt returns the machine that has the name of the instance, if it is the one of the
// instance: an earlier request has created it.
func (a *API) adopt(ctx context.Context, p plan, cause error) (cloud.VM, error) {
	one, err := a.get(ctx, p.spec.ID)
	switch {
	case isNotFound(err, p.spec.ID):
		return cloud.VM{}, fmt.Errorf("%w: %w", cloud.ErrTokenUsed, cause)
	case err != nil:
		return cloud.VM{}, accepted(err)
	}
	identity, ours, err := a.identify(one)
	switch {
	case err != nil:
		return cloud.VM{}, err
	case !ours:
		return cloud.VM{}, rejectGroup(p.spec, fmt.Errorf("the name is that of a virtual machine that is no instance of this shard: %w", cause))
	}
	if one.isBeingCreated() {
		return cloud.VM{}, fmt.Errorf("virtual machine %s: %w", one.Name, errCreating)
	}
	return a.machine(one, identity), nil
}

// afterOperation returns what an error of the operation means. One that is not known may have
// left a machine.
func (a *API) afterOperation(ctx context.Context, p plan, err error) (cloud.VM, error) {
	failed, ok := errors.AsType[*operationFailure](err)
	if !ok {
		return cloud.VM{}, accepted(err)
	}
	if failed.has("RESOURCE_ALREADY_EXISTS") {
		return a.adopt(ctx, p, err)
	}
	if rejection := p.rejectCodes(failed); rejection != nil {
		return cloud.VM{}, rejection
	}
	m, found, findErr := a.Find(ctx, p.spec.ID)
	switch {
	case findErr != nil:
		return cloud.VM{}, errors.Join(err, accepted(findErr))
	case found:
		return m, nil
	}
	return cloud.VM{}, &cloud.Rejection{Scope: p.narrow(), RetryAfter: retryAfter, Err: err}
}
