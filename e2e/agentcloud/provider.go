// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentcloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// Name is the name of the provider in the configuration, and InstanceType the only type of
// its instances.
const (
	Name         = "agentcloud"
	InstanceType = "process"
)

// providerOptions are the options of the provider in the configuration.
type providerOptions struct {
	url         string
	checkSource bool
}

// ReadOptions reads the options of the provider: the URL of a Cloud, and whether agents must
// register from an address of their machine, which is false by default (Options.Address).
func ReadOptions(o *jsonc.Object) provider.Options {
	defer o.Finish()
	return &providerOptions{o.String("url"), o.Bool("check_source_address", false)}
}

// ChecksSource reports whether agents must register from an address of their machine.
func (o *providerOptions) ChecksSource() bool { return o.checkSource }

// Validate returns an error for every rule that the options break.
func (o *providerOptions) Validate(path *field.Path, _ sets.Set[string]) field.ErrorList {
	return validation.Required(path.Child("url"), o.url)
}

// ValidateArgs returns nothing: there are no arguments.
func (o *providerOptions) ValidateArgs(*field.Path, map[string]any) field.ErrorList { return nil }

// Catalogue returns the only instance type.
func (o *providerOptions) Catalogue() provider.Catalogue {
	return provider.Catalogue{InstanceType: {
		Name: InstanceType, CPU: resource.MustParse("1"), Memory: resource.MustParse("1Gi"), Arch: provider.ArchAMD64,
	}}
}

// RunsAgent returns true: every machine is an agent.
func (o *providerOptions) RunsAgent() bool { return true }

// ImmutableFields returns the URL: a change of it needs a restart.
func (o *providerOptions) ImmutableFields(path *field.Path) []provider.ImmutableField {
	return []provider.ImmutableField{{Path: path.Child("url"), Value: o.url}}
}

// NewProvider returns the provider for a shard.
func (o *providerOptions) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	return cloud.New(&client{url: o.url, shard: shard}, cloud.Options{CallContext: callContext}), nil
}

// client calls a Cloud for a shard.
type client struct {
	url   string
	shard provider.Shard
}

var _ cloud.API = (*client)(nil)

func (c *client) call(ctx context.Context, path string, r request) (response, error) {
	r.Shard = c.shard
	body, err := json.Marshal(r)
	if err != nil {
		return response{}, err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return response{}, err
	}
	reply, err := http.DefaultClient.Do(post)
	if err != nil {
		return response{}, fmt.Errorf("call the cloud: %w", err)
	}
	defer func() { _ = reply.Body.Close() }()
	if reply.StatusCode != http.StatusOK {
		return response{}, fmt.Errorf("call the cloud: %s: %s", path, reply.Status)
	}
	var result response
	if err := json.NewDecoder(reply.Body).Decode(&result); err != nil {
		return response{}, fmt.Errorf("call the cloud: %w", err)
	}
	return result, result.err()
}

// Launch creates the machine of a request.
func (c *client) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	result, err := c.call(ctx, launchPath, request{Launch: &r})
	if err != nil {
		return cloud.VM{}, err
	}
	return result.Machines[0], nil
}

// Terminate deletes machines.
func (c *client) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	result, err := c.call(ctx, terminatePath, request{Machines: list})
	errs := map[string]error{}
	for id, text := range result.Errors {
		errs[id] = errors.New(text)
	}
	if err != nil {
		for _, m := range list {
			errs[m.ID] = err
		}
	}
	return errs
}

// List returns all machines of the shard.
func (c *client) List(ctx context.Context) ([]cloud.VM, error) {
	result, err := c.call(ctx, listPath, request{})
	return result.Machines, err
}

// Find returns the machine of an instance.
func (c *client) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	result, err := c.call(ctx, findPath, request{Name: id})
	if err != nil || len(result.Machines) == 0 {
		return cloud.VM{}, false, err
	}
	return result.Machines[0], true, nil
}

// Room returns how many more machines a subnet has room for.
func (c *client) Room(ctx context.Context, subnet string) (int, error) {
	result, err := c.call(ctx, roomPath, request{Name: subnet})
	return result.Room, err
}

