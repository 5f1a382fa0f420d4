// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/base/identifier/identifiertest"
)

// crds returns the definitions in manifests/crd, by kind.
func crds(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "..", "manifests", "crd", GroupName+"_*.yaml"))
	require.NoError(t, err)
	definitions := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		definition := &apiextensionsv1.CustomResourceDefinition{}
		require.NoError(t, yaml.UnmarshalStrict(text, definition), file)
		definitions[definition.Spec.Names.Kind] = definition
	}
	return definitions
}

func schemaOf(definition *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.JSONSchemaProps {
	return definition.Spec.Versions[0].Schema.OpenAPIV3Schema
}

func TestEveryKindHasADefinition(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, AddToScheme(scheme))
	definitions := crds(t)
	kinds := 0
	for kind := range scheme.KnownTypes(SchemeGroupVersion) {
		if !strings.HasPrefix(kind, "Nstance") || strings.HasSuffix(kind, "List") {
			continue
		}
		kinds++
		if definitions[kind] == nil {
			t.Errorf("%s has no definition", kind)
		}
		if _, err := scheme.New(SchemeGroupVersion.WithKind(kind + "List")); err != nil {
			t.Errorf("%s has no list kind: %v", kind, err)
		}
	}
	if len(definitions) != kinds || kinds != 5 {
		t.Errorf("%d definitions of %d kinds, want 5 of each", len(definitions), kinds)
	}
}

// Cluster API finds the kinds by the label of the contract (docs/capi.md).
func TestDefinitionsFollowTheContract(t *testing.T) {
	shortNames := map[string][]string{
		"NstanceCluster": {"nsc", "nstc"}, "NstanceMachinePool": {"nsmp", "nstmp"}, "NstanceShardGroup": {"nssg", "nstsg"},
		"NstanceMachine": {"nsm", "nstm"}, "NstanceMachineTemplate": {"nsmt", "nstmt"},
	}
	for kind, definition := range crds(t) {
		if got := definition.Labels["cluster.x-k8s.io/v1beta2"]; got != SchemeGroupVersion.Version {
			t.Errorf("%s: the label of the contract is %q", kind, got)
		}
		names := definition.Spec.Names
		if want := strings.ToLower(kind) + "s." + GroupName; definition.Name != want {
			t.Errorf("%s: the name of the definition is %q, want %q", kind, definition.Name, want)
		}
		if !slices.Equal(names.Categories, []string{"cluster-api", "nstance"}) || !slices.Equal(names.ShortNames, shortNames[kind]) {
			t.Errorf("%s: categories %q, short names %q", kind, names.Categories, names.ShortNames)
		}
		if names.ListKind != kind+"List" || definition.Spec.Scope != apiextensionsv1.NamespaceScoped {
			t.Errorf("%s: list kind %s, scope %s", kind, names.ListKind, definition.Spec.Scope)
		}
		if got := len(definition.Spec.Versions); got != 1 {
			t.Fatalf("%s: %d versions", kind, got)
		}
		version := definition.Spec.Versions[0]
		if version.Name != SchemeGroupVersion.Version || !version.Served || !version.Storage {
			t.Errorf("%s: version %s, served %t, stored %t", kind, version.Name, version.Served, version.Storage)
		}
		hasStatus := version.Subresources != nil && version.Subresources.Status != nil
		if !hasStatus {
			t.Errorf("%s: no status subresource", kind)
		}
		if got := schemaOf(definition).Properties["status"]; hasStatus && (got.Properties["failureReason"].Type != "" || got.Properties["failureMessage"].Type != "") {
			t.Errorf("%s: has failureReason or failureMessage; Cluster API panics when it reads them", kind)
		}
	}
}

func TestColumnsShowExistingFields(t *testing.T) {
	want := map[string][]string{
		"NstanceCluster":         {"Ready", "Endpoint", "Age"},
		"NstanceMachinePool":     {"Group", "Desired", "Actual", "Draining", "Shards", "Reachable", "Static", "Ready", "Reason", "Age"},
		"NstanceShardGroup":      {"Group", "Shard", "Size", "Actual", "Draining", "Static", "Ready", "Reason", "InstanceType", "Reachable", "Age"},
		"NstanceMachine":         {"Group", "Shard", "InstanceID", "ProviderID", "Ready", "Reason", "Age"},
		"NstanceMachineTemplate": {"Group", "Age"},
	}
	for kind, definition := range crds(t) {
		var names []string
		for _, column := range definition.Spec.Versions[0].AdditionalPrinterColumns {
			names = append(names, column.Name)
			field := resolve(schemaOf(definition), column.JSONPath)
			switch {
			case field == nil:
				t.Errorf("%s: column %s shows %s, which does not exist", kind, column.Name, column.JSONPath)
			case column.Type == "date" && field.Format == "date-time":
			case column.Type != field.Type:
				t.Errorf("%s: column %s is a %s and %s a %s", kind, column.Name, column.Type, column.JSONPath, field.Type)
			}
		}
		if !slices.Equal(names, want[kind]) {
			t.Errorf("%s: the columns are %q, want %q", kind, names, want[kind])
		}
	}
}

