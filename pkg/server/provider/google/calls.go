// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// virtualMachine has the fields of an instance that the provider sends or reads
// (https://cloud.google.com/compute/docs/reference/rest/v1/instances).
type virtualMachine struct {
	ID                string             `json:"id,omitempty"`
	Name              string             `json:"name"`
	Description       string             `json:"description,omitempty"`
	MachineType       string             `json:"machineType,omitempty"`
	Status            string             `json:"status,omitempty"`
	StatusMessage     string             `json:"statusMessage,omitempty"`
	LastStop          string             `json:"lastStopTimestamp,omitempty"`
	Labels            map[string]string  `json:"labels,omitempty"`
	Metadata          *metadata          `json:"metadata,omitempty"`
	Tags              *networkTags       `json:"tags,omitempty"`
	Disks             []disk             `json:"disks,omitempty"`
	NetworkInterfaces []networkInterface `json:"networkInterfaces,omitempty"`
	ServiceAccounts   []serviceAccount   `json:"serviceAccounts,omitempty"`
	Scheduling        *scheduling        `json:"scheduling,omitempty"`
}

type metadata struct {
	Items []metadataItem `json:"items"`
}

type metadataItem struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type networkTags struct {
	Items []string `json:"items"`
}

type disk struct {
	Boot             bool        `json:"boot,omitempty"`
	AutoDelete       bool        `json:"autoDelete,omitempty"`
	InitializeParams *diskParams `json:"initializeParams,omitempty"`
}

type diskParams struct {
	SourceImage string            `json:"sourceImage,omitempty"`
	DiskType    string            `json:"diskType,omitempty"`
	DiskSizeGB  int64             `json:"diskSizeGb,omitempty,string"`
	Labels      map[string]string `json:"labels,omitempty"`
}

type networkInterface struct {
	Name          string         `json:"name,omitempty"`
	Fingerprint   string         `json:"fingerprint,omitempty"`
	AliasIPRanges []aliasRange   `json:"aliasIpRanges,omitempty"`
	Subnetwork    string         `json:"subnetwork,omitempty"`
	NetworkIP     string         `json:"networkIP,omitempty"`
	IPv6Address   string         `json:"ipv6Address,omitempty"`
	StackType     string         `json:"stackType,omitempty"`
	AccessConfigs []accessConfig `json:"accessConfigs,omitempty"`
}

type accessConfig struct {
	Name  string `json:"name,omitempty"`
	Type  string `json:"type,omitempty"`
	NATIP string `json:"natIP,omitempty"`
}

type serviceAccount struct {
	Email  string   `json:"email"`
	Scopes []string `json:"scopes"`
}

type scheduling struct {
	ProvisioningModel         string `json:"provisioningModel,omitempty"`
	InstanceTerminationAction string `json:"instanceTerminationAction,omitempty"`
	OnHostMaintenance         string `json:"onHostMaintenance,omitempty"`
	AutomaticRestart          *bool  `json:"automaticRestart,omitempty"`
}

// addresses returns the addresses of the virtual machine, private addresses first.
func (v virtualMachine) addresses() []netip.Addr {
	var private, public []netip.Addr
	add := func(list []netip.Addr, text string) []netip.Addr {
		if address, err := netip.ParseAddr(text); err == nil {
			return append(list, address)
		}
		return list
	}
	for _, nic := range v.NetworkInterfaces {
		private = add(add(private, nic.NetworkIP), nic.IPv6Address)
		for _, config := range nic.AccessConfigs {
			public = add(public, config.NATIP)
		}
	}
	return append(private, public...)
}

// operation tracks a change that Compute Engine carries out asynchronously
// (https://cloud.google.com/compute/docs/reference/rest/v1/zoneOperations).
type operation struct {
	Name             string          `json:"name"`
	Status           string          `json:"status"`
	OperationType    string          `json:"operationType"`
	TargetID         string          `json:"targetId"`
	HTTPErrorStatus  int             `json:"httpErrorStatusCode"`
	HTTPErrorMessage string          `json:"httpErrorMessage"`
	Error            *operationError `json:"error"`
}

