// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// params are the parameters of a call.
type params url.Values

var index = regexp.MustCompile(`\.[1-9][0-9]*(\.|$)`)

// parse refuses parameters that the server does not know.
func (a action) parse(form url.Values) (params, error) {
	p := params{}
	for name, values := range form {
		if name == "Action" || name == "Version" {
			continue
		}
		general := name
		for index.MatchString(general) {
			general = index.ReplaceAllString(general, ".N$1")
		}
		if !slices.Contains(a.parameters, general) {
			return nil, refuse("UnknownParameter", "The parameter %s is not recognized", name)
		}
		if len(values) != 1 {
			return nil, refuse("InvalidParameterCombination", "The parameter %s has %d values", name, len(values))
		}
		p[name] = values
	}
	return p, nil
}

func (p params) get(name string) string { return url.Values(p).Get(name) }

// list returns the texts of a list.
func (p params) list(name string) []string {
	var all []string
	for n := 1; p.has(name + "." + strconv.Itoa(n)); n++ {
		all = append(all, p.get(name+"."+strconv.Itoa(n)))
	}
	return all
}

func (p params) has(name string) bool { _, found := p[name]; return found }

// structures returns the members of each structure of a list.
func (p params) structures(name string) []params {
	var all []params
	for n := 1; ; n++ {
		structure := p.structure(name + "." + strconv.Itoa(n))
		if len(structure) == 0 {
			return all
		}
		all = append(all, structure)
	}
}

// structure returns the members of a structure.
func (p params) structure(name string) params {
	members := params{}
	for key, values := range p {
		if rest, found := strings.CutPrefix(key, name+"."); found {
			members[rest] = values
		}
	}
	return members
}

// page returns a part of a list of sorted ids, and the token of the next part.
func (s *Server) page(p params, ids []string) (part []string, next string, err error) {
	size := s.PageSize
	if text := p.get("MaxResults"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 5 || n > 1000 {
			return nil, "", refuse("InvalidParameterValue", "Value ( %s ) for parameter maxResults is invalid. Expecting a value between 5 and 1000.", text)
		}
		size = min(size, n)
	}
	begin := 0
	if token := p.get("NextToken"); token != "" {
		last, found := strings.CutPrefix(token, "after-")
		if !found {
			return nil, "", refuse("InvalidNextToken", "The token '%s' is invalid", token)
		}
		begin, found = slices.BinarySearch(ids, last)
		if found {
			begin++
		}
	}
	end := min(begin+size, len(ids))
	if end < len(ids) {
		next = "after-" + ids[end-1]
	}
	return ids[begin:end], next, nil
}

// matches reports whether an object matches all filters. properties returns the values of a
// known property; the property of a tag has the prefix "tag:".
func (p params) matches(properties func(name string) (values []string, known bool)) (bool, error) {
	for _, filter := range p.structures("Filter") {
		name, wanted := filter.get("Name"), filter.list("Value")
		values, known := properties(name)
		if !known {
			return false, refuse("InvalidParameterValue", "The filter '%s' is invalid", name)
		}
		if len(wanted) == 0 {
			return false, refuse("InvalidParameterValue", "The filter '%s' has no value", name)
		}
		if !slices.ContainsFunc(wanted, func(pattern string) bool {
			if !strings.ContainsAny(pattern, "*?") {
				return slices.Contains(values, pattern)
			}
			return slices.ContainsFunc(values, wildcard(pattern).MatchString)
		}) {
			return false, nil
		}
	}
	return true, nil
}

// wildcard converts a pattern of a filter, with * and ?, to a regular expression.
func wildcard(text string) *regexp.Regexp {
	quoted := regexp.QuoteMeta(text)
	return regexp.MustCompile("^" + strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(quoted) + "$")
}
