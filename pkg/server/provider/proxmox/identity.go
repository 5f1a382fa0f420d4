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

	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// identity is stored in the notes of a virtual machine. The request that clones it sets the
// notes together with its name, and nothing changes them later.
type identity struct {
	cloud.Identity
	// VMID is the id of the virtual machine. If a user copies it, the copy has another id.
	VMID      int       `json:"vmid"`
	Resources resources `json:"resources"`
}

// resources are the resources of the cluster that a virtual machine uses.
type resources struct {
	Type   string `json:"type"`
	Subnet string `json:"subnet"`
	// Userdata is the volume of the disk with the userdata.
	Userdata string `json:"userdata"`
}

// notesTitle is the first line of the notes, as a warning to users.
const notesTitle = "This virtual machine is managed by nstance. Do not change these notes."

// newIdentity returns the identity of the virtual machine of a spec.
func newIdentity(shard provider.Shard, spec provider.Spec, vmid int, userdata string) identity {
	return identity{
		Identity:  cloud.NewIdentity(shard, spec),
		VMID:      vmid,
		Resources: resources{Type: spec.Type.Name, Subnet: spec.Subnet, Userdata: userdata},
	}
}

// notes returns the notes for a virtual machine.
func (i identity) notes() (string, error) {
	data, err := json.MarshalIndent(i, "", "  ")
	return notesTitle + "\n\n```json\n" + string(data) + "\n```\n", err
}

// parseNotes returns false if the notes contain no identity.
func parseNotes(notes string) (i identity, found bool) {
	begin, end := strings.Index(notes, "{"), strings.LastIndex(notes, "}")
	if !strings.HasPrefix(notes, notesTitle) || begin < 0 || end < begin {
		return identity{}, false
	}
	err := json.Unmarshal([]byte(notes[begin:end+1]), &i)
	return i, err == nil && i.InstanceID != "" && i.VMID != 0
}

// vm returns the VM of the instance without its state.
func (i identity) vm(shard provider.Shard) cloud.VM {
	vm := i.VM()
	vm.ProviderID = fmt.Sprintf("%s:///%s/%s", Name, shard.Zone, i.InstanceID)
	vm.Type = i.Resources.Type
	return vm
}

// ownershipTag is a tag of every virtual machine of this project.
const ownershipTag = "nstance"

// Prefixes of tags with ids. They differ because a cluster and a shard may have the same id.
const (
	clusterTag = "nstance-cluster-"
	shardTag   = "nstance-shard-"
)

// instanceTag is the prefix of the tag with the instance id. While a node is offline, its notes
// cannot be read, and the cluster does not list the names of its virtual machines, but their tags
// (https://pve.proxmox.com/pve-docs/api-viewer/index.html#/cluster/resources).
const instanceTag = "nstance-instance-"

// taggedInstance returns the instance id in a list of tags, or an empty text. A copy of the
// virtual machine has the same tag, so only the notes are certain.
func taggedInstance(text string) string {
	for _, tag := range splitTags(text) {
		if id, found := strings.CutPrefix(tag, instanceTag); found && isInstanceID(id) {
			return id
		}
	}
	return ""
}

// tagsOf returns the tags of all virtual machines of a shard.
func tagsOf(shard provider.Shard) []string {
	return []string{ownershipTag, clusterTag + shard.ClusterID, shardTag + shard.ID}
}

// splitTags splits a list of tags as the API reports it.
func splitTags(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(";, ", r) })
}

// hasTags reports whether a list of tags contains all tags of a shard.
func hasTags(shard provider.Shard, text string) bool {
	tags := splitTags(text)
	return !slices.ContainsFunc(tagsOf(shard), func(tag string) bool { return !slices.Contains(tags, tag) })
}

// hasOtherTags reports whether a list of tags contains all tags of another shard.
func hasOtherTags(shard provider.Shard, text string) bool {
	tags := splitTags(text)
	lacks := func(prefix string) bool {
		return !slices.ContainsFunc(tags, func(tag string) bool { return strings.HasPrefix(tag, prefix) })
	}
	return slices.Contains(tags, ownershipTag) && !lacks(clusterTag) && !lacks(shardTag) && !hasTags(shard, text)
}

// lockClone is the lock of a virtual machine that is being cloned.
const lockClone = "clone"

// reading has the facts that were read from the notes of a virtual machine.
type reading struct {
	identity identity
	// ours is true if the virtual machine belongs to the shard.
	ours bool
	// complete is true once the virtual machine was configured.
	complete bool
	// name and tags are the name and the tags at that time.
	name, tags string
}

