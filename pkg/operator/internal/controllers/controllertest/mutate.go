// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllertest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Object is an object of an API server.
type Object interface {
	metav1.Object
	runtime.Object
}

// Mutation is a copy of an object with one change.
type Mutation[T Object] struct {
	// Field is the path of the field, and what has happened to it.
	Field  string
	Object T
}

// annotations have a meaning for the operator, and are not found by reflection.
var annotations = []string{
	clusterv1.PausedAnnotation, clusterv1.DeleteMachineAnnotation, clusterv1.AutoscalerMinSizeAnnotation, clusterv1.AutoscalerMaxSizeAnnotation,
	v1beta1.AnnotationRequest, v1beta1.AnnotationInstanceID, v1beta1.AnnotationPodNamespace, v1beta1.AnnotationPodName,
	v1beta1.AnnotationOnDemandGroup, v1beta1.AnnotationOnDemandInstanceType, v1beta1.AnnotationOnDemandDrainTimeout, v1beta1.AnnotationOnDemandCluster,
	v1beta1.AnnotationConfirmDeletion, v1beta1.AnnotationConfirmOverwrite, v1beta1.AnnotationConfirmAbandon,
}

// Mutations returns copies of an object, each with a change of one field: of the metadata that
// clients write, or of any other part. It finds the fields by reflection, so that a new field is
// among them. Each copy has another resource version, and another generation if the spec differs.
func Mutations[T Object](object T) []Mutation[T] {
	var m mutator
	root := reflect.ValueOf(object).Elem()
	for i := range root.NumField() {
		if name := root.Type().Field(i).Name; name != "TypeMeta" && name != "ObjectMeta" {
			m.visit(root.Field(i), name, func(root reflect.Value) reflect.Value { return root.Field(i) })
		}
	}
	for _, name := range []string{"Labels", "Annotations", "Finalizers", "OwnerReferences", "DeletionTimestamp"} {
		m.visit(root.FieldByName(name), name, func(root reflect.Value) reflect.Value { return root.FieldByName(name) })
	}
	for _, annotation := range annotations {
		m.add(fmt.Sprintf("Annotations[%s] is changed", annotation), func(root reflect.Value) reflect.Value { return root }, func(root reflect.Value) {
			changed := root.Addr().Interface().(metav1.Object)
			all := maps.Clone(changed.GetAnnotations())
			if all == nil {
				all = map[string]string{}
			}
			all[annotation] += "1"
			changed.SetAnnotations(all)
		})
	}
	mutations := make([]Mutation[T], len(m.changes))
	for i, change := range m.changes {
		copied := object.DeepCopyObject().(T)
		change.do(change.find(reflect.ValueOf(copied).Elem()))
		copied.SetResourceVersion("mutated")
		// A deletion that waits for finalizers is a new generation, too.
		if strings.HasPrefix(change.field, "Spec") || strings.HasPrefix(change.field, "DeletionTimestamp") {
			copied.SetGeneration(object.GetGeneration() + 1)
		}
		mutations[i] = Mutation[T]{Field: change.field, Object: copied}
	}
	return mutations
}

// finder finds a field in a copy of the object.
type finder func(root reflect.Value) reflect.Value

type mutator struct{ changes []change }

type change struct {
	field string
	find  finder
	do    func(reflect.Value)
}

func (m *mutator) add(field string, find finder, do func(reflect.Value)) {
	m.changes = append(m.changes, change{field, find, do})
}

// visit adds the changes of a field and of its parts.
func (m *mutator) visit(value reflect.Value, field string, find finder) {
	switch value.Kind() {
	case reflect.Struct:
		if value.Type() == reflect.TypeFor[metav1.Time]() || !hasExportedFields(value.Type()) {
			m.add(field+" is changed", find, func(v reflect.Value) { alter(v) })
			return
		}
		for i := range value.NumField() {
			m.visit(value.Field(i), field+"."+value.Type().Field(i).Name, func(root reflect.Value) reflect.Value { return find(root).Field(i) })
		}
	case reflect.Pointer:
		if value.IsNil() {
			m.add(field+" is set", find, func(v reflect.Value) { alter(v) })
			return
		}
		m.add(field+" is removed", find, reflect.Value.SetZero)
		m.visit(value.Elem(), field, func(root reflect.Value) reflect.Value { return find(root).Elem() })
	case reflect.Slice:
		m.add(field+" is extended", find, func(v reflect.Value) {
			added := reflect.New(v.Type().Elem()).Elem()
			alter(added)
			v.Set(reflect.Append(v, added))
		})
		if value.Len() > 0 {
			m.add(field+" is emptied", find, reflect.Value.SetZero)
			m.visit(value.Index(0), field+"[0]", func(root reflect.Value) reflect.Value { return find(root).Index(0) })
		}
	case reflect.Map:
		m.add(field+" is extended", find, func(v reflect.Value) {
			if v.IsNil() {
				v.Set(reflect.MakeMap(v.Type()))
			}
			added := reflect.New(v.Type().Elem()).Elem()
			alter(added)
			v.SetMapIndex(reflect.ValueOf("example.com/added").Convert(v.Type().Key()), added)
		})
		keys := value.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			m.add(fmt.Sprintf("%s[%s] is removed", field, key), find, func(v reflect.Value) { v.SetMapIndex(key, reflect.Value{}) })
		}
	default:
		m.add(field+" is changed", find, func(v reflect.Value) { alter(v) })
	}
}

func hasExportedFields(t reflect.Type) bool {
	return slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.IsExported() })
}

// alter gives a value another content.
func alter(v reflect.Value) {
	if v.Type() == reflect.TypeFor[metav1.Time]() {
		v.Set(reflect.ValueOf(metav1.NewTime(time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC))))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		alter(v.Elem())
	case reflect.Slice:
		added := reflect.New(v.Type().Elem()).Elem()
		alter(added)
		v.Set(reflect.Append(v, added))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				alter(v.Field(i))
			}
		}
	}
}

// ExpectSeen changes one field after the other of an object that a sync reads, except for those
// whose path begins with an ignored prefix. try puts a changed object into the cache, and returns
// what its handler enqueues and what the next sync does then. If a sync does something else than
// with the unchanged object, the handler must have enqueued: otherwise it is done only by the next
// resync.
func ExpectSeen[T Object](t *testing.T, object T, try func(changed T) (enqueued, did []string, err error), ignored ...string) {
	t.Helper()
	depending := 0
	_, unchanged, err := try(object.DeepCopyObject().(T))
	require.NoError(t, err)
	for _, mutation := range Mutations(object) {
		if slices.ContainsFunc(ignored, func(prefix string) bool { return strings.HasPrefix(mutation.Field, prefix) }) {
			continue
		}
		enqueued, did, err := try(mutation.Object)
		if slices.Equal(did, unchanged) && err == nil {
			continue
		}
		depending++
		if len(enqueued) == 0 {
			t.Errorf("%T: %s: a sync does %q, error %v, and the handler enqueues nothing", object, mutation.Field, did, err)
		}
	}
	assert.NotZero(t, depending, "fields of %T on which a sync depends", object)
}
