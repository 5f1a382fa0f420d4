// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package notice

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

const (
	azureEventsPath = "/metadata/scheduledevents?api-version=2020-07-01"
	azureNamePath   = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
)

// azureTerminations are the types of events after which the machine is not there any more.
// After others, such as Freeze and Reboot, it continues.
var azureTerminations = []string{"Preempt", "Terminate"}

// azure is the metadata service of Azure. Its events name the machines that they concern,
// which include others of the same set.
type azure struct {
	service
	// name is that of this machine, once it is known.
	name string
}

// azureEvent is one scheduled event.
type azureEvent struct {
	EventType string
	Resources []string
	// NotBefore is empty once the event has started.
	NotBefore string
}

// Poll implements Source.
func (a *azure) Poll(ctx context.Context) (*Notice, error) {
	if a.name == "" {
		name, err := a.get(ctx, azureNamePath)
		if err != nil {
			return nil, err
		}
		a.name = strings.TrimSpace(string(name))
	}
	body, err := a.get(ctx, azureEventsPath)
	if err != nil {
		return nil, err
	}
	var document struct{ Events []azureEvent }
	if err := json.Unmarshal(body, &document); err != nil {
		return nil, fmt.Errorf("read %s: %w", azureEventsPath, err)
	}
	for _, event := range document.Events {
		if !slices.Contains(azureTerminations, event.EventType) || !slices.Contains(event.Resources, a.name) {
			continue
		}
		// A time that cannot be read is better left out than the notice.
		deadline, _ := http.ParseTime(event.NotBefore)
		return &Notice{Action: event.EventType, Deadline: deadline}, nil
	}
	return nil, nil
}

func (a *azure) get(ctx context.Context, path string) ([]byte, error) {
	_, body, err := a.do(ctx, http.MethodGet, path, map[string]string{"Metadata": "true"})
	return body, err
}