// isCurrent reports whether the list still shows the virtual machine that was read. The list
// has no name if the node has not reported it.
func (r *reading) isCurrent(listed entry) bool {
	return r != nil && r.tags == listed.Tags && (listed.Name == "" || listed.Name == r.name)
}

// mayBeOurs reports whether an entry of the list may be a virtual machine of the shard. Only
// the notes are certain: a user may have changed the tags, and a clone has the tags of its
// template until it is configured. An entry without a name may be a clone, or its node has
// not reported the name.
func (a *API) mayBeOurs(listed entry) bool {
	if listed.Type != typeVM || listed.VMID < firstVMID || bool(listed.Template) {
		return false
	}
	return listed.Name == "" || isInstanceID(listed.Name) || hasTags(a.shard, listed.Tags)
}

func isInstanceID(name string) bool {
	_, err := puidv7.Parse(name)
	return err == nil
}

// rememberOther stores that a virtual machine does not belong to the shard, because the list
// loses the name if its node fails.
func (a *API) rememberOther(listed entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.readings[listed.VMID]; !known.isCurrent(listed) {
		a.readings[listed.VMID] = &reading{name: listed.Name, tags: listed.Tags}
	}
}

// identification says which shard and instance a virtual machine belongs to.
type identification struct {
	reading
	// unknown is true if this cannot be read at present.
	unknown bool
	// instance is the instance id of a virtual machine that cannot be identified, and reason
	// says why.
	instance, reason string
}

// identifyOne reads which shard and instance a virtual machine belongs to. It reads a virtual
// machine of others, or with the tags of the shard, once. Without the tags it reads it each
// time, because another clone of the same template may have the VMID by now.
func (a *API) identifyOne(ctx context.Context, listed entry, online bool) (identification, error) {
	tagged := hasTags(a.shard, listed.Tags)
	a.mu.Lock()
	known := a.readings[listed.VMID]
	a.mu.Unlock()
	if known.isCurrent(listed) && (tagged || !known.ours) {
		return identification{reading: *known}, nil
	}
	if !online {
		return a.unreadable(listed, known, errors.New("the node is offline")), nil
	}
	config, err := a.client.config(ctx, listed.Node, listed.VMID)
	switch {
	case isNotExist(err):
		return identification{unknown: true}, nil // it was deleted or moved since
	case isUnreachable(err):
		return a.unreadable(listed, known, err), nil
	case err != nil:
		return identification{}, err
	}
	identity, found := parseNotes(config.text("description"))
	// If a user has copied the virtual machine, the copy has another VMID.
	ours := found && identity.VMID == listed.VMID && identity.Association == cloud.AssociationOf(a.shard)
	switch name := config.text("name"); {
	case config.text("lock") == lockClone && (ours || name == ""):
		cloning, err := a.isBeingCloned(ctx, listed)
		return identification{reading: reading{identity: identity}, unknown: cloning}, err
	case !found && tagged && isInstanceID(name):
		return identification{instance: name, reason: fmt.Sprintf(
			"virtual machine %d has the tags of this shard, but its notes do not say of which group its instance is", listed.VMID)}, nil
	case !found:
		return identification{}, nil
	}
	known = &reading{
		identity: identity, ours: ours, name: config.text("name"), tags: listed.Tags,
		complete: tagged || isConfigured(config, identity),
	}
	a.mu.Lock()
	a.readings[listed.VMID] = known
	a.mu.Unlock()
	return identification{reading: *known}, nil
}

// isConfigured reports whether a virtual machine was configured after its clone. The userdata disk
// is configured together with the other properties, and taken out later. A template may have an
// empty drive too, but hardly starts with its node.
func isConfigured(config vmConfig, i identity) bool {
	drive := config.text("ide2")
	return strings.HasPrefix(drive, i.Resources.Userdata) || strings.HasPrefix(drive, emptyDrive) && config.text("onboot") == "1"
}

// unreadable identifies a virtual machine whose configuration cannot be read, by what was read
// before, or else by its tags. A shard does not depend on a node that is offline: a new leader
// takes the instance id from the tags, and the rest from the record. Only here tags can show that
// it belongs to another shard, so that a shard does not depend on the nodes of another one. The
// virtual machines of earlier versions have no tag with the instance id.
func (a *API) unreadable(listed entry, known *reading, err error) identification {
	tagged, ours := hasTags(a.shard, listed.Tags), known != nil && known.ours
	switch {
	case known.isCurrent(listed), tagged && ours:
		return identification{reading: *known}
	case tagged && taggedInstance(listed.Tags) != "":
		return identification{instance: taggedInstance(listed.Tags), reason: fmt.Sprintf(
			"the configuration of virtual machine %d on node %s cannot be read: %v", listed.VMID, listed.Node, err)}
	case tagged, ours:
		return identification{unknown: true}
	}
	return identification{unknown: !hasOtherTags(a.shard, listed.Tags)}
}

