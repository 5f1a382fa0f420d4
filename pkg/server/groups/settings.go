// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/nodesettings"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Settings are the settings of a group that an operator may configure, apart from its size.
// An empty field leaves the choice to the server's configuration.
type Settings struct {
	Template     string `json:"template,omitempty"`
	InstanceType string `json:"instance_type,omitempty"`
	// SubnetPools are pool ids in the order in which they are tried.
	SubnetPools []string          `json:"subnet_pools,omitempty"`
	Vars        map[string]string `json:"vars,omitempty"`
	// LoadBalancers are the keys of the load balancers that the instances are registered with. An
	// empty list, which no operator can send, is none. It differs from nil, which means the list of
	// the template.
	LoadBalancers []string `json:"load_balancers,omitzero"`
	// DrainTimeoutSeconds is the drain timeout that an operator has set. Group.DrainTimeout is the
	// timeout in force.
	DrainTimeoutSeconds int32 `json:"drain_timeout_seconds,omitempty"`
	// Node has the settings for the kubelets of new instances.
	Node nodesettings.Settings `json:"node,omitzero"`
	// Candidates are what the instances may be, the best first. Without candidates each instance is of
	// InstanceType, which otherwise is the type of the candidates that name none.
	Candidates []candidates.Candidate `json:"candidates,omitempty"`
	// ReturnAfterSeconds is for how long a better candidate must have been free of rejections before
	// an instance is replaced by an instance of it. Zero means never.
	ReturnAfterSeconds int32 `json:"return_after_seconds,omitempty"`
}

// SettingsOf returns the settings of a request.
func SettingsOf(config *nstancev1.GroupConfig) Settings {
	return Settings{
		Template:     config.GetTemplate(),
		InstanceType: config.GetInstanceType(),
		SubnetPools:  config.GetSubnets(),
		Vars:         config.GetVars(),

		LoadBalancers:       config.GetLoadBalancers(),
		DrainTimeoutSeconds: config.GetDrainTimeoutSeconds(),

		Node:               nodesettings.Of(config.GetNodeSettings()),
		Candidates:         candidatesOf(config.GetCandidates()),
		ReturnAfterSeconds: config.GetReturnAfterSeconds(),
	}
}

// candidatesOf returns nil without candidates.
func candidatesOf(messages []*nstancev1.Candidate) []candidates.Candidate {
	var list []candidates.Candidate
	for _, message := range messages {
		list = append(list, candidates.Candidate{
			Name: message.GetName(), InstanceType: message.GetInstanceType(), Market: message.GetMarket(), MaxInstances: message.MaxInstances,
		})
	}
	return list
}

// candidateMessages is the reverse of candidatesOf.
func candidateMessages(list []candidates.Candidate) []*nstancev1.Candidate {
	var messages []*nstancev1.Candidate
	for _, c := range list {
		messages = append(messages, &nstancev1.Candidate{Name: c.Name, InstanceType: c.InstanceType, Market: c.Market, MaxInstances: c.MaxInstances})
	}
	return messages
}

