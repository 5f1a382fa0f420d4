// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/provider"
)

// ServeHTTP serves the cloud to servers in other processes, which use RemoteMachine.
func (n *NetworkCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		state, _ := n.read(r.Context())
		_ = json.NewEncoder(w).Encode(state)
		return
	}
	attachment, err := strconv.Atoi(r.FormValue("attachment"))
	if err == nil {
		err = n.change(r.Context(), r.FormValue("machine"), attachment)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
	}
}

// RemoteMachine returns what a server on a machine uses, for a NetworkCloud at a URL.
func RemoteMachine(address, name string, interval time.Duration) provider.LeaderNetwork {
	client := &http.Client{Transport: deadline.HTTPClient(http.DefaultTransport.RoundTrip)}
	return &machineNetwork{&remoteNetwork{address, client}, name, interval}
}

type remoteNetwork struct {
	url    string
	client *http.Client
}

func (n *remoteNetwork) read(ctx context.Context) (attachmentState, error) {
	var state attachmentState
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, n.url, nil)
	if err != nil {
		return state, err
	}
	response, err := n.client.Do(request)
	if err != nil {
		return state, err
	}
	err = json.NewDecoder(response.Body).Decode(&state)
	return state, errors.Join(err, response.Body.Close())
}

func (n *remoteNetwork) change(ctx context.Context, machine string, attachment int) error {
	query := url.Values{"machine": {machine}, "attachment": {strconv.Itoa(attachment)}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := n.client.Do(request)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = fmt.Errorf("the cloud responded %s", response.Status)
	}
	return errors.Join(err, response.Body.Close())
}