// isBeingCloned reports whether a virtual machine with the lock of a clone will be complete.
// If its node has failed during the clone, it stays incomplete and is no VM.
func (a *API) isBeingCloned(ctx context.Context, listed entry) (bool, error) {
	running, err := a.client.hasTask(ctx, listed.Node, taskClone)
	if err != nil || running {
		return err == nil, err
	}
	// The clone may have finished since the list of tasks.
	config, err := a.client.config(ctx, listed.Node, listed.VMID)
	if isNotExist(err) {
		return true, nil // it was moved to the target node
	}
	return err == nil && config.text("name") != "" && config.text("lock") != lockClone, err
}

// firstVMID and lastVMID are the limits for VMIDs of instances.
const (
	firstVMID = 10000
	lastVMID  = 999_999_999
)

// virtualMachine is a virtual machine of the shard.
type virtualMachine struct {
	vmid     int
	node     string
	identity identity
	// complete is true once the virtual machine was configured.
	complete bool
	// status is the last status that the node has reported, maybe a minute ago.
	status string
	// reachable is false if the node is offline.
	reachable bool
	// unidentified says why the virtual machine cannot be identified. Then only the instance id
	// of its identity is known.
	unidentified string
}

// inventory reads the resources of the cluster. Without quorum a node knows only an old
// state, so inventory returns an error
// (https://pve.proxmox.com/wiki/Cluster_Manager#_quorum). It also lists virtual machines on
// nodes that are offline, since every node has the configurations of the whole cluster.
func (a *API) inventory(ctx context.Context) (*inventory, error) {
	members, err := a.client.clusterStatus(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the status of the cluster: %w", err)
	}
	found := &inventory{online: map[string]bool{}}
	for _, member := range members {
		switch {
		case member.Type == "cluster" && !bool(member.Quorate):
			return nil, errors.New("the cluster has no quorum")
		case member.Type == typeNode:
			found.online[member.Name] = bool(member.Online)
		}
	}
	if len(found.online) == 0 {
		return nil, errors.New("the status of the cluster has no nodes")
	}
	if found.resources, err = a.client.resources(ctx); err != nil {
		return nil, fmt.Errorf("list the virtual machines: %w", err)
	}
	for name := range found.online {
		if !slices.ContainsFunc(found.resources, func(resource entry) bool { return resource.Type == typeNode && resource.Node == name }) {
			return nil, fmt.Errorf("the list of the cluster is incomplete: it lacks node %s", name)
		}
	}
	a.forgetOthers(found.resources)
	return found, a.identify(ctx, found)
}

// forgetOthers forgets virtual machines that are not listed any more, because other virtual
// machines may reuse their VMIDs.
func (a *API) forgetOthers(list []entry) {
	listed := map[int]bool{}
	for _, resource := range list {
		if resource.Type == typeVM || resource.VMID != 0 {
			listed[resource.VMID] = true
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

// identify finds the virtual machines of the shard among the resources.
func (a *API) identify(ctx context.Context, found *inventory) error {
	var candidates []entry
	for _, resource := range found.resources {
		switch {
		case a.mayBeOurs(resource):
			candidates = append(candidates, resource)
		case resource.Type == typeVM && resource.VMID >= firstVMID && resource.Name != "":
			a.rememberOther(resource)
		}
	}
	results := make([]identification, len(candidates))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for n, listed := range candidates {
		group.Go(func() (err error) {
			results[n], err = a.identifyOne(groupCtx, listed, found.online[listed.Node])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for n, listed := range candidates {
		result := results[n]
		candidate := virtualMachine{
			vmid: listed.VMID, node: listed.Node, identity: result.identity, complete: result.complete,
			status: listed.Status, reachable: found.online[listed.Node],
		}
		switch {
		case result.ours:
			found.ours = append(found.ours, candidate)
		case result.unknown:
			found.unknown = append(found.unknown, candidate)
		case result.instance != "":
			candidate.identity.InstanceID, candidate.unidentified = result.instance, result.reason
			found.unidentified = append(found.unidentified, candidate)
		}
	}
	// A copy of a virtual machine has its tags.
	found.unidentified = slices.DeleteFunc(found.unidentified, func(vm virtualMachine) bool { return len(found.of(vm.identity.InstanceID)) > 0 })
	return nil
}