// knownSettings is the highest number of a setting (docs/protocol.md#extensions).
var knownSettings = func() int32 {
	var highest protoreflect.FieldNumber
	fields := (&nstancev1.GroupSettings{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		highest = max(highest, fields.Get(i).Number())
	}
	return int32(highest)
}()

// SettingsMessage returns the message with settings.
func SettingsMessage(s Settings) *nstancev1.GroupSettings {
	return &nstancev1.GroupSettings{
		Template:     s.Template,
		InstanceType: s.InstanceType,
		Subnets:      s.SubnetPools,
		Vars:         s.Vars,

		LoadBalancers:       s.LoadBalancers,
		DrainTimeoutSeconds: s.DrainTimeoutSeconds,

		NodeSettings:       s.Node.Message(),
		Candidates:         candidateMessages(s.Candidates),
		ReturnAfterSeconds: s.ReturnAfterSeconds,
	}
}

// ReportSettings writes the settings of a group into its status, whose fields have the same
// names. A var that no operator has set is reported without its value, which may be a secret of
// the configuration: many more people read a status.
func ReportSettings(status *nstancev1.GroupStatus, g *Group) {
	status.Template = g.Template
	status.InstanceType = g.InstanceType
	status.Subnets = g.SubnetPools
	status.LoadBalancers = g.LoadBalancers
	status.DrainTimeoutSeconds = g.reportedDrainTimeout()
	status.NodeSettings = g.Node.Message()
	status.Candidates = candidateMessages(g.Candidates)
	status.ReturnAfterSeconds = g.ReturnAfterSeconds
	status.KnownSettings = knownSettings
	if len(g.Vars) > 0 {
		status.Vars = make(map[string]string, len(g.Vars))
	}
	for name := range g.Vars {
		status.Vars[name] = g.OperatorVars[name]
	}
}

// infraSettings are the settings that only a new instance can receive: their part of
// infraConfig. A new field needs omitempty, or the instances of every group are replaced.
// Fields have the same names as in Settings.
type infraSettings struct {
	InstanceType string   `json:"instance_type"`
	SubnetPools  []string `json:"subnet_pools,omitempty"`
}

func (s Settings) infra() infraSettings {
	return infraSettings{InstanceType: s.InstanceType, SubnetPools: s.SubnetPools}
}

// merge returns s with the settings of change: fields that are empty in change stay, and vars,
// labels and taints are added one by one. An instance type of its own takes the place of candidates.
func (s Settings) merge(change Settings) Settings {
	if change.InstanceType != "" && len(change.Candidates) == 0 {
		s.Candidates, s.ReturnAfterSeconds = nil, 0
	}
	if len(change.Candidates) > 0 {
		s.Candidates = change.Candidates
	}
	s.ReturnAfterSeconds = cmp.Or(change.ReturnAfterSeconds, s.ReturnAfterSeconds)
	s.Template = cmp.Or(change.Template, s.Template)
	s.InstanceType = cmp.Or(change.InstanceType, s.InstanceType)
	if len(change.SubnetPools) > 0 {
		s.SubnetPools = change.SubnetPools
	}
	if change.LoadBalancers != nil {
		s.LoadBalancers = change.LoadBalancers
	}
	s.DrainTimeoutSeconds = cmp.Or(change.DrainTimeoutSeconds, s.DrainTimeoutSeconds)
	s.Vars = mergeMaps(s.Vars, change.Vars)
	s.Node = s.Node.Merge(change.Node)
	return s
}

// without returns s without the settings of declared that next leaves out.
func (s Settings) without(declared, next Settings) Settings {
	if declared.Template != "" && next.Template == "" {
		s.Template = ""
	}
	if declared.InstanceType != "" && next.InstanceType == "" {
		s.InstanceType = ""
	}
	if len(declared.SubnetPools) > 0 && len(next.SubnetPools) == 0 {
		s.SubnetPools = nil
	}
	if len(declared.LoadBalancers) > 0 && len(next.LoadBalancers) == 0 {
		s.LoadBalancers = nil
	}
	if declared.DrainTimeoutSeconds != 0 && next.DrainTimeoutSeconds == 0 {
		s.DrainTimeoutSeconds = 0
	}
	s.Node = s.Node.Without(declared.Node, next.Node)
	if len(declared.Candidates) > 0 && len(next.Candidates) == 0 {
		s.Candidates = nil
	}
	if declared.ReturnAfterSeconds != 0 && next.ReturnAfterSeconds == 0 {
		s.ReturnAfterSeconds = 0
	}
	vars := map[string]string{}
	for name, value := range s.Vars {
		_, was := declared.Vars[name]
		_, is := next.Vars[name]
		if !was || is {
			vars[name] = value
		}
	}
	s.Vars = nil
	if len(vars) > 0 {
		s.Vars = vars
	}
	return s
}

// restricted returns s with the fields that only the server's configuration decides for a
// static group taken from stored.
func (s Settings) restricted(stored Settings) Settings {
	s.Template, s.SubnetPools = stored.Template, stored.SubnetPools
	return s
}

// merge returns the group of key, merged from the configuration, which does not
// name dynamic groups, and from override, which is nil for a static group
// without changes. It does not validate references.
func merge(c *config.Config, key instance.GroupKey, override *stored) (*Group, error) {
	own, static := c.Groups[key.Tenant][key.Group]
	group := &Group{Key: key, Static: static}
	settings := Settings{
		Template: own.Template, InstanceType: own.InstanceType, Vars: own.Vars, LoadBalancers: own.LoadBalancers,
		Candidates: own.Candidates, ReturnAfterSeconds: own.ReturnAfterSeconds, Node: own.Node,
	}
	if own.SubnetPool != "" {
		settings.SubnetPools = []string{own.SubnetPool}
	}
	if static {
		group.Size = c.ConfiguredSize(own)
	}
	if override != nil {
		group.Size, group.RemoveFirst, group.Declared = min(override.Size, config.MaxSize), override.RemoveFirst, override.Declared
		group.Rotation, group.Replace = override.Rotation, override.Replace
		group.Revision, group.OperatorVars = override.Revision, override.operatorVars()
		configured := settings
		settings = settings.merge(override.Settings)
		settings.LoadBalancers = known(c, settings.LoadBalancers)
		if static {
			settings = settings.restricted(configured)
		} else {
			own.Args = override.Args
			if override.DrainTimeout != nil {
				own.DrainTimeout = &override.DrainTimeout.Duration
			}
		}
	}
	// A size that was set before the limit was raised does not lower the guarantee.
	group.MinSize = c.MinSize(key.Tenant, key.Group)
	group.Size = max(group.Size, group.MinSize)
	template := c.Templates[settings.Template]
	inherited := Settings{
		InstanceType: template.InstanceType, Vars: mergeMaps(c.Defaults.Vars, template.Vars), LoadBalancers: template.LoadBalancers,
		Candidates: template.Candidates, ReturnAfterSeconds: template.ReturnAfterSeconds, Node: template.Node,
	}
	if template.SubnetPool != "" {
		inherited.SubnetPools = []string{template.SubnetPool}
	}
	group.KeepUnhealthy = own.KeepUnhealthy
	group.Settings = inherited.merge(settings)
	group.Kind, group.Arch = template.Kind, template.Arch
	group.Type = c.Shard.Infra.InstanceTypes[group.InstanceType]
	group.Args = config.MergeArgs(c.Defaults.Args, template.Args, own.Args)
	group.Files = mergeMaps(c.Defaults.Files, template.Files)
	group.Userdata = cmp.Or(template.Userdata, c.Defaults.Userdata)
	group.DrainTimeout = ptr.Deref(own.DrainTimeout, c.Shard.DefaultDrainTimeout)
	if group.DrainTimeoutSeconds > 0 {
		group.DrainTimeout = time.Duration(group.DrainTimeoutSeconds) * time.Second
	}
	group.setVariants(c)
	return group, group.setHashes()
}

// reportedDrainTimeout returns the drain timeout in force, in seconds: the configuration may have a
// part of a second, which is rounded up, and more seconds than the protocol has.
func (g *Group) reportedDrainTimeout() int32 {
	seconds := g.DrainTimeout / time.Second
	if g.DrainTimeout%time.Second != 0 {
		seconds++
	}
	return cmp.Or(g.DrainTimeoutSeconds, int32(min(seconds, math.MaxInt32)))
}

// operatorVars returns the vars that an operator has set. Those in Vars may include vars of the
// configuration, of a group that was static before; whoever declares settings has set no others.
func (s *stored) operatorVars() map[string]string {
	if s.Declared != nil {
		return s.Declared.Vars
	}
	return s.Vars
}

// known returns the stored load balancers that the configuration still has: a load balancer that is
// removed from it must not make it invalid.
func known(c *config.Config, keys []string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		_, found := c.LoadBalancers[key]
		return !found
	})
}

