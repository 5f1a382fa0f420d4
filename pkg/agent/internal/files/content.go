// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package files

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// maxNameLength leaves room for prefixes and extensions. Linux file systems allow 255
// bytes.
const maxNameLength = 200

// extensions lists the allowed extensions of files that servers send.
var extensions = []string{".env", ".crt", ".pub", ".key", ".json"}

var nameSyntax = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`)

// validateBaseName returns an error unless name can be the name of a file, with any or no
// extension.
func validateBaseName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a name must not be empty")
	case len(name) > maxNameLength:
		return fmt.Errorf("a name has %d characters, at most %d are allowed", len(name), maxNameLength)
	case !nameSyntax.MatchString(name):
		return fmt.Errorf("%q must consist of letters, digits, dots, hyphens and underscores, and not begin with a dot", name)
	}
	return nil
}

// validateFileName returns an error unless servers may send files with this name.
func validateFileName(name string) error {
	if err := validateBaseName(name); err != nil {
		return err
	}
	if extension := filepath.Ext(name); !slices.Contains(extensions, extension) {
		return fmt.Errorf("%q must have one of the extensions %s", name, strings.Join(extensions, " "))
	}
	return nil
}

// validate returns an error unless the content has the format that the extension promises.
// The error contains no part of the content, which may be secret.
func validate(name string, content []byte) error {
	switch filepath.Ext(name) {
	case ".env":
		return validateEnvironment(content)
	case ".json":
		if !json.Valid(content) {
			return errors.New("it is not valid JSON")
		}
		return nil
	case ".crt":
		return validatePEM(content, "certificate", isCertificate)
	case ".pub":
		return validatePEM(content, "public key", isPublicKey)
	case ".key":
		return validatePEM(content, "private key", isPrivateKey)
	}
	return fmt.Errorf("%q has no known extension", name)
}

// validatePEM returns an error unless the content is one or more PEM blocks, all valid.
func validatePEM(content []byte, kind string, valid func(*pem.Block) bool) error {
	count := 0
	for rest := content; len(bytes.TrimSpace(rest)) > 0; count++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return fmt.Errorf("after %d PEM blocks there is something else", count)
		}
		if !valid(block) {
			return fmt.Errorf("PEM block %d is not a %s", count+1, kind)
		}
	}
	if count == 0 {
		return errors.New("it has no PEM block")
	}
	return nil
}

func isCertificate(block *pem.Block) bool {
	_, err := x509.ParseCertificate(block.Bytes)
	return block.Type == "CERTIFICATE" && err == nil
}

func isPublicKey(block *pem.Block) bool {
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		_, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		_, err = x509.ParsePKCS1PublicKey(block.Bytes)
	default:
		return false
	}
	return err == nil
}

func isPrivateKey(block *pem.Block) bool {
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		_, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		_, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		_, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		return false
	}
	return err == nil
}

// assignment matches a line of an environment file up to its value.
var assignment = regexp.MustCompile(`^\s*(?:export\s+)?[A-Za-z_][A-Za-z0-9_]*=`)

// validateEnvironment returns an error unless each line is empty, a comment or an
// assignment. A value in quotes may have several lines.
func validateEnvironment(content []byte) error {
	if bytes.IndexByte(content, 0) >= 0 {
		return errors.New("it has a zero byte")
	}
	number, begin := 0, 0
	var quote byte
	for line := range bytes.Lines(content) {
		number++
		if quote == 0 {
			line = bytes.TrimSpace(line)
			if len(line) == 0 || line[0] == '#' {
				continue
			}
			prefix := assignment.Find(line)
			if prefix == nil {
				return fmt.Errorf("line %d is not of the form NAME=VALUE", number)
			}
			line, begin = line[len(prefix):], number
			if len(line) == 0 || line[0] != '"' && line[0] != '\'' {
				continue
			}
			quote, line = line[0], line[1:]
		}
		if closes(line, quote) {
			quote = 0
		}
	}
	if quote != 0 {
		return fmt.Errorf("the quote in line %d is not closed", begin)
	}
	return nil
}

// closes reports whether a line has the closing quote of a value. In double quotes a
// backslash escapes the next character.
func closes(line []byte, quote byte) bool {
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == quote:
			return true
		case line[i] == '\\' && quote == '"':
			i++
		}
	}
	return false
}
