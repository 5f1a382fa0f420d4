// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider/docker/dockertest"
)

// history is what has happened to the containers of a cluster, as the daemon reports it.
type history struct {
	mu sync.Mutex
	// created and started count the containers by the name of the container, which is the id
	// of its instance.
	created, started map[string]int
	// containers are the ids of all containers, and volumes the containers of the volumes
	// that were mounted in any container of the daemon.
	containers map[string]bool
	volumes    map[string]string
}

// follow records the history until the end of the test.
func follow(t *testing.T, docker *dockertest.Daemon, cluster string) *history {
	t.Helper()
	h := &history{created: map[string]int{}, started: map[string]int{}, containers: map[string]bool{}, volumes: map[string]string{}}
	ctx, cancel := context.WithCancel(context.Background())
	stream := docker.Client.Events(ctx, client.EventsListOptions{Filters: client.Filters{}.Add("type", "container", "volume")})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case message := <-stream.Messages:
				h.add(message, cluster)
			case err := <-stream.Err:
				if ctx.Err() == nil {
					assert.NoError(t, err, "the events of Docker")
				}
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return h
}

func (h *history) add(message events.Message, cluster string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	actor := message.Actor
	switch {
	case message.Type == events.VolumeEventType && message.Action == events.ActionMount:
		h.volumes[actor.ID] = actor.Attributes["container"]
	case message.Type != events.ContainerEventType || actor.Attributes["nstance.dev/cluster-id"] != cluster:
	case message.Action == events.ActionCreate:
		h.containers[actor.ID] = true
		h.created[actor.Attributes["name"]]++
	case message.Action == events.ActionStart:
		h.started[actor.Attributes["name"]]++
	}
}

// everCreated returns the ids of the instances that ever had a container, in order.
func (h *history) everCreated() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.created))
}

// starts returns how many containers were started for each instance.
func (h *history) starts() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.started)
}

// mounted returns the volumes that the containers have had.
func (h *history) mounted() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for volume, container := range h.volumes {
		if h.containers[container] {
			names = append(names, volume)
		}
	}
	return names
}
