// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// labelPrefix begins the keys of all labels of the server.
const labelPrefix = "nstance-"

// Labels of a virtual machine (docs/google.md#labels). Lists select virtual machines by the
// first three.
const (
	labelManaged    = labelPrefix + "managed"
	labelClusterID  = labelPrefix + "cluster-id"
	labelShard      = labelPrefix + "shard"
	labelInstanceID = labelPrefix + "instance-id"
	labelTenant     = labelPrefix + "tenant"
	labelGroup      = labelPrefix + "group"
	labelKind       = labelPrefix + "kind"
	labelTemplate   = labelPrefix + "template"
	labelCreatedAt  = labelPrefix + "created-at"
)

// managed is the value of labelManaged.
const managed = "true"

// identity identifies the instance of a virtual machine. It is stored as JSON in the
// description, because labels cannot contain all of it. The request that creates the virtual
// machine sets it.
type identity struct {
	InstanceID string `json:"instance_id"`
	ClusterID  string `json:"cluster_id"`
	Shard      string `json:"shard"`
	Tenant     string `json:"tenant"`
	Group      string `json:"group"`
	cloud.Origin
}

// descriptionTitle begins a description, as a warning to users.
const descriptionTitle = "Managed by nstance, do not change: "

// maxDescription is the longest description, in characters
// (https://cloud.google.com/compute/docs/reference/rest/v1/instances).
const maxDescription = 2048

func newIdentity(shard provider.Shard, spec provider.Spec) identity {
	return identity{
		InstanceID: spec.ID, ClusterID: shard.ClusterID, Shard: shard.ID,
		Tenant: spec.Group.Tenant, Group: spec.Group.Group,
		Origin: cloud.NewOrigin(spec.Origin),
	}
}

// description returns the description for a virtual machine.
func (i identity) description() (string, error) {
	data, err := json.Marshal(i)
	if err == nil && len(descriptionTitle)+len(data) > maxDescription {
		err = fmt.Errorf("the idempotency key has %d bytes, and is too long for the description of a machine", len(i.IdempotencyKey))
	}
	return descriptionTitle + string(data), err
}

// parseDescription returns false if a description contains no identity.
func parseDescription(text string) (i identity, found bool) {
	text, found = strings.CutPrefix(text, descriptionTitle)
	if !found {
		return identity{}, false
	}
	err := json.Unmarshal([]byte(text), &i)
	return i, err == nil && i.InstanceID != ""
}

// isOurs reports whether a virtual machine belongs to an instance of the shard. If a user has
// copied it, the copy has the same labels and description, and another name.
func (a *API) isOurs(vm virtualMachine, i identity) bool {
	return i.InstanceID == vm.Name && i.ClusterID == a.shard.ClusterID && i.Shard == a.shard.ID
}

// noIdentity is the reason if a VM has the labels of this shard but no identity in its
// description.
const noIdentity = "its labels are those of this shard, but its description does not say of which group its instance is"

// identify returns the identity of a virtual machine, and false if it does not belong to an
// instance of the shard. If a user has changed the description, only the instance id is known,
// and unidentified says so.
func (a *API) identify(vm virtualMachine) (i identity, unidentified string, ours bool) {
	i, found := parseDescription(vm.Description)
	if found {
		return i, "", a.isOurs(vm, i)
	}
	if !isInstanceID(vm.Name) || vm.Labels[labelInstanceID] != vm.Name || !a.hasLabels(vm) {
		return identity{}, "", false
	}
	return identity{InstanceID: vm.Name}, fmt.Sprintf("virtual machine %s: %s", vm.Name, noIdentity), true
}

func isInstanceID(name string) bool {
	_, err := puidv7.Parse(name)
	return err == nil
}

// hasLabels reports whether a virtual machine has the labels of the shard.
func (a *API) hasLabels(vm virtualMachine) bool {
	return vm.Labels[labelManaged] == managed && vm.Labels[labelClusterID] == a.shard.ClusterID && vm.Labels[labelShard] == a.shard.ID
}

// filter returns the filter that selects the virtual machines of the shard in a list.
func (a *API) filter() string {
	return fmt.Sprintf("(labels.%s = %q) AND (labels.%s = %q) AND (labels.%s = %q)",
		labelManaged, managed, labelClusterID, a.shard.ClusterID, labelShard, a.shard.ID)
}

// labels returns the labels for the virtual machine of a spec.
func (a *API) labels(spec provider.Spec, others map[string]string) map[string]string {
	all := map[string]string{}
	for key, value := range others {
		all[key] = value
	}
	for key, value := range map[string]string{
		labelManaged: managed, labelClusterID: a.shard.ClusterID, labelShard: a.shard.ID, labelInstanceID: spec.ID,
		labelTenant: spec.Group.Tenant, labelGroup: spec.Group.Group, labelKind: spec.Kind, labelTemplate: spec.Template,
		labelCreatedAt: spec.CreatedAt.UTC().Format(createdAtFormat),
	} {
		// Values that only users read may contain characters that labels do not allow.
		if value != "" && labelValues.MatchString(value) {
			all[key] = value
		}
	}
	return all
}

// createdAtFormat is RFC 3339 with characters that labels allow.
const createdAtFormat = "2006-01-02t15-04-05z"

// providerID returns the provider id of a virtual machine.
func providerID(project, zone, name string) string {
	return fmt.Sprintf("gce://%s/%s/%s", project, zone, name)
}

// vm returns the VM of a virtual machine.
func (a *API) vm(vm virtualMachine, i identity) cloud.VM {
	m := cloud.VM{
		ID:         i.InstanceID,
		ProviderID: providerID(a.options.Project, a.shard.Zone, vm.Name),
		Group:      instance.GroupKey{Tenant: i.Tenant, Group: i.Group},
		Origin:     i.Instance(),
		Type:       vm.MachineType[strings.LastIndex(vm.MachineType, "/")+1:],
		Addresses:  vm.addresses(),
		// https://cloud.google.com/compute/docs/internal-dns
		Hostname: fmt.Sprintf("%s.%s.c.%s.internal", vm.Name, a.shard.Zone, a.options.Project),
	}
	m.State, m.Reason = vm.state()
	return m
}

// validateShard returns an error if a name of the shard is not valid in a URL or a label.
func validateShard(shard provider.Shard) error {
	for name, value := range map[string]string{"region": shard.Region, "zone": shard.Zone} {
		if !names.MatchString(value) {
			return fmt.Errorf("%s %q: %s", name, value, nameRule)
		}
	}
	if err := provider.ValidateID(shard.ClusterID); err != nil {
		return fmt.Errorf("id of the cluster: %w", err)
	}
	if err := identifier.Validate(shard.ID); err != nil {
		return fmt.Errorf("id of the shard: %w", err)
	}
	return nil
}

// validateSpec returns an error if a name of a request is not valid in a URL or a label.
func validateSpec(spec provider.Spec) error {
	_, err := puidv7.Parse(spec.ID)
	errs := []error{err}
	for name, value := range map[string]string{"tenant": spec.Group.Tenant, "group": spec.Group.Group} {
		if err := provider.ValidateID(value); err != nil {
			errs = append(errs, fmt.Errorf("id of the %s: %w", name, err))
		}
	}
	if !names.MatchString(spec.Type.Name) {
		errs = append(errs, fmt.Errorf("machine type %q: %s", spec.Type.Name, nameRule))
	}
	if spec.CreatedAt.Before(time.Unix(0, 0)) {
		errs = append(errs, errors.New("the time of the request is not set"))
	}
	return errors.Join(errs...)
}