// validateCandidates checks the candidates that an operator sets. Their types are allowed as an instance
// type is; a type that the group had, as the only one or of a candidate, passes.
func validateCandidates(allowed []string, change Change, had Settings, after *Group) field.ErrorList {
	path := configPath.Child("candidates")
	problems := candidates.Validate(path, change.Candidates)
	problems = append(problems, candidates.ValidateReturn(configPath.Child("return_after_seconds"), change.ReturnAfterSeconds, after.Candidates)...)
	repeated := candidates.Equal(change.Candidates, had.Candidates) && change.InstanceType == had.InstanceType
	if len(change.Candidates) > 0 && change.InstanceType != "" && !repeated {
		problems = append(problems, field.Forbidden(configPath.Child("instance_type"), "cannot be set together with candidates: a candidate has its own"))
	}
	for n, c := range change.Candidates {
		known := c.InstanceType == "" || c.InstanceType == had.InstanceType ||
			slices.ContainsFunc(had.Candidates, func(other candidates.Candidate) bool { return other.InstanceType == c.InstanceType })
		if !known {
			problems = append(problems, config.CheckAllowed(path.Index(n).Child("instance_type"), c.InstanceType, "instance_types", allowed)...)
		}
	}
	return problems
}

// mergeMaps returns a map with the entries of all layers; later layers win. It returns nil if
// all layers are empty, and never modifies them.
func mergeMaps[V any](layers ...map[string]V) map[string]V {
	var merged map[string]V
	for _, layer := range layers {
		if merged == nil && len(layer) > 0 {
			merged = make(map[string]V, len(layer))
		}
		maps.Copy(merged, layer)
	}
	return merged
}
