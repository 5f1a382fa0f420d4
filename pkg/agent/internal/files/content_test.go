// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package files

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/pki/pkitest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func block(kind string, der []byte, err error) string {
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func TestContentFitsTheExtension(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	privatePEM := block("PRIVATE KEY", pkcs8, err)
	pkix, err := x509.MarshalPKIXPublicKey(public)
	publicPEM := block("PUBLIC KEY", pkix, err)
	ecDER, err := x509.MarshalECPrivateKey(ecKey)
	ecPEM := block("EC PRIVATE KEY", ecDER, err)
	certificate := string(pkitest.NewAuthority(t).CertificatePEM())

	for name, contents := range map[string][]string{
		"a.env":  {"", "\n", "# comment\n\nA=1\nexport B=2\n C=\"two\nlines \\\" \"\nD='x\n\\'\nE=a=b", "A=\n"},
		"a.json": {"{}", "1", `"x"`, " [1, 2]\n"},
		"a.crt":  {certificate, certificate + "\n" + certificate},
		"a.pub":  {publicPEM, block("RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey), nil)},
		"a.key":  {privatePEM, ecPEM, block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey), nil)},
	} {
		for _, content := range contents {
			assert.NoError(t, validate(name, []byte(content)), "%s: %s", name, content)
		}
	}
	for name, contents := range map[string][]string{
		"a.env":  {"A", "=1", "1A=2", "A =1", "A=\"x", "A='x\nB=1", "A=\x00", "rm -rf /", "A=1\nSECRET"},
		"a.json": {"", "{", "{}{}", "SECRET"},
		"a.crt":  {"", "SECRET", privatePEM, publicPEM, certificate + "SECRET", block("CERTIFICATE", []byte("SECRET"), nil)},
		"a.pub":  {"", privatePEM, certificate, block("PUBLIC KEY", []byte("SECRET"), nil)},
		"a.key":  {"", publicPEM, block("PRIVATE KEY", []byte("SECRET"), nil), privatePEM + "SECRET"},
	} {
		for _, content := range contents {
			err := validate(name, []byte(content))
			if assert.Error(t, err, "%s: %s", name, content) {
				assert.NotContains(t, err.Error(), "SECRET")
			}
		}
	}
}

// FuzzContent checks that the error contains no part of the content.
func FuzzContent(f *testing.F) {
	f.Add([]byte("A=\"b\\\"\nc\"\nexport D='e\n'"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Add([]byte(`{"a": [1, null]}`))
	f.Add([]byte("A=\x00"))
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, name := range []string{"a.env", "a.json", "a.crt", "a.pub", "a.key"} {
			err := validate(name, content)
			if err == nil && bytes.IndexByte(content, 0) >= 0 && name == "a.env" {
				t.Errorf("%s was accepted with a zero byte", name)
			}
			if err != nil && len(content) > 40 {
				assert.NotContains(t, err.Error(), string(content))
			}
		}
	})
}

// FuzzPatch adds arbitrary files. After an applied patch the folder has exactly its files,
// after a refused patch no files. Nothing is written outside the folder.
func FuzzPatch(f *testing.F) {
	f.Add("a.env", []byte("A=1"), "b.json", []byte("{}"), int64(0))
	f.Add("../a.env", []byte("A=1"), "a.env/b.env", []byte(""), int64(-62135596801))
	f.Add("..data", []byte("x"), "errors.env", []byte("X='\n'"), int64(1))
	f.Add(".key", []byte("-----BEGIN"), strings.Repeat("a", 300)+".crt", []byte("x"), int64(253402300800))
	f.Add("a\x00.env", []byte(nil), "A.ENV", []byte("\xff"), int64(5))
	f.Fuzz(func(t *testing.T, name1 string, content1 []byte, name2 string, content2 []byte, seconds int64) {
		m := newMachine(t, t.TempDir())
		s := m.open()
		sent := map[string]string{}
		var patch Patch
		for name, content := range map[string][]byte{name1: content1, name2: content2} {
			if name == "" {
				continue
			}
			sent[name] = string(content)
			patch.Add(&nstancev1.FileTransfer{Filename: name, Content: content, LastModified: &timestamppb.Timestamp{Seconds: seconds}})
		}
		_, err := s.Apply(&patch, "hash")
		if err != nil {
			assert.Empty(t, m.content())
			assert.Empty(t, m.hash())
		} else {
			assert.Equal(t, sent, m.content())
			assert.Equal(t, "hash", m.hash())
		}
		entries, err := os.ReadDir(m.folder)
		require.NoError(t, err)
		assert.Len(t, entries, 2, "only the folders of the identity and of the received files")
		_, err = s.Status()
		require.NoError(t, err)
		// The next process reads the reasons for refused files again.
		status, err := m.open().Status()
		require.NoError(t, err)
		assert.LessOrEqual(t, len(status), 2)
	})
}

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "kubelet.server", "A-b_9", "-a", "a..b"} {
		assert.NoError(t, validateBaseName(name), name)
		assert.NoError(t, validateFileName(name+".env"), name)
		assert.Error(t, validateFileName(name+".sh"), name)
	}
	for _, name := range []string{"", ".", "..", ".env", "a/b.env", "/a.env", "../a.env", `a\b.env`, "a\n.env", "a\x00.env", "ä.env", "a*.env", strings.Repeat("a", 197) + ".env"} {
		assert.Error(t, validateFileName(name), name)
	}
}

// FuzzValidateFileName checks that an accepted name names a file directly in a folder.
func FuzzValidateFileName(f *testing.F) {
	f.Add("a.env")
	f.Add("../a.env")
	f.Add("a/../b.key")
	f.Fuzz(func(t *testing.T, name string) {
		if validateFileName(name) != nil {
			return
		}
		if strings.ContainsAny(name, "/\\\x00 ") || strings.HasPrefix(name, ".") || len(name) > 255 {
			t.Errorf("%q was accepted", name)
		}
	})
}
