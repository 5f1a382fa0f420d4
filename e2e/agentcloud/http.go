// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentcloud

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

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
	// Errors are those of Terminate.
	Errors map[string]string `json:"errors,omitempty"`
	// Error is that of the call, with what callers distinguish.
	Error     string     `json:"error,omitempty"`
	TokenUsed bool       `json:"tokenUsed,omitempty"`
	Rejection *rejection `json:"rejection,omitempty"`
}

type rejection struct {
	Scope      cloud.Scope   `json:"scope"`
	RetryAfter time.Duration `json:"retryAfter"`
}

// handler serves all calls.
func (c *Cloud) handler() http.Handler {
	calls := map[string]func(context.Context, cloud.API, request) (response, error){
		launchPath: func(ctx context.Context, api cloud.API, r request) (response, error) {
			m, err := api.Launch(ctx, *r.Launch)
			return response{Machines: []cloud.VM{m}}, err
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
			return response{Machines: list}, err
		},
		findPath: func(ctx context.Context, api cloud.API, r request) (response, error) {
			m, found, err := api.Find(ctx, r.Name)
			if !found {
				return response{}, err
			}
			return response{Machines: []cloud.VM{m}}, err
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

// err returns what setError was called with.
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
