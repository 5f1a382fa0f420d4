// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
)

// defaultTemplateSize is the size of a template without one. A configured size of
// 0 stays 0.
const defaultTemplateSize = 1

func readDefaults(o *jsonc.Object) Defaults {
	defer o.Finish()
	return Defaults{
		Userdata: readUserdata(o),
		Vars:     o.StringMap("vars"),
		Args:     o.AnyMap("args"),
		Files:    readFiles(o.Object("files")),
	}
}

func readTemplate(o *jsonc.Object) Template {
	template := Template{
		Kind:         o.String("kind"),
		Arch:         o.String("arch"),
		Size:         defaultTemplateSize,
		InstanceType: o.String("instance_type"),
		SubnetPool:   o.String("subnet_pool"),
		Userdata:     readUserdata(o),
		Vars:         o.StringMap("vars"),
		Args:         o.AnyMap("args"),
		Files:        readFiles(o.Object("files")),

		LoadBalancers: readLoadBalancerKeys(o),
	}
	if size := o.Int32("size"); size != nil {
		template.Size = *size
	}
	return template
}

// readGroup leaves a missing size to the template.
func readGroup(o *jsonc.Object) Group {
	return Group{
		Template:     o.String("template"),
		Size:         o.Int32("size"),
		MaxSize:      o.Int32("max_size"),
		InstanceType: o.String("instance_type"),
		SubnetPool:   o.String("subnet_pool"),
		Vars:         o.StringMap("vars"),
		Args:         o.AnyMap("args"),
		DrainTimeout: o.OptionalDuration("drain_timeout"),

		LoadBalancers: readLoadBalancerKeys(o),
	}
}

// readUserdata reads a string, or an object that has the text or its URL, and its
// encoding. Both forms of the same userdata are read as equal values, so that a
// change from one to the other replaces no instance.
func readUserdata(o *jsonc.Object) Userdata {
	switch {
	case !o.Has("userdata"):
		return Userdata{}
	case o.IsString("userdata"):
		return Userdata{Inline: o.String("userdata")}
	case !o.IsObject("userdata"):
		o.Report(field.TypeInvalid(o.Child("userdata"), field.OmitValueType{}, "must be a string or an object"))
		return Userdata{}
	}
	members := o.ConfidentialObject("userdata")
	defer members.Finish()
	userdata := Userdata{Inline: members.String("inline"), URL: members.String("url"), Encoding: members.String("encoding")}
	members.ExactlyOneOf("inline", "url")
	if userdata.Encoding == EncodingPlain {
		userdata.Encoding = ""
	}
	return userdata
}

// readFiles returns nil when there are none.
func readFiles(o *jsonc.Object) map[string]File {
	if len(o.Names()) == 0 {
		return nil
	}
	files := map[string]File{}
	o.Each(func(name string, o *jsonc.Object) {
		files[name] = File{Kind: o.String("kind"), Content: o.Rest()}
	})
	return files
}
