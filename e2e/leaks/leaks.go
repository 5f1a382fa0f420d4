// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package leaks finds secrets where they must not be: in files, in objects of Kubernetes and in
// containers.
package leaks

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
)

// Texts are the forms in which a secret may occur.
type Texts [][]byte

// Of returns a secret as it is, and the parts of its base64 that do not depend on what is before and
// after it. The secret needs at least 9 bytes.
func Of(secret string) Texts {
	found := Texts{[]byte(secret)}
	for offset := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", offset) + secret))
		found = append(found, []byte(encoded[4:len(encoded)-4]))
	}
	return found
}

// OfPEM returns the forms of the longest line of a key in PEM. Other files may have the key in one line.
func OfPEM(key string) (Texts, error) {
	longest := ""
	for line := range strings.Lines(key) {
		if line = strings.TrimSpace(line); len(line) > len(longest) && !strings.HasPrefix(line, "-----") {
			longest = line
		}
	}
	// The first bytes of a key say what kind of key it is. Half of a line of 64 characters is not known.
	if len(longest) < 32 {
		return nil, errors.New("the key in PEM has no line of 32 characters")
	}
	return Of(longest), nil
}

// In reports whether data has the secret in any form.
func (t Texts) In(data []byte) bool {
	return slices.ContainsFunc(t, func(text []byte) bool { return bytes.Contains(data, text) })
}

// Files is the result of a search below a folder.
type Files struct {
	// Found are the paths of files with the secret.
	Found []string
	// searched are the paths of all files that were read.
	searched []string
}

// Searched returns how many files below a folder were read.
func (f Files) Searched(folder string) int {
	count := 0
	for _, path := range f.searched {
		if rest, below := strings.CutPrefix(path, folder); below && strings.HasPrefix(rest, string(filepath.Separator)) {
			count++
		}
	}
	return count
}

// Files searches all files below root, apart from those below the folders skip. Files may be replaced
// meanwhile.
func (t Texts) Files(root string, skip ...string) (Files, error) {
	var files Files
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return ignoreMissing(err)
		case slices.Contains(skip, path):
			return filepath.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return ignoreMissing(err)
		}
		files.searched = append(files.searched, path)
		if t.In(data) {
			files.Found = append(files.Found, path)
		}
		return nil
	})
	if err != nil {
		return files, fmt.Errorf("search %s: %w", root, err)
	}
	return files, nil
}

func ignoreMissing(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// Objects are objects of Kubernetes.
type Objects struct {
	// Found are those with the secret, as "RESOURCE NAMESPACE/NAME".
	Found []string
	// Kinds are the kinds of all objects that were searched.
	Kinds map[string]bool
}

// Objects searches all objects of all kinds that can be listed, events too.
func (t Texts) Objects(ctx context.Context, kinds discovery.ServerResourcesInterface, client dynamic.Interface) (Objects, error) {
	objects := Objects{Kinds: map[string]bool{}}
	lists, err := kinds.ServerPreferredResources()
	if err != nil {
		return objects, fmt.Errorf("list the kinds of the API server: %w", err)
	}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return objects, fmt.Errorf("read the version of a kind: %w", err)
		}
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") {
				continue
			}
			if err := objects.search(ctx, t, client, version.WithResource(resource.Name)); err != nil {
				return objects, err
			}
		}
	}
	return objects, nil
}

func (o *Objects) search(ctx context.Context, texts Texts, client dynamic.Interface, resource schema.GroupVersionResource) error {
	list, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list %s: %w", resource, err)
	}
	for _, object := range list.Items {
		o.Kinds[object.GetKind()] = true
		data, err := object.MarshalJSON()
		if err != nil {
			return fmt.Errorf("encode %s %s/%s: %w", resource.Resource, object.GetNamespace(), object.GetName(), err)
		}
		if texts.In(data) {
			o.Found = append(o.Found, resource.Resource+" "+object.GetNamespace()+"/"+object.GetName())
		}
	}
	return nil
}

// machineFolders are the folders of a machine that userdata, the agent, kubeadm and the kubelet write.
// /var/lib/nstance has the userdata until it has run.
var machineFolders = []string{"/etc", "/opt", "/root", "/tmp", "/var/lib/kubelet", "/var/lib/nstance", "/var/log"}

// Machine returns the files with the secret in a machine that is a container of the Docker at an address.
func (t Texts) Machine(ctx context.Context, address, container string) ([]string, error) {
	// Programs of the machine may end while grep looks at them, so its status says nothing.
	script := `grep --recursive --no-messages --binary-files=text --devices=skip --files-with-matches --fixed-strings --file=- -- "$@" || true`
	command := exec.CommandContext(ctx, "docker", slices.Concat([]string{"--host", address, "exec", "--interactive", container, "sh", "-c", script, "sh"}, machineFolders)...)
	// No argument of a program has the secret: the search would find itself.
	command.Stdin = bytes.NewReader(append(bytes.Join(t, []byte("\n")), '\n'))
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("search the files of container %s: %w", container, err)
	}
	return strings.Fields(string(output)), nil
}

// Container reports whether what Docker says of a container, or its output, has the secret.
func (t Texts) Container(ctx context.Context, address, container string) (bool, error) {
	for _, arguments := range [][]string{{"inspect", container}, {"logs", container}} {
		output, err := exec.CommandContext(ctx, "docker", append([]string{"--host", address}, arguments...)...).CombinedOutput()
		if err != nil {
			return false, fmt.Errorf("docker %s: %w: %s", strings.Join(arguments, " "), err, output)
		}
		if t.In(output) {
			return true, nil
		}
	}
	return false, nil
}
