// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metainternalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

const (
	// manyRequesting is the number of Pods that request a machine.
	manyRequesting = 1_000
	// mostMemory is the limit for the growth of the heap while they are listed. The whole
	// operator must stay below 300 MiB; the metadata of 30,000 Pods is twice as much.
	mostMemory = 48 << 20
)

// crowd is an API server with very many Pods. They are created while they are sent.
type crowd struct {
	streaming bool
	format    kuberuntime.SerializerInfo
	pods      int
	sent      int
	most      uint64
}

func TestMemoryDoesNotGrowWithPodsThatRequestNothing(t *testing.T) {
	// With another GOGC in the environment, the heap would contain more garbage.
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for name, streaming := range map[string]bool{"streaming": true, "listing": false} {
		t.Run(name, func(t *testing.T) {
			format, _ := kuberuntime.SerializerInfoForMediaType(metainternalscheme.Codecs.SupportedMediaTypes(), kuberuntime.ContentTypeProtobuf)
			pods := &crowd{streaming: streaming, format: format, pods: tier.Pick(30_000, 150_000)}
			server := httptest.NewServer(pods)
			defer server.Close()
			client, err := metadata.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
			require.NoError(t, err)
			informer := NewPodInformer(client, clusterName, 0)

			before := heap(true)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				informer.RunWithContext(ctx)
			}()
			synced := cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
			after := heap(true)
			cancel()
			<-done
			server.CloseClientConnections()

			if !synced || pods.sent < pods.pods {
				t.Fatalf("synced %t after %d Pods", synced, pods.sent)
			}
			if got := len(informer.GetStore().List()); got != manyRequesting {
				t.Errorf("the cache has %d Pods, want %d", got, manyRequesting)
			}
			t.Logf("%d Pods, %d with a request: heap %.1f MiB before, at most %.1f MiB meanwhile, %.1f MiB after",
				pods.sent, manyRequesting, mebi(before), mebi(pods.most), mebi(after))
			if pods.most > before+mostMemory {
				t.Errorf("the heap grew by %.1f MiB", mebi(pods.most-before))
			}
		})
	}
}

// A Pod of any user must not take more memory because its annotations, or the name of its owner,
// are long. The API server allows 256 KiB of annotations.
func TestALongAnnotationTakesLittleMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	const pods = 300
	for name, change := range map[string]func(pod *metav1.PartialObjectMetadata, value string){
		"group": func(pod *metav1.PartialObjectMetadata, value string) {
			pod.Annotations[v1beta1.AnnotationOnDemandGroup] = value
		},
		"instance type": func(pod *metav1.PartialObjectMetadata, value string) {
			pod.Annotations[v1beta1.AnnotationOnDemandInstanceType] = value
		},
		"drain timeout": func(pod *metav1.PartialObjectMetadata, value string) {
			pod.Annotations[v1beta1.AnnotationOnDemandDrainTimeout] = value
		},
		"owner": func(pod *metav1.PartialObjectMetadata, value string) {
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: value, Kind: kindDaemonSet, Name: value, UID: types.UID(value), Controller: ptr.To(true)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			// grown returns by how much Pods with values of a length enlarge the heap.
			grown := func(length int) uint64 {
				cached := make([]*metav1.PartialObjectMetadata, pods)
				var recorded rejections
				before := heap(true)
				for n := range cached {
					pod := newPodMetadata(strconv.Itoa(n), "gpu")
					// %q writes this character in ten.
					change(pod, strconv.Itoa(n)+strings.Repeat("\U000e0001", length/4))
					cached[n] = essentials(pod)
					_, rejected := requestOf(cached[n])
					require.NotNil(t, rejected)
					recorded.isNew(pod.UID, *rejected)
				}
				after := heap(true)
				runtime.KeepAlive(cached)
				runtime.KeepAlive(&recorded)
				return after - before
			}
			short, long := grown(1<<10), grown(200<<10)
			t.Logf("%d Pods: %.2f MiB, with values 200 times as long %.2f MiB", pods, mebi(short), mebi(long))
			// Without a limit it would be 200 times as much.
			assert.Less(t, float64(long), 2*float64(short))
			assert.Less(t, short, uint64(pods*4<<10), "a Pod takes at most 4 KiB")
		})
	}
}

func newPodMetadata(name, group string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: types.UID(name), Annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group},
	}}
}