// Limits returns limits that let hundreds of machines be created at once.
func (c *client) Limits() cloud.Limits {
	return cloud.Limits{
		Reads:        cloud.Budget{PerSecond: 100, Burst: 100},
		Writes:       cloud.Budget{PerSecond: 200, Burst: 200},
		Launches:     16,
		Batch:        50,
		PollInterval: time.Second,
		IdleInterval: 5 * time.Second,
	}
}

// Paths of the calls of cloud.API, each a POST of a request.
const (
	launchPath    = "/launch"
	terminatePath = "/terminate"
	listPath      = "/list"
	findPath      = "/find"
	roomPath      = "/room"
)

// request has the arguments of one of the calls.
type request struct {
	Shard    provider.Shard `json:"shard"`
	Launch   *cloud.Request `json:"launch,omitempty"`
	Machines []cloud.VM     `json:"machines,omitempty"`
	// Name is an instance id or a subnet.
	Name string `json:"name,omitempty"`
}

// response has the results of one of the calls.
type response struct {
	Machines []cloud.VM `json:"machines,omitempty"`
	Room     int        `json:"room,omitempty"`
	// Errors are the errors of Terminate by instance id.
	Errors map[string]string `json:"errors,omitempty"`
	// Error is the error of the call. The next fields say which of the errors of cloud.API it is.
	Error     string     `json:"error,omitempty"`
	TokenUsed bool       `json:"tokenUsed,omitempty"`
	Rejection *rejection `json:"rejection,omitempty"`
}

type rejection struct {
	Scope      cloud.Scope   `json:"scope"`
	RetryAfter time.Duration `json:"retryAfter"`
}

// handler serves the calls at their paths.
func (c *Cloud) handler() http.Handler {
	calls := map[string]func(context.Context, cloud.API, request) (response, error){
		launchPath: func(ctx context.Context, api cloud.API, r request) (response, error) {
			m, err := api.Launch(ctx, *r.Launch)
			return c.response(m), err
		},
		terminatePath: func(ctx context.Context, api cloud.API, r request) (response, error) {
			errs := map[string]string{}
			for id, err := range api.Terminate(ctx, r.Machines) {
				errs[id] = err.Error()
			}
			return response{Errors: errs}, nil
		},
		listPath: func(ctx context.Context, api cloud.API, _ request) (response, error) {
			list, err := api.List(ctx)
			return c.response(list...), err
		},
		findPath: func(ctx context.Context, api cloud.API, r request) (response, error) {
			m, found, err := api.Find(ctx, r.Name)
			if !found {
				return response{}, err
			}
			return c.response(m), err
		},
		roomPath: func(ctx context.Context, api cloud.API, r request) (response, error) {
			room, err := api.Room(ctx, r.Name)
			return response{Room: room}, err
		},
	}
	mux := http.NewServeMux()
	for path, call := range calls {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			var arguments request
			if err := json.NewDecoder(r.Body).Decode(&arguments); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			result, err := call(r.Context(), c.api(arguments.Shard), arguments)
			result.setError(err)
			_ = json.NewEncoder(w).Encode(result)
		})
	}
	return mux
}

// response returns a response with machines. All machines have the same address if the options of
// the cloud name an address.
func (c *Cloud) response(machines ...cloud.VM) response {
	if c.options.Address.IsValid() {
		for i := range machines {
			machines[i].Addresses = []netip.Addr{c.options.Address}
		}
	}
	return response{Machines: machines}
}

func (r *response) setError(err error) {
	if err == nil {
		return
	}
	r.Error = err.Error()
	r.TokenUsed = errors.Is(err, cloud.ErrTokenUsed)
	if rejected, ok := errors.AsType[*cloud.Rejection](err); ok {
		r.Rejection = &rejection{rejected.Scope, rejected.RetryAfter}
	}
}

// err returns the error that setError was called with.
func (r *response) err() error {
	switch {
	case r.Error == "":
		return nil
	case r.Rejection != nil:
		return &cloud.Rejection{Scope: r.Rejection.Scope, RetryAfter: r.Rejection.RetryAfter, Err: errors.New(r.Error)}
	case r.TokenUsed:
		return errors.Join(cloud.ErrTokenUsed, errors.New(r.Error))
	}
	return errors.New(r.Error)
}
