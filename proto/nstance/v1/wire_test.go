// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstancev1_test

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// wire has the definitions of the protocol, except the fields with numbers from 1000 up,
// which are in the table of docs/protocol.md#extensions. Servers and operators of other
// versions depend on them, so no line and no row may be changed or removed.
//
// Each line is a service method, message, field or enum value. The generated
// descriptors must have exactly these lines and rows.
const wire = `
package nstance.v1

/nstance.v1.RegistrationService/RegisterAgent (RegisterClientRequest) returns (RegisterClientResponse)
/nstance.v1.RegistrationService/RegisterOperator (RegisterClientRequest) returns (RegisterClientResponse)

message RegisterClientRequest
  registration_nonce_jwt 1 string
  public_key_pem 2 bytes
  private_ipv4 3 string
  private_ipv6 4 string
  hostname 5 string
message RegisterClientResponse
  client_certificate_pem 1 bytes
  expires_at 2 google.protobuf.Timestamp

/nstance.v1.OperatorService/RenewCertificate (RenewCertificateRequest) returns (RenewCertificateResponse)
/nstance.v1.OperatorService/GetConfigStatus (google.protobuf.Empty) returns (ConfigStatusResponse)
/nstance.v1.OperatorService/RefreshConfig (google.protobuf.Empty) returns (RefreshConfigResponse)
/nstance.v1.OperatorService/ListGroups (google.protobuf.Empty) returns (ListGroupsResponse)
/nstance.v1.OperatorService/UpsertGroup (UpsertGroupRequest) returns (GroupStatus)
/nstance.v1.OperatorService/DeleteGroup (DeleteGroupRequest) returns (google.protobuf.Empty)
/nstance.v1.OperatorService/CreateInstance (CreateInstanceRequest) returns (CreateInstanceResponse)
/nstance.v1.OperatorService/DeleteInstance (DeleteInstanceRequest) returns (DeleteInstanceResponse)
/nstance.v1.OperatorService/GetInstanceStatus (GetInstanceStatusRequest) returns (InstanceStatusResponse)
/nstance.v1.OperatorService/AcknowledgeDrained (DrainAckRequest) returns (google.protobuf.Empty)
/nstance.v1.OperatorService/SleepTenant (SleepTenantRequest) returns (SleepTenantResponse)
/nstance.v1.OperatorService/WakeTenant (WakeTenantRequest) returns (WakeTenantResponse)
/nstance.v1.OperatorService/GetTenantStatus (GetTenantStatusRequest) returns (GetTenantStatusResponse)
/nstance.v1.OperatorService/WatchGroups (google.protobuf.Empty) returns (stream GroupEvent)
/nstance.v1.OperatorService/WatchInstances (google.protobuf.Empty) returns (stream InstanceEvent)
/nstance.v1.OperatorService/WatchErrors (google.protobuf.Empty) returns (stream ErrorEvent)

enum TenantSleepStatus
  TENANT_SLEEP_STATUS_UNSPECIFIED 0
  TENANT_SLEEP_STATUS_AWAKE 1
  TENANT_SLEEP_STATUS_ASLEEP 2
message RenewCertificateRequest
  public_key_pem 1 bytes
message RenewCertificateResponse
  client_certificate_pem 1 bytes
  expires_at 2 google.protobuf.Timestamp
message ConfigStatusResponse
  etag 1 string
  last_modified 2 google.protobuf.Timestamp
  size 3 int64
message RefreshConfigResponse
  updated 1 bool
  prev_etag 2 string
  etag 3 string
message UpsertGroupRequest
  key 1 string
  config 2 GroupConfig
message GroupConfig
  template 1 string
  size 2 int32
  instance_type 3 string
  subnets 4 repeated string
  vars 5 map<string, string>
  args 6 map<string, string>
message ListGroupsResponse
  groups 1 repeated GroupStatus
message GroupStatus
  key 1 string
  tenant 2 string
  template 3 string
  size 4 int32
  instance_type 5 string
  subnets 6 repeated string
  vars 7 map<string, string>
  is_static 8 bool
  etag 9 string
  actual_size 10 int32
  provider_ids 11 repeated string
message ManagedInstances
  instances 1 repeated ManagedInstance
message ManagedInstance
  id 1 string
  provider_id 2 string
  status 3 string
  created_at 4 google.protobuf.Timestamp
message GroupSettings
  template 1 string
  instance_type 3 string
  subnets 4 repeated string
  vars 5 map<string, string>
message NodeShape
  architecture 1 string
  operating_system 2 string
  capacity 3 map<string, string>
  labels 4 map<string, string>
  taints 5 repeated NodeTaint
message NodeTaint
  key 1 string
  value 2 string
  effect 3 string
message DeleteGroupRequest
  key 1 string
message CreateInstanceRequest
  instance_id 1 string
  config 2 InstanceConfig
message InstanceConfig
  group 1 string
  template 2 string
  instance_type 3 string
  subnet_pool 4 string
  vars 5 map<string, string>
message CreateInstanceResponse
  instance_id 1 string
  status 2 string
message DeleteInstanceRequest
  instance_id 1 string
message DeleteInstanceResponse
  status 1 string
message GetInstanceStatusRequest
  instance_id 1 string
message InstanceStatusResponse
  instance_id 1 string
  tenant 2 string
  status 3 string
  created_at 4 google.protobuf.Timestamp
  last_seen 5 google.protobuf.Timestamp
  provider_instance_id 6 string
message DrainAckRequest
  instance_id 1 string
enum GroupEvent.Type
  TYPE_UNSPECIFIED 0
  TYPE_UPSERT 1
  TYPE_DELETE 2
message GroupEvent
  type 1 GroupEvent.Type
  group 2 GroupStatus
message InstanceEvent
  instance_id 1 string
  tenant 2 string
  provider_instance_id 3 string
  group 4 string
  status 5 string
  reason 6 string
  unhealthy_at 7 google.protobuf.Timestamp
  delete_at 8 google.protobuf.Timestamp
message ErrorEvent
  group 1 string
  instance_id 2 string
  error 3 string
  timestamp 4 google.protobuf.Timestamp
message SleepTenantRequest
  tenant 1 string
  if_not_busy 2 bool
  wake_at 3 optional google.protobuf.Timestamp
enum SleepTenantResponse.Result
  RESULT_UNSPECIFIED 0
  RESULT_SLEPT 1
  RESULT_ALREADY_ASLEEP 2
  RESULT_BUSY 3
message SleepTenantResponse
  result 1 SleepTenantResponse.Result
  status 2 TenantSleepStatus
  wake_at 3 optional google.protobuf.Timestamp
message WakeTenantRequest
  tenant 1 string
  listener 2 optional string
enum WakeTenantResponse.Result
  RESULT_UNSPECIFIED 0
  RESULT_WOKE 1
  RESULT_ALREADY_AWAKE 2
message WakeTenantResponse
  result 1 WakeTenantResponse.Result
  status 2 TenantSleepStatus
  upstream 3 optional string
message GetTenantStatusRequest
  tenant 1 string
message GetTenantStatusResponse
  status 1 TenantSleepStatus
  wake_at 2 optional google.protobuf.Timestamp
  listeners 3 repeated ListenerActivity
message ListenerActivity
  listener 1 string
  available 2 bool
  idle_since 3 optional google.protobuf.Timestamp
`

func TestDefinitionsAreUnchanged(t *testing.T) {
	var got []string
	for _, file := range []protoreflect.FileDescriptor{
		nstancev1.File_nstance_v1_registration_proto,
		nstancev1.File_nstance_v1_operator_proto,
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
			t.Errorf("missing in this test, or in the table of docs/protocol.md#extensions: %s", line)
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
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, plain) {
				t.Errorf("one subnet is %x, want the bytes of a string field, %x", got, plain)
			}
			read := c.message.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(plain, read); err != nil {
				t.Fatal(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
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
