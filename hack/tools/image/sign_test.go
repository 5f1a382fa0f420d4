// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// newKey creates a key pair as docs/install.md does, and returns the paths of the private and of the public
// half.
func newKey(t *testing.T, create ...string) (private, public string) {
	t.Helper()
	private, public = filepath.Join(t.TempDir(), "release.key"), filepath.Join(t.TempDir(), "release.pub")
	if len(create) == 0 {
		create = []string{"genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"}
	}
	openssl(t, append(create, "-out", private)...)
	openssl(t, "pkey", "-in", private, "-pubout", "-out", public)
	return private, public
}

func openssl(t *testing.T, args ...string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("openssl %q: %v: %s", args, err, output)
	}
	return string(output)
}

// verified reports whether a signature in base64 is one of data by a public key.
func verified(t *testing.T, public, signature string, data []byte) bool {
	t.Helper()
	text, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(signature)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(data)
	return ecdsa.VerifyASN1(key.(*ecdsa.PublicKey), digest[:], raw)
}

// openssl verifies the signature of a file, and of no other file. It is the same each time.
func TestSignatureOfAFile(t *testing.T) {
	for name, create := range map[string][]string{"PKCS #8": nil, "SEC 1": {"ecparam", "-name", "prime256v1", "-genkey"}} {
		t.Run(name, func(t *testing.T) {
			private, public := newKey(t, create...)
			file := filepath.Join(t.TempDir(), "SHA256SUMS")
			write(t, file, []byte("content"))
			sign := func() string {
				t.Helper()
				var printed strings.Builder
				if err := run([]string{"sign", "-key", private, file}, &printed); err != nil {
					t.Fatal(err)
				}
				return printed.String()
			}
			signature := sign()
			if again := sign(); again != signature {
				t.Errorf("signatures %q and %q", signature, again)
			}
			raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(signature))
			if err != nil {
				t.Fatal(err)
			}
			write(t, file+".raw", raw)
			verify := exec.CommandContext(t.Context(), "openssl", "dgst", "-sha256", "-verify", public, "-signature", file+".raw", file)
			if output, err := verify.CombinedOutput(); err != nil || strings.TrimSpace(string(output)) != "Verified OK" {
				t.Errorf("openssl: %v: %s", err, output)
			}
			write(t, file, []byte("changed"))
			if verified(t, public, strings.TrimSpace(signature), []byte("changed")) {
				t.Error("the signature is one of another file")
			}
		})
	}
}

func TestKeysThatCannotSign(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	write(t, file, nil)
	rsa, _ := newKey(t, "genpkey", "-algorithm", "RSA")
	larger, _ := newKey(t, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384")
	_, public := newKey(t)
	write(t, filepath.Join(dir, "damaged"), []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
	for path, want := range map[string]string{
		rsa: "must be of the curve P-256", larger: "must be of the curve P-256", public: "has no private key",
		filepath.Join(dir, "damaged"): "parse the key", filepath.Join(dir, "missing"): "no such file", "": "mandatory",
	} {
		if err := run([]string{"sign", "-key", path, file}, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("key %s: got %v, want %q", path, err, want)
		}
	}
}

// signatures returns the signatures of a reference with a digest, NAME:TAG@DIGEST, by what is signed.
func signatures(t *testing.T, pushed string) map[string]claim {
	t.Helper()
	tagged, digest, _ := strings.Cut(pushed, "@")
	tag, err := name.NewTag(tagged)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(tag.Repository.Tag(strings.Replace(digest, ":", "-", 1) + ".sig"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.MediaType != "application/vnd.oci.image.manifest.v1+json" || manifest.Config.MediaType != "application/vnd.oci.image.config.v1+json" {
		t.Errorf("manifest %+v", manifest)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]claim{}
	for i, layer := range layers {
		if manifest.Layers[i].MediaType != "application/vnd.dev.cosign.simplesigning.v1+json" {
			t.Errorf("layer %+v", manifest.Layers[i])
		}
		content, err := layer.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		payload, err := io.ReadAll(content)
		if err != nil {
			t.Fatal(err)
		}
		var signed claim
		if err := json.Unmarshal(payload, &signed); err != nil {
			t.Fatal(err)
		}
		if want := tag.Repository.Name(); signed.Critical.Identity.Repository != want || signed.Critical.Image.Digest != digest || signed.Critical.Type != "cosign container image signature" {
			t.Errorf("%s is signed as %s", pushed, payload)
		}
		found[manifest.Layers[i].Annotations["dev.cosignproject.cosign/signature"]+" "+string(payload)] = signed
	}
	return found
}

// What is pushed with a key has a signature, once, beside those with other keys.
func TestPushSigns(t *testing.T) {
	prefix := newRegistry(t)
	layout, _ := newLayout(t, "nstance-server", "program")
	private, public := newKey(t)
	push := func(more ...string) []string {
		t.Helper()
		var printed strings.Builder
		if err := run(append(append([]string{"push", "-registry", prefix, "-version", "v1.2.3"}, more...), layout, newChart(t, "1.2.3")), &printed); err != nil {
			t.Fatal(err)
		}
		return strings.Fields(printed.String())
	}
	unsigned := push()
	for _, pushed := range unsigned {
		tagged, digest, _ := strings.Cut(pushed, "@")
		tag, err := name.NewTag(tagged)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Head(tag.Repository.Tag(strings.Replace(digest, ":", "-", 1) + ".sig")); !isNotFound(err) {
			t.Errorf("%s is signed without a key: %v", pushed, err)
		}
	}
	// The tags exist.
	push("-key", private)
	expect := func(count int, publics ...string) {
		t.Helper()
		for _, pushed := range unsigned {
			found := signatures(t, pushed)
			if len(found) != count {
				t.Errorf("%s has %d signatures, want %d", pushed, len(found), count)
			}
			for _, public := range publics {
				valid := 0
				for signed := range found {
					signature, payload, _ := strings.Cut(signed, " ")
					if verified(t, public, signature, []byte(payload)) {
						valid++
					}
				}
				if valid != 1 {
					t.Errorf("%s has %d valid signatures of a key", pushed, valid)
				}
			}
		}
	}
	expect(1, public)
	push("-key", private)
	expect(1, public)
	other, otherPublic := newKey(t)
	push("-key", other)
	expect(2, public, otherPublic)
	if err := run([]string{"push", "-registry", prefix, "-version", "v1.2.3", "-key", layout, layout}, io.Discard); err == nil || !strings.Contains(err.Error(), "-key") {
		t.Errorf("a key that cannot be read: %v", err)
	}
}
