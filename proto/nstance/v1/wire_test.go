// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstancev1_test

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// wire has the definitions of the protocol, except the fields with numbers from 1000 up,
// which are in the table of docs/protocol.md#extensions. Servers, operators and agents of other
// versions depend on them, so no line and no row may be changed or removed.
//
// Each line is a service method, message, field or enum value. The generated
// descriptors must have exactly these lines and rows.
//
//go:embed testdata/wire.txt
var wire string

func TestDefinitionsAreUnchanged(t *testing.T) {
	var got []string
	for _, file := range []protoreflect.FileDescriptor{
		nstancev1.File_nstance_v1_registration_proto,
		nstancev1.File_nstance_v1_operator_proto,
		nstancev1.File_nstance_v1_agent_proto,
	} {
		if file.Syntax() != protoreflect.Proto3 {
			t.Errorf("%s has syntax %s, want proto3", file.Path(), file.Syntax())
		}
		got = append(got, "package "+string(file.Package()))
		got = append(got, services(file.Services())...)
		got = append(got, enums(file.Enums())...)
		got = append(got, messages(file.Messages())...)
	}
	got = unique(got)
	want := unique(append(withParents(lines(wire)), extensions(t)...))
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("missing in the definitions: %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("missing in testdata/wire.txt, or in the table of docs/protocol.md#extensions: %s", line)
		}
	}
}

// Peers may define subnets as a single string. For one entry they read and write the
// same bytes.
func TestOneSubnetIsEncodedAsAString(t *testing.T) {
	for name, c := range map[string]struct {
		message proto.Message
		number  protowire.Number
		subnets func(proto.Message) []string
	}{
		"GroupConfig": {
			&nstancev1.GroupConfig{Subnets: []string{"x"}}, 4,
			func(m proto.Message) []string { return m.(*nstancev1.GroupConfig).GetSubnets() },
		},
		"GroupStatus": {
			&nstancev1.GroupStatus{Subnets: []string{"x"}}, 6,
			func(m proto.Message) []string { return m.(*nstancev1.GroupStatus).GetSubnets() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			plain := protowire.AppendString(protowire.AppendTag(nil, c.number, protowire.BytesType), "x")
			got, err := proto.Marshal(c.message)
			require.NoError(t, err)
			if !bytes.Equal(got, plain) {
				t.Errorf("one subnet is %x, want the bytes of a string field, %x", got, plain)
			}
			read := c.message.ProtoReflect().New().Interface()
			require.NoError(t, proto.Unmarshal(plain, read))
			if got := c.subnets(read); !slices.Equal(got, []string{"x"}) {
				t.Errorf("a string field is read as subnets %q, want [x]", got)
			}
		})
	}
}

func services(list protoreflect.ServiceDescriptors) []string {
	var out []string
	for i := range list.Len() {
		service := list.Get(i)
		for j := range service.Methods().Len() {
			method := service.Methods().Get(j)
			out = append(out, fmt.Sprintf("/%s/%s (%s%s) returns (%s%s)", service.FullName(), method.Name(),
				stream(method.IsStreamingClient()), typeName(method.Input()),
				stream(method.IsStreamingServer()), typeName(method.Output())))
		}
	}
	return out
}

func stream(is bool) string {
	if is {
		return "stream "
	}
	return ""
}

func messages(list protoreflect.MessageDescriptors) []string {
	var out []string
	for i := range list.Len() {
		message := list.Get(i)
		if message.IsMapEntry() {
			continue
		}
		title := "message " + typeName(message)
		out = append(out, title)
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			out = append(out, fmt.Sprintf("%s: %s %d %s", title, field.Name(), field.Number(), fieldType(field)))
		}
		out = append(out, enums(message.Enums())...)
		out = append(out, messages(message.Messages())...)
	}
	return out
}

func enums(list protoreflect.EnumDescriptors) []string {
	var out []string
	for i := range list.Len() {
		enum := list.Get(i)
		title := "enum " + typeName(enum)
		out = append(out, title)
		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			out = append(out, fmt.Sprintf("%s: %s %d", title, value.Name(), value.Number()))
		}
	}
	return out
}

// fieldType returns the type as in a .proto file, with its cardinality and the proto3
// keyword optional. For a field of a oneof it includes the name of the oneof.
func fieldType(field protoreflect.FieldDescriptor) string {
	if field.IsMap() {
		return fmt.Sprintf("map<%s, %s>", fieldType(field.MapKey()), fieldType(field.MapValue()))
	}
	name := field.Kind().String()
	switch {
	case field.Message() != nil:
		name = typeName(field.Message())
	case field.Enum() != nil:
		name = typeName(field.Enum())
	}
	switch {
	case field.IsList():
		name = "repeated " + name
	case field.HasOptionalKeyword():
		name = "optional " + name
	case field.ContainingOneof() != nil:
		name = fmt.Sprintf("oneof %s %s", field.ContainingOneof().Name(), name)
	}
	return name
}

// typeName returns the full name, without the package nstance.v1.
func typeName(descriptor protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(descriptor.FullName()), "nstance.v1.")
}

func lines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// withParents replaces the indentation of a field or value by the title of its message
// or enum.
func withParents(list []string) []string {
	var title string
	for i, line := range list {
		if field, ok := strings.CutPrefix(line, "  "); ok {
			list[i] = title + ": " + field
		} else {
			title = line
		}
	}
	return list
}

// extension matches a row of the table of extensions: messages, field, number, type.
var extension = regexp.MustCompile("(?m)^\\| (`[^|]+`) \\| `(\\w+)` \\| (\\d+) \\| `([^|]+)` \\|")

// extensions returns the lines of the fields that docs/protocol.md adds to messages.
func extensions(t *testing.T) []string {
	t.Helper()
	document, err := os.ReadFile("../../../docs/protocol.md")
	require.NoError(t, err)
	var out []string
	for _, row := range extension.FindAllStringSubmatch(string(document), -1) {
		for message := range strings.SplitSeq(row[1], ", ") {
			out = append(out, fmt.Sprintf("message %s: %s %s %s", strings.Trim(message, "`"), row[2], row[3], row[4]))
		}
	}
	return out
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
