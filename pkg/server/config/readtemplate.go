// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"github.com/tailscale/hujson"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// defaultTemplateSize is the size of a template that names none (server
// document). A size of 0 that is written down stays 0.
const defaultTemplateSize = 1

func readDefaults(o *object) Defaults {
	defer o.finish()
	return Defaults{
		Userdata: readUserdata(o),
		Vars:     o.dictionary("vars"),
		Args:     o.anyObject("args"),
		Files:    readFiles(o.object("files")),
	}
}

func readTemplate(o *object) Template {
	template := Template{
		Kind:         o.text("kind"),
		Arch:         o.text("arch"),
		Size:         defaultTemplateSize,
		InstanceType: o.text("instance_type"),
		SubnetPool:   o.text("subnet_pool"),
		Userdata:     readUserdata(o),
		Vars:         o.dictionary("vars"),
		Args:         o.anyObject("args"),
		Files:        readFiles(o.object("files")),
	}
	if size := o.integer("size"); size != nil {
		template.Size = *size
	}
	return template
}

// readGroup leaves a size that is absent to the template, as the server
// document's own example does.
func readGroup(o *object) Group {
	return Group{
		Template:     o.text("template"),
		Size:         o.integer("size"),
		InstanceType: o.text("instance_type"),
		SubnetPool:   o.text("subnet_pool"),
		Vars:         o.dictionary("vars"),
		Args:         o.anyObject("args"),
		DrainTimeout: o.optionalDuration("drain_timeout"),
	}
}

// readUserdata reads a text, or an object that says where the text is and how it
// is encoded there. Userdata that differs only in which of the two it is written
// as reads equal, so that writing it in the other form replaces no instance.
func readUserdata(o *object) Userdata {
	path, value := o.path.Child("userdata"), o.member("userdata")
	if value == nil {
		return Userdata{}
	}
	if literal, ok := value.Value.(hujson.Literal); ok && literal.Kind() == '"' {
		return Userdata{Inline: literal.String()}
	}
	if _, ok := value.Value.(*hujson.Object); !ok {
		*o.errs = append(*o.errs, field.TypeInvalid(path, field.OmitValueType{}, "must be a string or an object"))
		return Userdata{}
	}
	members := newObject(path, value, o.errs, true)
	defer members.finish()
	userdata := Userdata{Inline: members.text("inline"), URL: members.text("url"), Encoding: members.text("encoding")}
	members.oneOf("inline", "url")
	if userdata.Encoding == EncodingPlain {
		userdata.Encoding = ""
	}
	return userdata
}

// readFiles returns nil when there are none.
func readFiles(o *object) map[string]File {
	if len(o.members) == 0 {
		return nil
	}
	files := map[string]File{}
	o.each(func(name string, o *object) {
		files[name] = File{Kind: o.text("kind"), Content: o.anyMembers()}
	})
	return files
}