// operationError has the errors of a failed operation.
type operationError struct {
	Errors []struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"errors"`
}

// warning explains why a list is incomplete.
type warning struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// vmFields are the fields that are read of a virtual machine. They exclude the metadata,
// which contains the userdata.
const vmFields = "id,name,description,machineType,status,statusMessage,lastStopTimestamp,labels,scheduling,networkInterfaces"

// zonePath returns the path of a resource in the zone of the shard.
func (a *API) zonePath(parts ...string) []string {
	return append([]string{"projects", a.options.Project, "zones", a.shard.Zone}, parts...)
}

// insert requests a virtual machine. The same request id gives the same operation
// (https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert).
func (a *API) insert(ctx context.Context, body virtualMachine, requestID, template string) (op operation, err error) {
	query := url.Values{"requestId": {requestID}}
	if template != "" {
		query.Set("sourceInstanceTemplate", template)
	}
	return op, a.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.instances.insert", Method: http.MethodPost, Path: a.zonePath("instances"), Query: query, Body: body,
	}, &op)
}

// get reads a virtual machine.
func (a *API) get(ctx context.Context, name string) (vm virtualMachine, err error) {
	err = a.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.instances.get", Method: http.MethodGet, Path: a.zonePath("instances", name), Query: url.Values{"fields": {vmFields}},
	}, &vm)
	if err == nil && vm.Name != name {
		err = fmt.Errorf("compute.instances.get: the response is of %q instead of %q", vm.Name, name)
	}
	return vm, err
}

// isNotFound reports whether the API has responded that a virtual machine does not exist.
// Other responses 404 may mean that the project or the zone is missing, or come from a proxy.
func isNotFound(err error, name string) bool {
	response, ok := googleapi.AsError(err)
	return ok && googleapi.IsNotFound(err) && strings.Contains(response.Message, "/instances/"+name)
}

// maxPages limits the pages of a list, so that a faulty API cannot keep a call busy forever.
const maxPages = 1000

// errIncomplete means that a list is not complete.
var errIncomplete = errors.New("the list is incomplete")

// checkPage returns an error if a page of a list is not complete.
func checkPage(kind, want string, w *warning) error {
	switch {
	case kind != want:
		return fmt.Errorf("%w: the response is of kind %q instead of %q", errIncomplete, kind, want)
	case w != nil && w.Code != "" && w.Code != "NO_RESULTS_ON_PAGE":
		return fmt.Errorf("%w: %s: %s", errIncomplete, w.Code, w.Message)
	}
	return nil
}

// list reads all virtual machines with the labels of the shard.
func (a *API) list(ctx context.Context) (all []virtualMachine, err error) {
	return listPages(ctx, a, googleapi.Call{
		Name: "compute.instances.list", Path: a.zonePath("instances"), Query: url.Values{"filter": {a.filter()}},
	}, "compute#instanceList", vmFields, all)
}

// operations reads the operations of the zone that match a filter.
func (a *API) operations(ctx context.Context, filter string) (all []operation, err error) {
	return listPages(ctx, a, googleapi.Call{
		Name: "compute.zoneOperations.list", Path: a.zonePath("operations"), Query: url.Values{"filter": {filter}},
	}, "compute#operationList", "name,operationType,status,targetId", all)
}

// listPages reads all pages of a list.
func listPages[T any](ctx context.Context, a *API, call googleapi.Call, kind, fields string, all []T) ([]T, error) {
	call.Method = cmp.Or(call.Method, http.MethodGet)
	call.Query.Set("maxResults", "500")
	call.Query.Set("fields", "kind,nextPageToken,warning(code,message),items("+fields+")")
	for range maxPages {
		var page struct {
			Kind          string   `json:"kind"`
			Items         []T      `json:"items"`
			NextPageToken string   `json:"nextPageToken"`
			Warning       *warning `json:"warning"`
		}
		if err := a.client.DoJSON(ctx, call, &page); err != nil {
			return nil, err
		}
		if err := checkPage(page.Kind, kind, page.Warning); err != nil {
			return nil, fmt.Errorf("%s: %w", call.Name, err)
		}
		all = append(all, page.Items...)
		if page.NextPageToken == "" {
			return all, nil
		}
		call.Query.Set("pageToken", page.NextPageToken)
	}
	return nil, fmt.Errorf("%s: %w: it has more than %d pages", call.Name, errIncomplete, maxPages)
}

// delete requests the deletion of a virtual machine.
func (a *API) delete(ctx context.Context, name, requestID string) (op operation, err error) {
	return op, a.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.instances.delete", Method: http.MethodDelete, Path: a.zonePath("instances", name),
		Query: url.Values{"requestId": {requestID}},
	}, &op)
}

// operation reads an operation.
func (a *API) operation(ctx context.Context, name string) (op operation, err error) {
	return op, a.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.zoneOperations.get", Method: http.MethodGet, Path: a.zonePath("operations", name),
	}, &op)
}

// subnetwork is a subnetwork.
type subnetwork struct {
	Name        string `json:"name"`
	Range       string `json:"ipCidrRange"`
	Utilization *struct {
		IPv4 []struct {
			Range string `json:"rangeName"`
			Free  *int64 `json:"totalFreeIp,string"`
		} `json:"ipv4Utilizations"`
	} `json:"utilizationDetails"`
}

// subnetwork reads a subnetwork with the number of its free addresses.
func (a *API) subnetwork(ctx context.Context, subnet Subnet) (read subnetwork, err error) {
	err = a.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.subnetworks.get", Method: http.MethodGet,
		Path:  []string{"projects", a.subnetworkProject(subnet), "regions", a.shard.Region, "subnetworks", subnet.Subnetwork},
		Query: url.Values{"views": {"WITH_UTILIZATION"}, "fields": {"name,ipCidrRange,utilizationDetails"}},
	}, &read)
	if err == nil && read.Name != subnet.Subnetwork {
		err = fmt.Errorf("compute.subnetworks.get: the response is of %q instead of %q", read.Name, subnet.Subnetwork)
	}
	return read, err
}

const (
	// minInterval and maxInterval bound the growing time between two reads of an operation.
	minInterval = 250 * time.Millisecond
	maxInterval = 2 * time.Second
	// operationTimeout is how long one call waits for an operation. It leaves time for the
	// other requests of a call, which the server limits.
	operationTimeout = 12 * time.Second
)

// statusDone is the status of a finished operation.
const statusDone = "DONE"

// operationFailure is the error of an operation.
type operationFailure struct {
	name     string
	codes    []string
	messages []string
}

// Error returns the codes and the messages.
func (f *operationFailure) Error() string {
	return fmt.Sprintf("operation %s: %s: %s", f.name, strings.Join(f.codes, ", "), strings.Join(f.messages, "; "))
}

// has reports whether the operation has failed with a code that begins with one of the
// prefixes. Some codes have a variant with the suffix _WITH_DETAILS.
func (f *operationFailure) has(prefixes ...string) bool {
	return slices.ContainsFunc(f.codes, func(code string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(code, prefix) })
	})
}

// isFailure reports whether an error is the failure of an operation.
func isFailure(err error) bool {
	_, failed := errors.AsType[*operationFailure](err)
	return failed
}

// failure returns an *operationFailure, or nil if the operation has not failed.
func (o operation) failure() error {
	f := &operationFailure{name: o.Name}
	if o.Error != nil {
		for _, failed := range o.Error.Errors {
			f.codes, f.messages = append(f.codes, failed.Code), append(f.messages, failed.Message)
		}
	}
	if len(f.codes) == 0 && o.HTTPErrorStatus >= 400 {
		f.codes, f.messages = []string{fmt.Sprintf("HTTP_%d", o.HTTPErrorStatus)}, []string{o.HTTPErrorMessage}
	}
	if len(f.codes) == 0 {
		return nil
	}
	return f
}

// await waits until an operation has finished. The error is an *operationFailure if it has
// failed, and wraps cloud.ErrInProgress if it still runs at until.
func (a *API) await(ctx context.Context, op operation, until time.Time) error {
	interval := minInterval
	for op.Status != statusDone {
		if op.Name == "" {
			return errors.New("the response has no operation")
		}
		if time.Now().Add(interval).After(until) {
			return fmt.Errorf("operation %s runs: %w", op.Name, cloud.ErrInProgress)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
		interval = min(2*interval, maxInterval)
		next, err := a.operation(ctx, op.Name)
		switch {
		case googleapi.IsThrottled(err):
			interval = maxInterval
			continue // is read again
		case err != nil:
			return fmt.Errorf("read operation %s: %w", op.Name, err)
		}
		op = next
	}
	return op.failure()
}
