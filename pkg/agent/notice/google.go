// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package notice

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

const (
	googlePreemptedPath   = "/computeMetadata/v1/instance/preempted"
	googleMaintenancePath = "/computeMetadata/v1/instance/maintenance-event"

	googleHeader, googleFlavor = "Metadata-Flavor", "Google"

	// googleTerminate is the maintenance event of a machine that is not migrated.
	googleTerminate = "TERMINATE_ON_HOST_MAINTENANCE"
)

// google is the metadata service of Google Cloud, which announces no time.
type google struct {
	service
}

// Poll implements Source.
func (g *google) Poll(ctx context.Context) (*Notice, error) {
	preempted, err := g.get(ctx, googlePreemptedPath)
	if err == nil && preempted == "TRUE" {
		return &Notice{Action: "preempted"}, nil
	}
	event, eventErr := g.get(ctx, googleMaintenancePath)
	if eventErr == nil && event == googleTerminate {
		return &Notice{Action: event}, nil
	}
	return nil, errors.Join(err, eventErr)
}

func (g *google) get(ctx context.Context, path string) (string, error) {
	headers, body, err := g.do(ctx, http.MethodGet, path, map[string]string{googleHeader: googleFlavor})
	if err != nil {
		return "", err
	}
	if headers.Get(googleHeader) != googleFlavor {
		return "", errors.New("what answers " + path + " is not the metadata service")
	}
	return strings.TrimSpace(string(body)), nil
}