var element = regexp.MustCompile(`^([A-Za-z]+)(\[\?\(@\.([A-Za-z]+)==".*"\)\])?$`)

// resolve returns the field of a schema at the path of a column, nil if it does not exist.
// A filter selects an element of a list.
func resolve(at *apiextensionsv1.JSONSchemaProps, path string) *apiextensionsv1.JSONSchemaProps {
	if path == ".metadata.creationTimestamp" {
		return &apiextensionsv1.JSONSchemaProps{Type: "string", Format: "date-time"}
	}
	// The dot in a filter is not a separator.
	for name := range strings.SplitSeq(strings.ReplaceAll(strings.TrimPrefix(path, "."), "@.", "@"), ".") {
		parts := element.FindStringSubmatch(strings.ReplaceAll(name, "@", "@."))
		if parts == nil {
			return nil
		}
		next, ok := at.Properties[parts[1]]
		if !ok {
			return nil
		}
		at = &next
		if parts[2] == "" {
			continue
		}
		if at.Items == nil {
			return nil
		}
		at = at.Items.Schema
		if _, ok := at.Properties[parts[3]]; !ok {
			return nil
		}
	}
	return at
}

// The operator keeps within these limits.
func TestLimitsOfBlockedDrains(t *testing.T) {
	list := schemaOf(crds(t)["NstanceShardGroup"]).Properties["status"].Properties["blockedDrains"]
	entry := list.Items.Schema.Properties
	got := []int64{ptr.Deref(list.MaxItems, 0), ptr.Deref(entry["instance"].MaxLength, 0),
		ptr.Deref(entry["podDisruptionBudgets"].MaxItems, 0), ptr.Deref(entry["message"].MaxLength, 0)}
	require.Equal(t, []int64{MaxBlockedDrains, MaxBlockedDrainInstance, MaxBlockedDrainBudgets, MaxBlockedDrainMessage}, got)
	for _, reason := range []string{ReasonPodNotEvictable, ReasonPodNotTerminating, ReasonRequestsFailing, ReasonAmbiguousProviderID, ReasonProviderIDMismatch} {
		if !regexp.MustCompile(entry["reason"].Pattern).MatchString(reason) || int64(len(reason)) > ptr.Deref(entry["reason"].MaxLength, 0) {
			t.Errorf("the definition rejects reason %s", reason)
		}
		if !strings.Contains(entry["reason"].Description, reason) {
			t.Errorf("the description of the reason does not name %s", reason)
		}
	}
}

// The operator keeps within these limits too.
func TestLimitsOfReports(t *testing.T) {
	definitions := crds(t)
	length := func(field apiextensionsv1.JSONSchemaProps) int64 { return ptr.Deref(field.MaxLength, 0) }
	config := resolve(schemaOf(definitions["NstanceShardGroup"]), ".status.config").Properties
	pool := schemaOf(definitions["NstanceMachinePool"]).Properties["status"].Properties
	for name, got := range map[string]int64{
		"template of a shard group": length(config["template"]), "instance type": length(config["instanceType"]), "template of a pool": length(pool["template"]),
		"subnet of a shard group": length(*config["subnets"].Items.Schema), "subnet of a pool": length(*pool["subnets"].Items.Schema),
	} {
		if got != MaxReportedLength {
			t.Errorf("%s: at most %d characters, want %d", name, got, MaxReportedLength)
		}
	}
	for kind, fields := range map[string]map[string]apiextensionsv1.JSONSchemaProps{"shard group": config, "pool": pool} {
		if got := ptr.Deref(fields["subnets"].MaxItems, 0); got != MaxReportedSubnets {
			t.Errorf("subnets of a %s: at most %d, want %d", kind, got, MaxReportedSubnets)
		}
	}
	candidates := resolve(schemaOf(definitions["NstanceShardGroup"]), ".status").Properties["candidates"]
	assert.EqualValues(t, MaxCandidates, ptr.Deref(candidates.MaxItems, 0))
	for name, want := range map[string]int64{
		"name": MaxCandidateName, "instanceType": MaxReportedLength, "market": MaxCandidateName, "unavailable": MaxCandidateMessage,
	} {
		assert.Equal(t, want, length(candidates.Items.Schema.Properties[name]), name)
	}
	for _, kind := range []string{"NstanceMachinePool", "NstanceMachineTemplate"} {
		info := resolve(schemaOf(definitions[kind]), ".status.nodeInfo").Properties
		if length(info["architecture"]) != MaxNodeInfoLength || length(info["operatingSystem"]) != MaxNodeInfoLength {
			t.Errorf("%s: nodeInfo has other limits than %d", kind, MaxNodeInfoLength)
		}
	}
}

