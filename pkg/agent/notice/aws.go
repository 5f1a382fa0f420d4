// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package notice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	awsTokenPath  = "/latest/api/token"
	awsActionPath = "/latest/meta-data/spot/instance-action"

	awsTokenHeader    = "X-aws-ec2-metadata-token"
	awsLifetimeHeader = "X-aws-ec2-metadata-token-ttl-seconds"

	awsTokenLifetime = 6 * time.Hour
)

// aws is the instance metadata service of AWS, version 2. A recommendation to rebalance is
// no notice: most machines that get one are not terminated.
type aws struct {
	service
	token string
	// renew is when a new token is requested.
	renew time.Time
}

// Poll implements Source. The path exists only on spot instances that have a notice.
func (a *aws) Poll(ctx context.Context) (*Notice, error) {
	body, err := a.get(ctx, awsActionPath)
	if hasStatus(err, http.StatusUnauthorized) {
		// The service has forgotten the token.
		a.token = ""
		body, err = a.get(ctx, awsActionPath)
	}
	if hasStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var action struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal(body, &action); err != nil {
		return nil, fmt.Errorf("read %s: %w", awsActionPath, err)
	}
	if action.Action == "" {
		return nil, errors.New("read " + awsActionPath + ": it has no action")
	}
	return &Notice{Action: action.Action, Deadline: action.Time}, nil
}

func (a *aws) get(ctx context.Context, path string) ([]byte, error) {
	if a.token == "" || time.Now().After(a.renew) {
		seconds := strconv.Itoa(int(awsTokenLifetime / time.Second))
		_, token, err := a.do(ctx, http.MethodPut, awsTokenPath, map[string]string{awsLifetimeHeader: seconds})
		if err != nil {
			return nil, fmt.Errorf("get a token: %w", err)
		}
		a.token, a.renew = string(token), time.Now().Add(awsTokenLifetime/2)
	}
	_, body, err := a.do(ctx, http.MethodGet, path, map[string]string{awsTokenHeader: a.token})
	return body, err
}
