// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// asImage is the variable with which the test binary is the program itself.
const asImage = "NSTANCE_TEST_AS_IMAGE"

func TestMain(m *testing.M) {
	if os.Getenv(asImage) != "" {
		main()
		return
	}
	// Go stores the results of tests that get this flag, and does not know when they are out of date:
	// hack/release.sh is not in the module.
	os.Args = slices.DeleteFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, "-test.testlogfile=") })
	os.Exit(m.Run())
}

// compiler replaces go on a machine with amd64: a binary is a script with the name of its platform and
// program, and the tools write their arguments. The tool for images is the real one.
const compiler = `#!/bin/sh
case "$1 $2" in
"env GOHOSTARCH") echo amd64; exit ;;
"run ./image") shift 2; export ` + asImage + `=1; exec "$IMAGE_PROGRAM" "$@" ;;
"run ./hack/releaseseries") exit ;;
"run ./notices") echo "notices of $(cat "$4")"; exit ;;
esac
for argument; do
	[ "$previous" != -o ] && [ "$previous" != -output ] || output=$argument
	previous=$argument
done
mkdir -p "$(dirname "$output")"
case "$1" in
build)
	printf '#!/bin/sh\n# %s/%s %s\necho "%s, version %s (revision 1, go1, %s/%s)"\n' \
		"$GOOS" "$GOARCH" "$previous" "${previous##*/}" "${BUILT:-$VERSION}" "$GOOS" "$GOARCH" >"$output"
	chmod +x "$output"
	;;
tool) echo "modules of $(cat "$previous")" >"$output" ;;
*) exit 1 ;;
esac
`

// binary returns what compiler builds.
func binary(system, arch, program string) string {
	return fmt.Sprintf("#!/bin/sh\n# %s/%s ./cmd/%s\necho \"%s, version v1.2.3 (revision 1, go1, %s/%s)\"\n", system, arch, program, program, system, arch)
}

// release runs hack/release.sh and returns what it prints.
func release(t *testing.T, dir, registry string, parts ...string) (string, error) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(compiler), 0o700); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), filepath.Join("..", "..", "release.sh"), parts...)
	command.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "IMAGE_PROGRAM="+program, "VERSION=v1.2.3",
		"RELEASE_DIR="+dir, "REGISTRY="+registry, "RELEASE_URL=https://files.example.com/v1.2.3")
	var problems strings.Builder
	command.Stderr = &problems
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, problems.String())
	}
	return string(output), nil
}