// The definitions and package identifier have the same rule.
func TestIdentifiersInDefinitions(t *testing.T) {
	definitions := crds(t)
	for kind, paths := range map[string][]string{
		"NstanceMachinePool":     {".spec.group", ".spec.shards[]", ".spec.subnets[]"},
		"NstanceShardGroup":      {".spec.group", ".spec.shard", ".spec.subnets[]"},
		"NstanceMachine":         {".spec.groupRef.name", ".spec.shard"},
		"NstanceMachineTemplate": {".spec.template.spec.groupRef.name", ".spec.template.spec.shard"},
	} {
		for _, path := range paths {
			field := resolve(schemaOf(definitions[kind]), strings.TrimSuffix(path, "[]"))
			if strings.HasSuffix(path, "[]") {
				field = field.Items.Schema
			}
			if field.Pattern != identifier.Pattern || ptr.Deref(field.MaxLength, 0) != identifier.MaxLength {
				t.Errorf("%s%s: pattern %q, at most %d; want %q, %d", kind, path,
					field.Pattern, ptr.Deref(field.MaxLength, 0), identifier.Pattern, identifier.MaxLength)
			}
			for _, c := range identifiertest.Cases {
				if got := accepts(t, field, c.Value); got != c.Valid {
					t.Errorf("%s%s: %q is accepted %t, want %t", kind, path, c.Value, got, c.Valid)
				}
			}
		}
	}
}

// accepts reports whether the schema of an identifier accepts value. It evaluates only
// the CEL rule of identifiers.
func accepts(t *testing.T, field *apiextensionsv1.JSONSchemaProps, value string) bool {
	t.Helper()
	contains := slices.ContainsFunc(field.XValidations, func(rule apiextensionsv1.ValidationRule) bool {
		return rule.Rule == "!self.contains('"+identifier.Separator+"')"
	})
	if contains && strings.Contains(value, identifier.Separator) {
		return false
	}
	length := int64(len([]rune(value)))
	return length >= ptr.Deref(field.MinLength, 0) && length <= ptr.Deref(field.MaxLength, 0) &&
		regexp.MustCompile(field.Pattern).MatchString(value)
}

// The definition of shard groups rejects any other name.
func TestShardGroupName(t *testing.T) {
	if got := ShardGroupName("workers", "us-west-2a"); got != "workers--us-west-2a" {
		t.Errorf("got %q", got)
	}
	for _, rule := range schemaOf(crds(t)["NstanceShardGroup"]).XValidations {
		if rule.Rule == "self.metadata.name == self.spec.group + '"+identifier.Separator+"' + self.spec.shard" {
			return
		}
	}
	t.Error("the definition has no rule for the name")
}

// kubectl explain has a text for every field, with the unit of a time, and what an optional
// number or choice in a spec means if it is unset.
func TestFieldsAreExplained(t *testing.T) {
	unset := regexp.MustCompile(`(?i)\bunset\b|\bnot set\b|\bwithout a value\b|\bis left out\b`)
	var walk func(path string, schema *apiextensionsv1.JSONSchemaProps)
	walk = func(path string, schema *apiextensionsv1.JSONSchemaProps) {
		for name, field := range schema.Properties {
			at := path + "." + name
			if strings.Count(at, ".") == 1 && name != "spec" && name != "status" {
				continue
			}
			optional := strings.Contains(at, ".spec.") && !slices.Contains(schema.Required, name)
			choice := field.Type == "integer" || field.XIntOrString || len(field.Enum) > 0
			switch {
			case field.Description == "":
				t.Errorf("%s has no description", at)
			case strings.HasSuffix(name, "Seconds") && !strings.Contains(field.Description, "seconds"):
				t.Errorf("the description of %s does not name the unit: %s", at, field.Description)
			case optional && choice && !unset.MatchString(field.Description):
				t.Errorf("the description of %s does not say what it means if it is unset: %s", at, field.Description)
			}
			walk(at, &field)
			if field.Items != nil && field.Items.Schema != nil {
				walk(at+"[]", field.Items.Schema)
			}
		}
	}
	for kind, definition := range crds(t) {
		walk(kind, schemaOf(definition))
	}
}