// A value that was cut off is not taken for the value of the user.
func TestALongValueIsInvalid(t *testing.T) {
	for name, value := range map[string]string{
		// Valid without the limit, and valid after the first 256 bytes.
		v1beta1.AnnotationOnDemandDrainTimeout: strings.Repeat("0h", 150) + "90s",
		v1beta1.AnnotationOnDemandInstanceType: strings.Repeat("\U0001f680", 100),
	} {
		pod := newPodMetadata("requesting", "gpu")
		pod.Annotations[name] = value
		_, rejected := requestOf(essentials(pod))
		if assert.NotNil(t, rejected, name) {
			assert.Equal(t, reasonInvalidAnnotation, rejected.reason)
			assert.Contains(t, rejected.message, name)
		}
		_, live := requestOf(pod)
		assert.NotNil(t, live, "%s, read from the API server", name)
	}
}

// heap returns the size of the heap in bytes, with or without garbage.
func heap(collected bool) uint64 {
	if collected {
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func mebi(bytes uint64) float64 { return float64(bytes) / (1 << 20) }

// ServeHTTP implements http.Handler.
func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	initial := query.Get("sendInitialEvents") == "true"
	switch {
	case query.Get("watch") == "":
		c.list(w, query.Get("continue"), query.Get("limit"))
	case initial && !c.streaming:
		http.Error(w, "sendInitialEvents is forbidden", http.StatusUnprocessableEntity)
	default:
		c.watch(w, initial)
		<-r.Context().Done()
	}
}

func (c *crowd) list(w http.ResponseWriter, from, limit string) {
	first, _ := strconv.Atoi(from)
	size, _ := strconv.Atoi(limit)
	if size == 0 {
		size = c.pods
	}
	page := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	page.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList"))
	next := min(first+size, c.pods)
	for i := first; i < next; i++ {
		page.Items = append(page.Items, *c.pod(i))
	}
	if next < c.pods {
		page.Continue = strconv.Itoa(next)
	}
	w.Header().Set("Content-Type", kuberuntime.ContentTypeProtobuf)
	if err := c.format.Serializer.Encode(page, w); err != nil {
		panic(err)
	}
	c.measure(next - first)
}

func (c *crowd) watch(w http.ResponseWriter, initial bool) {
	w.Header().Set("Content-Type", kuberuntime.ContentTypeProtobuf+";stream=watch")
	frames := c.format.StreamSerializer.NewFrameWriter(w)
	if initial {
		for i := range c.pods {
			c.send(frames, watch.Added, c.pod(i))
			if i%500 == 499 {
				c.measure(500)
			}
		}
		c.send(frames, watch.Bookmark, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	w.(http.Flusher).Flush()
}

func (c *crowd) send(frames io.Writer, kind watch.EventType, pod *metav1.PartialObjectMetadata) {
	pod.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
	raw, err := kuberuntime.Encode(c.format.Serializer, pod)
	if err != nil {
		panic(err)
	}
	event := &metav1.WatchEvent{Type: string(kind), Object: kuberuntime.RawExtension{Raw: raw}}
	if err := c.format.StreamSerializer.Encode(event, frames); err != nil {
		panic(err)
	}
}

func (c *crowd) measure(sent int) {
	c.sent += sent
	c.most = max(c.most, heap(false))
}

// crowdPod is the metadata of a Pod of a Deployment, about 3 kB.
var crowdPod = metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
	Namespace: "team", GenerateName: "web-5d8f6c7b9d-", ResourceVersion: "1",
	Labels:          map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "web", "pod-template-hash": "5d8f6c7b9d"},
	Annotations:     map[string]string{"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z", "checksum/config": strings.Repeat("0", 64)},
	OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d8f6c7b9d", UID: "owner"}},
	ManagedFields: []metav1.ManagedFieldsEntry{
		{Manager: "kube-controller-manager", FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", 1500))},
		{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", 900))},
	},
}}

func (c *crowd) pod(i int) *metav1.PartialObjectMetadata {
	pod := crowdPod
	number := strconv.Itoa(i)
	pod.Name, pod.UID = crowdPod.GenerateName+number, types.UID("00000000-0000-4000-8000-"+number)
	if i%(c.pods/manyRequesting) == 0 {
		pod.Annotations = map[string]string{v1beta1.AnnotationOnDemandGroup: "gpu"}
	}
	return &pod
}
