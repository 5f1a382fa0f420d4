// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// plan is the virtual machine that a launch creates.
type plan struct{ spec provider.Spec }

// Launch requests the virtual machine of a request and waits for the operation. If the
// request is repeated, the request id selects the same operation. Any other request fails,
// because the name, which is the instance id, is used.
func (a *API) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	args, err := a.options.arguments(r.Args)
	if err == nil {
		err = validateSpec(r.Spec)
	}
	if err != nil {
		return cloud.VM{}, rejectGroup(r.Spec, err)
	}
	if r.Market == "" {
		r.Market = a.options.Market(r.Args)
	}
	p := plan{spec: r.Spec}
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

// requestIDOf returns the UUID for a request. It is the UUID in the instance id for the first
// token, and a UUID derived from it for each further token.
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

// launched returns the VM of a finished operation. If the VM does not exist, it is not
// visible yet, or another client has deleted it. The same request would not create it again.
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

// accepted converts the error of a call after a request that may have changed something. It
// hides cloud.ErrThrottled, which would mean that the launch has changed nothing.
func accepted(err error) error {
	if errors.Is(err, cloud.ErrThrottled) || googleapi.IsThrottled(err) {
		return fmt.Errorf("%w: %v", cloud.ErrInProgress, err) //nolint:errorlint // must not be ErrThrottled
	}
	return err
}

// afterInsert converts the error of a request to create a virtual machine.
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

// mentionsRequestID reports whether a message is about the request id. The id is valid, so it
// was used for a request with other content, such as other userdata.
func mentionsRequestID(message string) bool {
	message = strings.ToLower(message)
	return strings.Contains(message, "requestid") || strings.Contains(message, "request id")
}

// adopt returns the VM with the name of the instance, if an earlier request of the instance
// has created it.
func (a *API) adopt(ctx context.Context, p plan, cause error) (cloud.VM, error) {
	vm, err := a.get(ctx, p.spec.ID)
	switch {
	case isNotFound(err, p.spec.ID):
		return cloud.VM{}, fmt.Errorf("%w: %w", cloud.ErrTokenUsed, cause)
	case err != nil:
		return cloud.VM{}, accepted(err)
	}
	identity, unidentified, ours := a.identify(vm)
	if !ours {
		return cloud.VM{}, rejectGroup(p.spec, fmt.Errorf("the name is that of a virtual machine that is no instance of this shard: %w", cause))
	}
	if vm.isBeingCreated() {
		return cloud.VM{}, fmt.Errorf("virtual machine %s: %w", vm.Name, errCreating)
	}
	adopted := a.vm(vm, identity)
	adopted.Unidentified = unidentified
	return adopted, nil
}

// afterOperation converts the error of an operation. After an unknown error the VM may exist.
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
	vm, found, findErr := a.Find(ctx, p.spec.ID)
	switch {
	case findErr != nil:
		return cloud.VM{}, errors.Join(err, accepted(findErr))
	case found:
		return vm, nil
	}
	return cloud.VM{}, &cloud.Rejection{Scope: p.narrow(), RetryAfter: retryAfter, Err: err}
}

// userdataKey is the key of the userdata in the metadata
// (https://cloudinit.readthedocs.io/en/latest/reference/datasources/gce.html).
const userdataKey = "user-data"

// cloudPlatform is the default scope of a service account. The account's roles limit its
// access
// (https://cloud.google.com/compute/docs/access/service-accounts#scopes_best_practice).
const cloudPlatform = "https://www.googleapis.com/auth/cloud-platform"