func mustRelease(t *testing.T, dir, registry string, parts ...string) string {
	t.Helper()
	output, err := release(t, dir, registry, parts...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

// tree returns the digests of all files of a folder.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		files[path] = fmt.Sprintf("%x", sha256.Sum256(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var programs = []string{"nstance-operator", "nstance-server", "nstance-admin", "nstance-agent", "kubectl-nstance", "marekvs-operator"}

// A release has an index of images for each program, which are pushed with the digests of the file
// digests, and the charts.
func TestReleaseIsPushed(t *testing.T) {
	dir, prefix := t.TempDir(), newRegistry(t)
	digests := mustRelease(t, dir, "", "images")
	chart, err := os.ReadFile(newChart(t, "1.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "charts", "nstance-server-1.2.3.tgz"), chart)
	write(t, filepath.Join(dir, "charts", "nstance-server-1.2.2.tgz"), []byte("of another version"))
	pushed := strings.Split(strings.TrimSpace(mustRelease(t, dir, prefix, "push")), "\n")
	if len(pushed) != len(programs)+1 {
		t.Fatalf("pushed %q", pushed)
	}
	for i, line := range strings.Split(strings.TrimSpace(digests), "\n") {
		program, digest, _ := strings.Cut(line, " ")
		if program != programs[i] {
			t.Errorf("digest of %s, want %s", program, programs[i])
		}
		if want := prefix + "/" + program + ":v1.2.3@" + digest; pushed[i] != want {
			t.Errorf("pushed %s, want %s", pushed[i], want)
		}
		for _, arch := range architectures {
			ref, err := name.ParseReference(prefix + "/" + program + "@" + digest)
			if err != nil {
				t.Fatal(err)
			}
			image, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
			if err != nil {
				t.Fatal(err)
			}
			want := binary("linux", arch, program)
			got := contents(t, image)
			if got[program] != want || got["licenses/THIRD_PARTY_NOTICES"] != "notices of "+want || got["sbom.cdx.json"] != "modules of "+want {
				t.Errorf("the image of %s for %s has %q", program, arch, got)
			}
		}
	}
	if !strings.HasPrefix(pushed[len(programs)], prefix+"/charts/nstance-server:1.2.3@sha256:") {
		t.Errorf("pushed %s", pushed[len(programs)])
	}
}

// archived returns the names and modes of the files of an archive, and its binary.
func archived(t *testing.T, path, program string) (names []string, content string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	compressed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if !compressed.ModTime.IsZero() {
		t.Errorf("%s has a time", path)
	}
	for files := tar.NewReader(compressed); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return names, content
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.ModTime.Unix() != 0 || header.Uid != 0 {
			t.Errorf("%s of %s has a time or an owner", header.Name, path)
		}
		names = append(names, header.Name)
		if header.Name == program {
			data, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			content = string(data)
		}
	}
}

// Programs are archives with licenses and bills of materials, which krew and sha256sum can check. The
// programs of machines are for Linux only.
func TestReleaseHasPrograms(t *testing.T) {
	dir := t.TempDir()
	// Of another release in the same folder, which has checksums of its own.
	write(t, filepath.Join(dir, "charts/nstance-server-1.2.2.tgz"), nil)
	write(t, filepath.Join(dir, "programs/v1.2.2/nstance.yaml"), nil)
	mustRelease(t, dir, "", "programs", "checksums")
	want := map[string]bool{"nstance.yaml": true}
	manifest, err := os.ReadFile(filepath.Join(dir, "programs/v1.2.3/nstance.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for program, systems := range map[string][]string{
		"kubectl-nstance": {"linux", "darwin"}, "nstance-admin": {"linux", "darwin"}, "nstance-agent": {"linux"}, "nstance-server": {"linux"},
	} {
		for _, system := range systems {
			for _, arch := range architectures {
				archive := program + "_" + system + "_" + arch
				want[archive+".tar.gz"], want[archive+".cdx.json"] = true, true
				names, content := archived(t, filepath.Join(dir, "programs/v1.2.3", archive+".tar.gz"), program)
				if !slices.Equal(names, []string{program, "LICENSE", "THIRD_PARTY_NOTICES"}) {
					t.Errorf("%s has %q", archive, names)
				}
				if content != binary(system, arch, program) {
					t.Errorf("%s has %q", archive, content)
				}
				sum := tree(t, filepath.Join(dir, "programs/v1.2.3"))[archive+".tar.gz"]
				if listed := strings.Contains(string(manifest), "uri: https://files.example.com/v1.2.3/"+archive+".tar.gz\n      sha256: "+sum); listed != (program == "kubectl-nstance") {
					t.Errorf("the manifest of krew has %s: %v", archive, listed)
				}
			}
		}
	}
	if got := slices.Sorted(maps.Keys(tree(t, filepath.Join(dir, "programs/v1.2.3")))); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Errorf("the release has %q", got)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = dir
	if output, err := check.CombinedOutput(); err != nil || strings.Count(string(output), ": OK\n") != len(want) {
		t.Errorf("checksums: %v: %s", err, output)
	}
}

// The checksums are signed if there is a key, and pushed images and charts too. A release without a key has
// no signature of an earlier one.
func TestReleaseIsSigned(t *testing.T) {
	dir, prefix := t.TempDir(), newRegistry(t)
	private, public := newKey(t)
	t.Setenv("SIGNING_KEY", private)
	mustRelease(t, dir, "", "programs", "checksums", "signature", "images")
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	signature, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS.sig"))
	if err != nil {
		t.Fatal(err)
	}
	if !verified(t, public, strings.TrimSpace(string(signature)), sums) {
		t.Errorf("SHA256SUMS.sig is %q", signature)
	}
	for pushed := range strings.FieldsSeq(mustRelease(t, dir, prefix, "push")) {
		if found := signatures(t, pushed); len(found) != 1 {
			t.Errorf("%s has %d signatures", pushed, len(found))
		}
	}
	t.Setenv("SIGNING_KEY", "")
	mustRelease(t, dir, "", "signature")
	if _, err := os.Stat(filepath.Join(dir, "SHA256SUMS.sig")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the signature of an earlier release: %v", err)
	}
	t.Setenv("SIGNING_KEY", filepath.Join(dir, "missing"))
	if _, err := release(t, dir, "", "signature"); err == nil {
		t.Error("a key that does not exist")
	}
}

// The archives of the plugin can be built alone.
func TestPluginIsBuiltAlone(t *testing.T) {
	dir := t.TempDir()
	mustRelease(t, dir, "", "plugin")
	want := map[string]bool{"programs/v1.2.3/nstance.yaml": true}
	for _, platform := range []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"} {
		archive := "programs/v1.2.3/kubectl-nstance_" + platform
		want[archive+".tar.gz"], want[archive+".cdx.json"] = true, true
	}
	if got := slices.Sorted(maps.Keys(tree(t, dir))); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Errorf("the plugin is %q", got)
	}
}

// The same binaries give the same release in another folder, and a second run the same once more.
func TestReleaseIsReproducible(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	mustRelease(t, first, "", "programs", "images", "checksums")
	mustRelease(t, second, "", "programs", "images", "checksums")
	before := tree(t, first)
	if other := tree(t, second); !maps.Equal(before, other) {
		t.Errorf("releases differ:\n%q\n%q", before, other)
	}
	mustRelease(t, first, "", "programs", "images", "checksums")
	if again := tree(t, first); !maps.Equal(before, again) {
		t.Errorf("the second run differs:\n%q\n%q", before, again)
	}
}

// copyTree copies the files of the repository that git knows, and returns the folder. Without a history,
// images have no revision.
func copyTree(t *testing.T, names ...string) string {
	t.Helper()
	folder := filepath.Join(append([]string{t.TempDir()}, names...)...)
	command := exec.CommandContext(t.Context(), "sh", "-c", `mkdir -p "$0" && git ls-files -z | xargs -0 cp --parents --no-dereference --preserve=mode -t "$0"`, folder)
	command.Dir = filepath.Join("..", "..", "..")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("copy the repository: %v: %s", err, output)
	}
	return folder
}

// A program that is compiled in two folders gives the same index of images, and starts on both
// architectures if there is an emulator.
func TestCompiledReleaseIsReproducible(t *testing.T) {
	if os.Getenv("NSTANCE_TEST_FULL") == "" {
		t.Skip("NSTANCE_TEST_FULL is not set: a program is compiled for two architectures (make test-full)")
	}
	var trees []map[string]string
	for _, folder := range []string{copyTree(t, "a"), copyTree(t, "another", "folder")} {
		dir := t.TempDir()
		command := exec.CommandContext(t.Context(), filepath.Join(folder, "hack", "release.sh"), "images", "starts")
		command.Env = append(os.Environ(), "VERSION=v1.2.3", "RELEASE_DIR="+dir, "RELEASE_PROGRAMS=nstance-agent")
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		t.Logf("%s", output)
		trees = append(trees, tree(t, dir))
	}
	if len(trees[0]) == 0 || !maps.Equal(trees[0], trees[1]) {
		t.Errorf("releases differ:\n%q\n%q", trees[0], trees[1])
	}
}

// The programs of the images are started, those for another architecture with an emulator.
func TestReleaseStarts(t *testing.T) {
	if _, err := exec.LookPath("qemu-aarch64-static"); err != nil {
		if output, err := release(t, t.TempDir(), "", "starts"); err != nil || output != "" {
			t.Errorf("without an emulator: %q, %v", output, err)
		}
	}
	bin := t.TempDir()
	started := filepath.Join(bin, "started")
	emulator := "#!/bin/sh\nbasename \"$1\" >>" + started + "\nexec \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "qemu-aarch64-static"), []byte(emulator), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	mustRelease(t, t.TempDir(), "", "starts")
	names, err := os.ReadFile(started)
	if err != nil || !slices.Equal(strings.Fields(string(names)), programs) {
		t.Errorf("started for arm64: %q, %v", names, err)
	}
	t.Setenv("BUILT", "unknown")
	if _, err := release(t, t.TempDir(), "", "starts"); err == nil || !strings.Contains(err.Error(), "nstance-operator for amd64 prints") {
		t.Errorf("a program of another version: %v", err)
	}
}

// A release whose build fails is not finished.
func TestReleaseFails(t *testing.T) {
	if _, err := release(t, t.TempDir(), "", "nothing"); err == nil || !strings.Contains(err.Error(), "unknown part") {
		t.Errorf("got %v", err)
	}
	if _, err := release(t, t.TempDir(), newRegistry(t), "push"); err == nil {
		t.Error("nothing was pushed")
	}
	if _, err := release(t, t.TempDir(), "", "push"); err == nil || !strings.Contains(err.Error(), "REGISTRY must be set") {
		t.Errorf("pushed to no registry: %v", err)
	}
	if _, err := release(t, t.TempDir(), "", "checksums"); err == nil || !strings.Contains(err.Error(), "nothing of v1.2.3 was written") {
		t.Errorf("checksums of nothing: %v", err)
	}
	for _, registry := range []string{"https://registry.example.com", "registry.example.com/", "registry.example.com/A", "#", "a b"} {
		if _, err := release(t, t.TempDir(), registry, "manifests"); err == nil || !strings.Contains(err.Error(), "must be a host") {
			t.Errorf("registry %q: %v", registry, err)
		}
	}
	for _, url := range []string{"example.com/docs", "https://example.com/docs/", "https://example.com/#a", "https://a b"} {
		t.Setenv("DOCS_URL", url)
		if _, err := release(t, t.TempDir(), "", "manifests"); err == nil || !strings.Contains(err.Error(), "must be the URL of the folder docs") {
			t.Errorf("documents at %q: %v", url, err)
		}
	}
	t.Setenv("DOCS_URL", "")
	if _, err := release(t, t.TempDir(), newRegistry(t), "manifests"); err == nil || !strings.Contains(err.Error(), "has no digest of nstance-operator") {
		t.Errorf("manifests of images without digests: %v", err)
	}
}
