// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/provider"
)

// NetworkCloud is a cloud in memory with one address, which is attached to one machine at a
// time, like a network interface.
type NetworkCloud struct {
	// Interval is the result of AssignInterval.
	Interval time.Duration
	// Changing is called before each request that changes something has its effect, unless it is
	// nil. Tests use it to pause the process there.
	Changing func()

	mu sync.Mutex
	// machine is the machine that has the address, or "". attachment identifies the attachment.
	machine    string
	attachment int
	// attached is false while the attachment is in progress. pending is the number of reads
	// until it is attached, and delay the same for the next attachment.
	attached       bool
	pending, delay int
	changes, lost  int
	owners         []string
}

// NewNetworkCloud returns an address that no machine has.
func NewNetworkCloud() *NetworkCloud { return &NetworkCloud{Interval: 30 * time.Second} }

// Machine returns the LeaderNetwork of a server on a machine.
func (n *NetworkCloud) Machine(name string) provider.LeaderNetwork {
	return &machineNetwork{n, name, n.Interval}
}

// DelayAttach makes the next attachment take a number of reads.
func (n *NetworkCloud) DelayAttach(reads int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = reads
}

// LoseResponses makes the next calls that change something fail after their effect.
func (n *NetworkCloud) LoseResponses(times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = times
}

// Changes returns how many calls have changed something since the last time.
func (n *NetworkCloud) Changes() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	changes := n.changes
	n.changes = 0
	return changes
}

// Owner returns the machine that certainly has the address, or "".
func (n *NetworkCloud) Owner() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.attached {
		return ""
	}
	return n.machine
}

// Owners returns all machines that have had the address, in order.
func (n *NetworkCloud) Owners() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.owners...)
}

// attachmentState is the state of the address as a cloud shows it.
type attachmentState struct {
	// Machine is the machine that has the address, or "". ID identifies the attachment.
	Machine string
	ID      int
	// Attached is false while the attachment is in progress.
	Attached bool
}

// read returns the state, and lets an attachment proceed.
func (n *NetworkCloud) read(context.Context) (attachmentState, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.machine != "" && !n.attached {
		if n.pending--; n.pending <= 0 {
			n.attached = true
			n.owners = append(n.owners, n.machine)
		}
	}
	return attachmentState{n.machine, n.attachment, n.attached}, nil
}

var errAttachment = errors.New("the attachment has changed")

// change attaches the address to a machine, or detaches it if the machine is "". The
// attachment must not have changed since it was read.
func (n *NetworkCloud) change(ctx context.Context, machine string, attachment int) error {
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	if changing := n.Changing; changing != nil {
		changing()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.attachment != attachment || machine != "" && n.machine != "" {
		return errAttachment
	}
	n.machine, n.attached = machine, false
	if machine != "" {
		n.pending, n.delay = n.delay, 0
	}
	n.attachment++
	n.changes++
	if n.lost > 0 {
		n.lost--
		return ErrUnavailable
	}
	return nil
}

// attachments are calls to a cloud.
type attachments interface {
	read(ctx context.Context) (attachmentState, error)
	change(ctx context.Context, machine string, attachment int) error
}

// machineNetwork is the LeaderNetwork of a server on a machine.
type machineNetwork struct {
	attachments
	name     string
	interval time.Duration
}

// Assign attaches the address to the machine.
func (m *machineNetwork) Assign(ctx context.Context, _ provider.Network) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		state, err := m.read(ctx)
		switch {
		case err != nil:
			return err
		case state.Machine == m.name && state.Attached:
			return nil
		case state.Machine == m.name:
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		case state.Machine != "":
			err = m.change(ctx, "", state.ID)
		default:
			err = m.change(ctx, m.name, state.ID)
		}
		if err != nil {
			return err
		}
	}
}

// Release detaches the address from the machine.
func (m *machineNetwork) Release(ctx context.Context, _ provider.Network) error {
	state, err := m.read(ctx)
	if err != nil || state.Machine != m.name {
		return err
	}
	return m.change(ctx, "", state.ID)
}

// AssignInterval returns the interval.
func (m *machineNetwork) AssignInterval() time.Duration { return m.interval }

// NetworkOptions add a NetworkCloud to the options of another provider.
type NetworkOptions struct {
	provider.Options
	*NetworkCloud
	// Name is the name of this machine.
	Name string
}

// ValidateLeaderNetwork requires an interface id.
func (o NetworkOptions) ValidateLeaderNetwork(path *field.Path, network provider.Network) field.ErrorList {
	return validation.Required(path.Child("interface_id"), network.InterfaceID)
}

// NewLeaderNetwork returns the network of the machine.
func (o NetworkOptions) NewLeaderNetwork(provider.Shard) (provider.LeaderNetwork, error) {
	return o.Machine(o.Name), nil
}

// memoryNetwork is a LeaderNetworkBackend in memory.
type memoryNetwork struct{ *NetworkCloud }

// NewMemoryNetwork returns a backend in memory.
func NewMemoryNetwork() LeaderNetworkBackend { return memoryNetwork{NewNetworkCloud()} }

func (b memoryNetwork) Network() provider.Network {
	return provider.Network{IP: netip.MustParseAddr("192.0.2.10"), InterfaceID: "eni-1"}
}

func (b memoryNetwork) Pause(do func()) {
	b.Changing = func() {
		b.Changing = nil
		do()
	}
}

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

// RemoteMachine returns the LeaderNetwork of a server on a machine, for a NetworkCloud at a
// URL.
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
