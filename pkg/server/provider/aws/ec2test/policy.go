// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// arnPrefix begins the ARNs of EC2 resources in the account and the region.
const arnPrefix = "arn:aws:ec2:us-test-1:" + owner + ":"

// Policy is a policy of IAM with statements that allow something.
type Policy struct {
	Statements []statement `json:"Statement"`
}

// statement allows actions on resources if all of its conditions are met. Fields and
// operators that the server does not evaluate are errors.
type statement struct {
	Effect    string
	Action    texts
	Resource  texts
	Condition struct{ StringEquals map[string]texts }
}

// texts is a text or a list of texts.
type texts []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *texts) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte(`"`)) {
		return json.Unmarshal(data, (*[]string)(t))
	}
	*t = texts{""}
	return json.Unmarshal(data, &(*t)[0])
}

var documentedPolicy = regexp.MustCompile("(?s)```json\n( *{\n *\"Version\".*?)```")

// ReadPolicy returns the first policy of a document. It replaces placeholders, like users do.
func ReadPolicy(t testing.TB, path string, replaced ...string) *Policy {
	t.Helper()
	return ReadPolicies(t, path, replaced...)[0]
}

// ReadPolicies returns all policies of a document.
func ReadPolicies(t testing.TB, path string, replaced ...string) []*Policy {
	t.Helper()
	document, err := os.ReadFile(path)
	require.NoError(t, err)
	matches := documentedPolicy.FindAllSubmatch(document, -1)
	require.NotEmpty(t, matches, "policies of %s", path)
	var all []*Policy
	for _, match := range matches {
		var policy struct {
			Version string
			Policy
		}
		decoder := json.NewDecoder(strings.NewReader(strings.NewReplacer(replaced...).Replace(string(match[1]))))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&policy))
		for _, statement := range policy.Statements {
			require.Equal(t, "Allow", statement.Effect)
		}
		all = append(all, &policy.Policy)
	}
	return all
}

// Join returns a policy with the statements of several policies.
func Join(policies ...*Policy) *Policy {
	joined := &Policy{}
	for _, policy := range policies {
		joined.Statements = append(joined.Statements, policy.Statements...)
	}
	return joined
}

// Actions returns the actions that the policy allows on some resource, in order.
func (p *Policy) Actions() []string {
	var all []string
	for _, statement := range p.Statements {
		all = append(all, statement.Action...)
	}
	slices.Sort(all)
	return all
}

// allows reports whether the policy allows a call. A condition on a key that the call does
// not have is not met.
func (p *Policy) allows(c authorization) bool {
	return slices.ContainsFunc(p.Statements, func(statement statement) bool {
		for key, values := range statement.Condition.StringEquals {
			if value, has := c.context[key]; !has || !slices.Contains(values, value) {
				return false
			}
		}
		return statement.Action.match(c.action) && statement.Resource.match(c.resource)
	})
}

// match reports whether one of the patterns matches.
func (t texts) match(text string) bool {
	return slices.ContainsFunc(t, func(pattern string) bool { return wildcard(pattern).MatchString(text) })
}

// authorization is an action on a resource that a call needs.
type authorization struct {
	action, resource string
	context          map[string]string
}

// Enforce makes the server refuse calls that a policy does not allow.
func (s *Server) Enforce(policy *Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy = policy
}

// authorize refuses a call as a whole if the policy does not allow all of it: if one instance
// may not be terminated, EC2 terminates none. Like the error for a client that may not decode
// it, the error does not name the resource. mu must be locked.
func (s *Server) authorize(name string, p params) error {
	if s.policy == nil {
		return nil
	}
	for _, needed := range s.authorizations(name, p) {
		if !s.policy.allows(needed) {
			return &refusal{
				status: http.StatusForbidden, code: "UnauthorizedOperation",
				message: fmt.Sprintf("You are not authorized to perform this operation. The identity-based policies do not allow the %s action.", needed.action),
			}
		}
	}
	return nil
}

// authorizations returns the permissions that a call needs. mu must be locked.
func (s *Server) authorizations(name string, p params) []authorization {
	action := "ec2:" + name
	on := func(resource string) authorization {
		return authorization{action: action, resource: arnPrefix + resource}
	}
	switch name {
	case "RunInstances":
		all := []authorization{on("instance/*"), on("subnet/" + p.get("SubnetId"))}
		for _, specification := range p.structures("TagSpecification") {
			all = append(all, authorization{"ec2:CreateTags", arnPrefix + specification.get("ResourceType") + "/*", map[string]string{"ec2:CreateAction": name}})
		}
		if profile := p.get("IamInstanceProfile.Name"); profile != "" {
			// The console gives a role and its profile the same name.
			all = append(all, authorization{"iam:PassRole", "arn:aws:iam::" + owner + ":role/" + profile, map[string]string{"iam:PassedToService": "ec2.amazonaws.com"}})
		}
		return all
	case "TerminateInstances":
		var all []authorization
		for _, id := range p.list("InstanceId") {
			if _, exists := s.instances[id]; exists {
				all = append(all, s.onInstance(action, id))
			}
		}
		return all
	case "AttachNetworkInterface":
		return []authorization{s.onInterface(action, p.get("NetworkInterfaceId")), s.onInstance(action, p.get("InstanceId"))}
	case "DetachNetworkInterface":
		for id, nic := range s.interfaces {
			for _, a := range nic.attachments {
				if a.id == p.get("AttachmentId") {
					return []authorization{s.onInterface(action, id), s.onInstance(action, a.instance)}
				}
			}
		}
		return nil
	case "CreateNetworkInterface":
		return []authorization{
			on("network-interface/*"), on("subnet/" + p.get("SubnetId")),
			{"ec2:CreateTags", arnPrefix + "network-interface/*", map[string]string{"ec2:CreateAction": name}},
		}
	case "DeleteNetworkInterface":
		return []authorization{s.onInterface(action, p.get("NetworkInterfaceId"))}
	}
	return []authorization{{action: action, resource: "*"}}
}

// onInstance returns an action on an instance. mu must be locked.
func (s *Server) onInstance(action, id string) authorization {
	var tags map[string]string
	if i, exists := s.instances[id]; exists {
		tags = i.Tags
	}
	return onTagged(action, "instance/"+id, tags)
}

// onInterface returns an action on a network interface. mu must be locked.
func (s *Server) onInterface(action, id string) authorization {
	var tags map[string]string
	if nic, exists := s.interfaces[id]; exists {
		tags = nic.tags
	}
	return onTagged(action, "network-interface/"+id, tags)
}

// onTagged returns an action on a resource with tags.
func onTagged(action, resource string, tags map[string]string) authorization {
	needed := authorization{action: action, resource: arnPrefix + resource, context: map[string]string{}}
	for key, value := range tags {
		needed.context["aws:ResourceTag/"+key] = value
	}
	return needed
}