// body returns the request body that creates the virtual machine of a spec.
func (a *API) body(spec provider.Spec, args arguments) (virtualMachine, error) {
	subnet, known := a.options.Subnets[spec.Subnet]
	if !known {
		return virtualMachine{}, fmt.Errorf("subnet %q is not configured", spec.Subnet)
	}
	description, err := newIdentity(a.shard, spec).description()
	if err != nil {
		return virtualMachine{}, err
	}
	labels := a.labels(spec, args.labels)
	vm := virtualMachine{
		Name:        spec.ID,
		Description: description,
		MachineType: fmt.Sprintf("zones/%s/machineTypes/%s", a.shard.Zone, spec.Type.Name),
		Labels:      labels,
		Metadata:    newMetadata(spec, args),
		NetworkInterfaces: []networkInterface{{
			Subnetwork: fmt.Sprintf("projects/%s/regions/%s/subnetworks/%s", a.subnetworkProject(subnet), a.shard.Region, subnet.Subnetwork),
			StackType:  subnet.StackType,
		}},
	}
	if args.externalIP {
		vm.NetworkInterfaces[0].AccessConfigs = []accessConfig{{Name: "external", Type: "ONE_TO_ONE_NAT"}}
	}
	if len(args.networkTags) > 0 {
		vm.Tags = &networkTags{Items: args.networkTags}
	}
	if args.image != "" {
		vm.Disks = []disk{a.bootDisk(args, labels)}
	}
	if args.serviceAccount != "" {
		scopes := args.scopes
		if len(scopes) == 0 {
			scopes = []string{cloudPlatform}
		}
		vm.ServiceAccounts = []serviceAccount{{Email: args.serviceAccount, Scopes: scopes}}
	}
	switch args.provisioning {
	case spot:
		// A preempted VM is stopped and not deleted, so that the instance can be reported as
		// preempted. The server deletes it.
		vm.Scheduling = &scheduling{
			ProvisioningModel: spot, InstanceTerminationAction: "STOP", OnHostMaintenance: "TERMINATE", AutomaticRestart: new(bool),
		}
	case standard:
		vm.Scheduling = &scheduling{ProvisioningModel: standard}
	}
	return vm, nil
}

// bootDisk returns a disk that is deleted together with the virtual machine.
func (a *API) bootDisk(args arguments, labels map[string]string) disk {
	params := &diskParams{SourceImage: args.image, DiskSizeGB: args.diskGB, Labels: labels}
	if args.diskType != "" {
		params.DiskType = fmt.Sprintf("zones/%s/diskTypes/%s", a.shard.Zone, args.diskType)
	}
	return disk{Boot: true, AutoDelete: true, InitializeParams: params}
}

// newMetadata returns the metadata of a virtual machine, or nil.
func newMetadata(spec provider.Spec, args arguments) *metadata {
	var items []metadataItem
	if len(spec.Userdata) > 0 {
		items = append(items, metadataItem{Key: userdataKey, Value: string(spec.Userdata)})
	}
	for _, key := range slices.Sorted(maps.Keys(args.metadata)) {
		items = append(items, metadataItem{Key: key, Value: args.metadata[key]})
	}
	if len(items) == 0 {
		return nil
	}
	return &metadata{Items: items}
}

const (
	// retryAfter is the delay after a rejection that a user has to correct.
	retryAfter = 30 * time.Second
	// capacityRetryAfter is the delay after a rejection for lack of capacity.
	capacityRetryAfter = 3 * time.Minute
	// quotaRetryAfter is the delay after a quota was exceeded. Deletions make room.
	quotaRetryAfter = 2 * time.Minute
)

// rejectGroup rejects the requests of a group, whose arguments have caused an error.
func rejectGroup(spec provider.Spec, err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Group: spec.Group}, RetryAfter: retryAfter, Err: err}
}

// narrow returns the scope of requests with the same group, type, market and subnet.
func (p plan) narrow() cloud.Scope {
	return cloud.Scope{Group: p.spec.Group, Type: p.spec.Type.Name, Market: p.spec.Market, Subnet: p.spec.Subnet}
}

// market returns the scope of requests with the same type and market. If an instance template decides
// about the market, it concerns only the group, whose machines have the same template.
func (p plan) market() cloud.Scope {
	s := cloud.Scope{Type: p.spec.Type.Name, Market: p.spec.Market}
	if s.Market == "" {
		s.Group = p.spec.Group
	}
	return s
}

// Error codes of operations that have created nothing, without the suffix _WITH_DETAILS
// (https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation).
var (
	noCapacity   = []string{"ZONE_RESOURCE_POOL_EXHAUSTED", "RESOURCE_POOL_EXHAUSTED", "STOCKOUT"}
	noAddresses  = []string{"IP_SPACE_EXHAUSTED"}
	overQuota    = []string{"QUOTA_EXCEEDED", "LIMIT_EXCEEDED"}
	invalidCodes = []string{"INVALID", "RESOURCE_NOT_FOUND", "PERMISSIONS_ERROR", "UNSUPPORTED_OPERATION", "BAD_REQUEST"}
)

