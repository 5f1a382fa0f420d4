// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// identity is what the notes of a virtual machine have about its instance. They are set by
// the call that clones it, together with its name, and are not changed.
type identity struct {
	InstanceID string `json:"instance_id"`
	// VMID is that of the virtual machine. A copy of it that a user makes has another one.
	VMID        int         `json:"vmid"`
	Association association `json:"association"`
	Annotations annotations `json:"annotations"`
	Origin      origin      `json:"origin"`
	Resources   resources   `json:"resources"`
}

// association is whose virtual machine it is. The tags have the same once it is configured,
// so that users can search for them.
type association struct {
	ClusterID string `json:"cluster_id"`
	Shard     string `json:"shard"`
}

// annotations describe the instance.
type annotations struct {
	Tenant    string    `json:"tenant"`
	Group     string    `json:"group"`
	Kind      string    `json:"kind"`
	Template  string    `json:"template,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// origin is instance.Origin.
type origin struct {
	OnDemand        bool   `json:"on_demand,omitempty"`
	IdempotencyKey  string `json:"idempotency_key,omitempty"`
	InfraConfigHash string `json:"infra_config_hash,omitempty"`
}

// resources are what the virtual machine uses.
type resources struct {
	Type   string `json:"type"`
	Subnet string `json:"subnet"`
	// Userdata is the volume of the disk with the userdata.
	Userdata string `json:"userdata"`
}

// notesTitle is the first line of the notes, for people.
const notesTitle = "This virtual machine is managed by nstance. Do not change these notes."

// newIdentity returns the identity of the virtual machine of a spec.
func newIdentity(shard provider.Shard, spec provider.Spec, vmid int, userdata string) identity {
	return identity{
		InstanceID:  spec.ID,
		VMID:        vmid,
		Association: associationOf(shard),
		Annotations: annotations{
			Tenant: spec.Group.Tenant, Group: spec.Group.Group, Kind: spec.Kind, Template: spec.Template, CreatedAt: spec.CreatedAt.UTC(),
		},
		Origin: origin{
			OnDemand: spec.Origin.OnDemand, IdempotencyKey: spec.Origin.IdempotencyKey, InfraConfigHash: spec.Origin.InfraConfigHash,
		},
		Resources: resources{Type: spec.Type.Name, Subnet: spec.Subnet, Userdata: userdata},
	}
}

func associationOf(shard provider.Shard) association {
	return association{ClusterID: shard.ClusterID, Shard: shard.ID}
}

// notes returns the text for the notes.
func (i identity) notes() (string, error) {
	data, err := json.MarshalIndent(i, "", "  ")
	return notesTitle + "\n\n```json\n" + string(data) + "\n```\n", err
}

// parseNotes returns false if notes have no identity.
func parseNotes(notes string) (i identity, found bool) {
	begin, end := strings.Index(notes, "{"), strings.LastIndex(notes, "}")
	if !strings.HasPrefix(notes, notesTitle) || begin < 0 || end < begin {
		return identity{}, false
	}
	err := json.Unmarshal([]byte(notes[begin:end+1]), &i)
	return i, err == nil && i.InstanceID != "" && i.VMID != 0
}

// machine returns the machine without its state.
func (i identity) machine(shard provider.Shard) cloud.VM {
	return cloud.VM{
		ID:         i.InstanceID,
		ProviderID: fmt.Sprintf("%s:///%s/%s", Name, shard.Zone, i.InstanceID),
		Group:      instance.GroupKey{Tenant: i.Annotations.Tenant, Group: i.Annotations.Group},
		Origin: instance.Origin{
			OnDemand: i.Origin.OnDemand, IdempotencyKey: i.Origin.IdempotencyKey, InfraConfigHash: i.Origin.InfraConfigHash,
		},
		Type: i.Resources.Type,
	}
}

// ownershipTag is on each virtual machine of this project.
const ownershipTag = "nstance"

// The prefixes of the tags with ids: a cluster may have the name of a shard of another one.
const (
	clusterTag = "nstance-cluster-"
	shardTag   = "nstance-shard-"
)

// tagsOf returns the tags of the virtual machines of a shard.
func tagsOf(shard provider.Shard) []string {
	return []string{ownershipTag, clusterTag + shard.ClusterID, shardTag + shard.ID}
}

// splitTags returns the tags in a text.
func splitTags(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(";, ", r) })
}

// hasTags reports whether a text has all tags of a shard.
func hasTags(shard provider.Shard, text string) bool {
	tags := splitTags(text)
	return !slices.ContainsFunc(tagsOf(shard), func(tag string) bool { return !slices.Contains(tags, tag) })
}

// hasOtherTags reports whether a text has all tags of another shard.
func hasOtherTags(shard provider.Shard, text string) bool {
	tags := splitTags(text)
	lacks := func(prefix string) bool {
		return !slices.ContainsFunc(tags, func(tag string) bool { return strings.HasPrefix(tag, prefix) })
	}
	return slices.Contains(tags, ownershipTag) && !lacks(clusterTag) && !lacks(shardTag) && !hasTags(shard, text)
}

// lockClone is the lock of a virtual machine that is being cloned.
const lockClone = "clone"

// reading is what was read of a virtual machine whose notes have an identity.
type reading struct {
	identity identity
	// ours is true if it is one of the shard.
	ours bool
	// complete is true once everything was configured.
	complete bool
	// name and tags are those that it had.
	name, tags string
}

// isCurrent reports whether the list shows the virtual machine that was read. The list has
// no name if its node has not reported it.
func (r *reading) isCurrent(one entry) bool {
	return r != nil && r.tags == one.Tags && (one.Name == "" || one.Name == r.name)
}

// mayBeOurs reports whether a resource may be a virtual machine of the shard, as far as the
// list shows. The notes decide: a user may have changed the tags, and a clone has those of
// its template until it is configured. Without a name it may be a clone, or the list does not
// show the name yet.
func (a *API) mayBeOurs(one entry) bool {
	if one.Type != typeVM || one.VMID < firstVMID || bool(one.Template) {
		return false
	}
	return one.Name == "" || isInstanceID(one.Name) || hasTags(a.shard, one.Tags)
}

func isInstanceID(name string) bool {
	_, err := puidv7.Parse(name)
	return err == nil
}

// rememberOther stores that a virtual machine is none of ours: the list has no name any more
// when its node fails.
func (a *API) rememberOther(one entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.readings[one.VMID]; !known.isCurrent(one) {
		a.readings[one.VMID] = &reading{name: one.Name, tags: one.Tags}
	}
}

// identification is whose virtual machine one is.
type identification struct {
	reading
	// unknown is true if that cannot be known at present.
	unknown bool
}

// identifyOne reads whose virtual machine one is. A virtual machine of others, or one with
// the tags of the shard, is read once. Without the tags it is read each time: another clone of
// the same template may have its VMID by now.
func (a *API) identifyOne(ctx context.Context, one entry, online bool) (identification, error) {
	tagged := hasTags(a.shard, one.Tags)
	a.mu.Lock()
	known := a.readings[one.VMID]
	a.mu.Unlock()
	if known.isCurrent(one) && (tagged || !known.ours) {
		return identification{reading: *known}, nil
	}
	if !online {
		return a.unreadable(one, known, errors.New("the node is offline"))
	}
	config, err := a.client.config(ctx, one.Node, one.VMID)
	switch {
	case isNotExist(err):
		return identification{unknown: true}, nil // it was deleted or moved since
	case isUnreachable(err):
		return a.unreadable(one, known, err)
	case err != nil:
		return identification{}, err
	}
	identity, found := parseNotes(config.text("description"))
	// A copy that a user has made has another VMID.
	ours := found && identity.VMID == one.VMID && identity.Association == associationOf(a.shard)
	switch name := config.text("name"); {
	case config.text("lock") == lockClone && (ours || name == ""):
		cloning, err := a.isBeingCloned(ctx, one)
		return identification{reading: reading{identity: identity}, unknown: cloning}, err
	case !found && tagged && isInstanceID(name):
		return identification{}, fmt.Errorf("virtual machine %d has the tags of this shard, but its notes do not say of which group its instance is", one.VMID)
	case !found:
		return identification{}, nil
	}
	known = &reading{
		identity: identity, ours: ours, name: config.text("name"), tags: one.Tags,
		// The disk with the userdata is configured with the rest.
		complete: tagged || strings.HasPrefix(config.text("ide2"), identity.Resources.Userdata),
	}
	a.mu.Lock()
	a.readings[one.VMID] = known
	a.mu.Unlock()
	return identification{reading: *known}, nil
}

// unreadable returns what is known of a virtual machine whose configuration cannot be read.
// A list without one that is ours would be incomplete. Only here tags show that one is of
// others: a shard does not depend on the nodes of another one.
func (a *API) unreadable(one entry, known *reading, err error) (identification, error) {
	tagged, ours := hasTags(a.shard, one.Tags), known != nil && known.ours
	switch {
	case known.isCurrent(one), tagged && ours:
		return identification{reading: *known}, nil
	case tagged, ours:
		return identification{}, fmt.Errorf("read the configuration of virtual machine %d on node %s: %w", one.VMID, one.Node, err)
	}
	return identification{unknown: !hasOtherTags(a.shard, one.Tags)}, nil
}

// isBeingCloned reports whether a virtual machine with the lock of a clone will be complete.
// If its node has failed during the clone it never will, and it is not a machine.
func (a *API) isBeingCloned(ctx context.Context, one entry) (bool, error) {
	running, err := a.client.hasTask(ctx, one.Node, taskClone)
	if err != nil || running {
		return err == nil, err
	}
	// The clone may have finished in between.
	config, err := a.client.config(ctx, one.Node, one.VMID)
	if isNotExist(err) {
		return true, nil // it was moved to its node
	}
	return err == nil && config.text("name") != "" && config.text("lock") != lockClone, err
}

// firstVMID and lastVMID bound those of instances.
const (
	firstVMID = 10000
	lastVMID  = 999_999_999
)

// vm is a virtual machine of the shard.
type vm struct {
	vmid     int
	node     string
	identity identity
	// complete is true once everything was configured.
	complete bool
	// status is what its node last reported, maybe not for long.
	status string
	// reachable is false if its node is offline.
	reachable bool
}

// inventory is what the cluster has at some time.
type inventory struct {
	resources []entry
	ours      []vm
	// online are the nodes of the cluster that are.
	online map[string]bool
	// unknown are virtual machines that may be ours: those that are being cloned, those that
	// were moved since, and others without tags whose configuration cannot be read. A clone
	// has its identity before the last of several disks is cloned.
	unknown []vm
}

// of returns the virtual machines of an instance.
func (i *inventory) of(id string) []vm {
	return slices.DeleteFunc(slices.Clone(i.ours), func(one vm) bool { return one.identity.InstanceID != id })
}

// certain returns an error if some virtual machine may be one of the shard.
func (i *inventory) certain() error {
	if len(i.unknown) == 0 {
		return nil
	}
	var names []string
	for _, one := range i.unknown {
		names = append(names, fmt.Sprintf("%d on node %s", one.vmid, one.node))
	}
	return fmt.Errorf("it is not known yet whose virtual machines these are: %s", strings.Join(names, ", "))
}

// inventory reads what the cluster has. Without quorum a node knows only what was there
// before, which is an error. The virtual machines on a node that is offline are listed all
// the same, since every node has the configurations of the whole cluster.
func (a *API) inventory(ctx context.Context) (*inventory, error) {
	members, err := a.client.clusterStatus(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the status of the cluster: %w", err)
	}
	found := &inventory{online: map[string]bool{}}
	for _, one := range members {
		switch {
		case one.Type == "cluster" && !bool(one.Quorate):
			return nil, errors.New("the cluster has no quorum")
		case one.Type == typeNode:
			found.online[one.Name] = bool(one.Online)
		}
	}
	if len(found.online) == 0 {
		return nil, errors.New("the status of the cluster has no nodes")
	}
	if found.resources, err = a.client.resources(ctx); err != nil {
		return nil, fmt.Errorf("list the virtual machines: %w", err)
	}
	for name := range found.online {
		if !slices.ContainsFunc(found.resources, func(one entry) bool { return one.Type == typeNode && one.Node == name }) {
			return nil, fmt.Errorf("the list of the cluster is incomplete: it lacks node %s", name)
		}
	}
	a.forgetOthers(found.resources)
	return found, a.identify(ctx, found)
}

// forgetOthers forgets the virtual machines that are not listed: their ids may be used for
// others.
func (a *API) forgetOthers(list []entry) {
	listed := map[int]bool{}
	for _, one := range list {
		if one.Type == typeVM || one.VMID != 0 {
			listed[one.VMID] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for vmid := range a.readings {
		if !listed[vmid] {
			delete(a.readings, vmid)
		}
	}
	for vmid := range a.states {
		if !listed[vmid] {
			delete(a.states, vmid)
		}
	}
}

// identify finds the virtual machines of the shard.
func (a *API) identify(ctx context.Context, found *inventory) error {
	var candidates []entry
	for _, one := range found.resources {
		switch {
		case a.mayBeOurs(one):
			candidates = append(candidates, one)
		case one.Type == typeVM && one.VMID >= firstVMID && one.Name != "":
			a.rememberOther(one)
		}
	}
	results := make([]identification, len(candidates))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for n, one := range candidates {
		group.Go(func() (err error) {
			results[n], err = a.identifyOne(groupCtx, one, found.online[one.Node])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for n, one := range candidates {
		result := results[n]
		candidate := vm{
			vmid: one.VMID, node: one.Node, identity: result.identity, complete: result.complete,
			status: one.Status, reachable: found.online[one.Node],
		}
		switch {
		case result.ours:
			found.ours = append(found.ours, candidate)
		case result.unknown:
			found.unknown = append(found.unknown, candidate)
		}
	}
	return nil
}
