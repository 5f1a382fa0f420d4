// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider"
)

// Arguments of the provider.
const (
	argImage       = "image"
	argEnvironment = "env"
	argCommand     = "command"
	argPrivileges  = "privileges"
	argVolumes     = "volumes"
	argTmpfs       = "tmpfs"
	argLabels      = "labels"
)

// Values of argPrivileges.
const (
	// privileged containers can do everything. A kubelet runs in them
	// (https://docs.docker.com/engine/containers/run/#runtime-privilege-and-linux-capabilities).
	privileged = "privileged"
	// capabilities gives a container the least that a kubelet needs, if a daemon does not
	// allow privileged containers.
	capabilities = "capabilities"
	// unprivileged containers have Docker's default privileges. No kubelet runs in them.
	unprivileged = "unprivileged"
)

// ownDomain is the prefix of the labels by which the provider identifies its containers.
const ownDomain = "nstance.dev/"

// arguments are the arguments of the provider for one instance.
type arguments struct {
	image      string
	env        map[string]string
	command    []string
	privileges string
	// volumes have the form SOURCE:TARGET with an optional :ro, or TARGET for an anonymous
	// volume.
	volumes []string
	// tmpfs maps mount points to their mount options.
	tmpfs  map[string]string
	labels map[string]string
}

// ValidateArgs validates arguments before they are rendered: it ignores text with templates.
func (o *Options) ValidateArgs(path *field.Path, args map[string]any) field.ErrorList {
	_, errs := readArguments(path, args)
	return errs
}

// arguments returns the rendered arguments of an instance.
func (o *Options) arguments(spec provider.Spec) (arguments, error) {
	args, errs := readArguments(field.NewPath("args"), spec.Args)
	if args.image == "" {
		args.image = o.Image
	}
	if args.image == "" {
		errs = append(errs, field.Required(field.NewPath("args", argImage), "neither the arguments nor the options of the provider have an image"))
	}
	if len(errs) > 0 {
		return arguments{}, fmt.Errorf("arguments of the provider: %w", errs.ToAggregate())
	}
	return args, nil
}

// reader reads arguments and collects errors.
type reader struct {
	path *field.Path
	args map[string]any
	errs field.ErrorList
}

func readArguments(path *field.Path, args map[string]any) (arguments, field.ErrorList) {
	r := &reader{path: path, args: args}
	known := []string{argImage, argEnvironment, argCommand, argPrivileges, argVolumes, argTmpfs, argLabels}
	slices.Sort(known)
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if !slices.Contains(known, name) {
			r.errs = append(r.errs, field.NotSupported(path.Child(name), name, known))
		}
	}
	a := arguments{
		image:      r.text(argImage),
		env:        r.texts(argEnvironment),
		command:    r.list(argCommand),
		privileges: r.text(argPrivileges),
		volumes:    r.list(argVolumes),
		tmpfs:      r.texts(argTmpfs),
		labels:     r.texts(argLabels),
	}
	r.validate(&a)
	return a, r.errs
}

// isTemplate reports whether a value is unknown until it is rendered.
func isTemplate(text string) bool { return strings.Contains(text, "{{") }

func (r *reader) validate(a *arguments) {
	levels := []string{capabilities, privileged, unprivileged}
	switch {
	case a.privileges == "":
		a.privileges = privileged
	case !slices.Contains(levels, a.privileges) && !isTemplate(a.privileges):
		r.errs = append(r.errs, field.NotSupported(r.path.Child(argPrivileges), a.privileges, levels))
	}
	for _, name := range sortedKeys(a.env) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			r.invalid(argEnvironment, name, "must be the name of an environment variable")
		}
	}
	for _, name := range sortedKeys(a.labels) {
		if strings.HasPrefix(name, ownDomain) {
			r.errs = append(r.errs, field.Forbidden(r.path.Child(argLabels).Key(name), ownDomain+" is the server's own"))
		}
	}
	for _, target := range sortedKeys(a.tmpfs) {
		if !path.IsAbs(target) && !isTemplate(target) {
			r.invalid(argTmpfs, target, "must be an absolute path")
		}
	}
	for i, volume := range a.volumes {
		if _, _, _, ok := splitVolume(volume); !ok && !isTemplate(volume) {
			r.errs = append(r.errs, field.Invalid(r.path.Child(argVolumes).Index(i), volume,
				"must be a path for an anonymous volume, or SOURCE:PATH with an optional :ro, where SOURCE is a path of the daemon's machine or the name of a volume"))
		}
	}
}

// splitVolume returns the parts of a volume, with an empty source for an anonymous one.
func splitVolume(volume string) (source, target string, readOnly, ok bool) {
	parts := strings.Split(volume, ":")
	if len(parts) == 3 && parts[2] == "ro" {
		readOnly, parts = true, parts[:2]
	}
	switch len(parts) {
	case 1:
		return "", parts[0], false, path.IsAbs(parts[0])
	case 2:
		return parts[0], parts[1], readOnly, parts[0] != "" && path.IsAbs(parts[1])
	default:
		return "", "", false, false
	}
}

func (r *reader) invalid(name, key, problem string) {
	r.errs = append(r.errs, field.Invalid(r.path.Child(name).Key(key), key, problem))
}

func (r *reader) text(name string) string {
	value, found := r.args[name]
	text, ok := value.(string)
	if found && !ok {
		r.errs = append(r.errs, field.TypeInvalid(r.path.Child(name), value, "must be a string"))
	}
	return text
}

func (r *reader) list(name string) []string {
	value, found := r.args[name]
	items, ok := value.([]any)
	if found && !ok {
		r.errs = append(r.errs, field.TypeInvalid(r.path.Child(name), value, "must be a list of strings"))
	}
	var texts []string
	for i, item := range items {
		text, ok := item.(string)
		if !ok {
			r.errs = append(r.errs, field.TypeInvalid(r.path.Child(name).Index(i), item, "must be a string"))
			continue
		}
		texts = append(texts, text)
	}
	return texts
}

func (r *reader) texts(name string) map[string]string {
	value, found := r.args[name]
	members, ok := value.(map[string]any)
	if found && !ok {
		r.errs = append(r.errs, field.TypeInvalid(r.path.Child(name), value, "must be an object of strings"))
	}
	texts := make(map[string]string, len(members))
	for _, key := range slices.Sorted(maps.Keys(members)) {
		text, ok := members[key].(string)
		if !ok {
			r.errs = append(r.errs, field.TypeInvalid(r.path.Child(name).Key(key), members[key], "must be a string"))
			continue
		}
		texts[key] = text
	}
	return texts
}