// rejectCodes converts the failure of an operation to a rejection, or to nil if the operation
// may have created something.
func (p plan) rejectCodes(failed *operationFailure) error {
	switch {
	case failed.has(noCapacity...):
		return p.outOfCapacity(failed)
	case failed.has(noAddresses...):
		return p.outOfAddresses(failed)
	case failed.has(overQuota...):
		return p.outOfQuota(failed)
	case failed.has(invalidCodes...) && isNotOffered(strings.Join(failed.messages, "; ")):
		return p.notOffered(failed)
	case failed.has(invalidCodes...):
		return rejectGroup(p.spec, failed)
	}
	return nil
}

func (p plan) outOfCapacity(err error) error {
	kind := ""
	if p.spec.Market == provider.MarketSpot {
		kind = "spot "
	}
	return &cloud.Rejection{Scope: p.market(), RetryAfter: capacityRetryAfter, Err: fmt.Errorf("%w: %w",
		provider.OutOfCapacity("the zone has no %smachine of type %s", kind, p.spec.Type.Name), err)}
}

func (p plan) outOfAddresses(err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Subnet: p.spec.Subnet}, RetryAfter: quotaRetryAfter, Err: fmt.Errorf("%w: %w",
		provider.OutOfCapacity("no address left in subnet %s", p.spec.Subnet), err)}
}

func (p plan) outOfQuota(err error) error {
	return &cloud.Rejection{Scope: p.market(), RetryAfter: quotaRetryAfter, Err: fmt.Errorf("%w: %w",
		provider.OutOfCapacity("a quota of the project has no room for type %s", p.spec.TypeInMarket()), err)}
}

// notOffered rejects the requests for a machine type that the zone does not have, in any market.
func (p plan) notOffered(err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Type: p.spec.Type.Name}, RetryAfter: capacityRetryAfter, Err: fmt.Errorf("%w: %w",
		provider.OutOfCapacity("the zone does not offer type %s", p.spec.Type.Name), err)}
}

// isNotOffered reports whether the message of an error means that the zone does not have the machine
// type. Compute Engine documents no code for it, and reports a name with a mistake in the same way.
func isNotOffered(message string) bool {
	return strings.Contains(message, "machineType") && (strings.Contains(message, "does not exist") || strings.Contains(message, "was not found"))
}

// rejectResponse converts an error response to a rejection. It returns the error itself if
// the VM may exist, or if the same request may succeed.
func (p plan) rejectResponse(err error) error {
	response, ok := googleapi.AsError(err)
	if !ok {
		return err
	}
	switch {
	case googleapi.IsThrottled(err):
		return throttled(err)
	case len(response.Reasons) == 0:
		return err // not of the API
	case response.Has("quotaExceeded", "QUOTA_EXCEEDED", "limitExceeded"):
		return p.outOfQuota(err)
	case (response.Status == http.StatusBadRequest || response.Status == http.StatusNotFound) && isNotOffered(response.Message):
		return p.notOffered(err)
	case response.Status == http.StatusForbidden:
		return &cloud.Rejection{Scope: p.forbidden(response), RetryAfter: retryAfter, Err: err}
	case response.Status == http.StatusPreconditionFailed && response.Has("conditionNotMet"):
		// A constraint of the organization forbids an argument
		// (https://cloud.google.com/resource-manager/docs/organization-policy/overview).
		return rejectGroup(p.spec, err)
	case response.Status == http.StatusNotFound && strings.Contains(response.Message, "/subnetworks/"):
		return &cloud.Rejection{Scope: cloud.Scope{Subnet: p.spec.Subnet}, RetryAfter: retryAfter, Err: err}
	case response.Status == http.StatusNotFound, response.Status == http.StatusBadRequest && !response.Has("resourceNotReady"):
		return rejectGroup(p.spec, err)
	}
	return err
}

// forbidden returns the scope of a rejection for lack of a permission. The message names the
// permission and the resource, such as an image of another project
// (https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation). Only what
// every launch needs concerns other groups.
func (p plan) forbidden(response *googleapi.Error) cloud.Scope {
	switch {
	case response.Has("accessNotConfigured", "SERVICE_DISABLED", "accountDisabled"), strings.Contains(response.Message, "'compute.instances.create'"):
		return cloud.Scope{}
	case strings.Contains(response.Message, "/subnetworks/"):
		return cloud.Scope{Subnet: p.spec.Subnet}
	}
	return cloud.Scope{Group: p.spec.Group}
}
