// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// credentialPrefix begins the string of SMBIOS that has the userdata, as package qemu
// writes it.
const credentialPrefix = "io.systemd.credential.binary:nstance.userdata="

// readSMBIOS returns the userdata from a structure of SMBIOS of type 11.
func readSMBIOS(path string) ([]byte, error) {
	structure, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return findUserdata(structure)
}

// findUserdata returns the userdata from the strings that follow the formatted part of a
// structure. Its second byte is the length of that part.
func findUserdata(structure []byte) ([]byte, error) {
	if len(structure) < 2 || len(structure) < int(structure[1]) {
		return nil, errors.New("the structure of SMBIOS is cut")
	}
	for text := range bytes.SplitSeq(structure[structure[1]:], []byte{0}) {
		if encoded, found := strings.CutPrefix(string(text), credentialPrefix); found {
			return base64.StdEncoding.DecodeString(encoded)
		}
	}
	return nil, errors.New("SMBIOS has no userdata")
}

// userdata has the instructions of a test for its guest.
type userdata struct {
	// variables are the environment of the agent.
	variables map[string]string
	// files by path in the folder of the agent.
	files map[string]string
}

// parse parses lines of four kinds: NAME=VALUE is a variable, PATH=VALUE a file with one
// line, where a PATH has a slash. PATH<<END begins a file that ends before a line END.
// Others are empty or begin with #.
func parse(text string) (userdata, error) {
	u := userdata{variables: map[string]string{}, files: map[string]string{}}
	lines := strings.Split(text, "\n")
	for at := 0; at < len(lines); at++ {
		line := strings.TrimSpace(lines[at])
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, end, isBlock := strings.Cut(line, "<<")
		if isBlock && !strings.Contains(name, "=") {
			length := slices.Index(lines[at+1:], end)
			if length < 0 {
				return userdata{}, fmt.Errorf("line %d: no line %s follows", at+1, end)
			}
			u.files[name] = strings.Join(lines[at+1:at+1+length], "\n") + "\n"
			at += length + 1
			continue
		}
		name, value, found := strings.Cut(line, "=")
		switch {
		case !found:
			return userdata{}, fmt.Errorf("line %d: want NAME=VALUE", at+1)
		case strings.Contains(name, "/"):
			u.files[name] = value + "\n"
		default:
			u.variables[name] = value
		}
	}
	return u, nil
}

// environment returns the variables as exec.Cmd has them.
func (u userdata) environment() []string {
	var environment []string
	for _, name := range slices.Sorted(maps.Keys(u.variables)) {
		environment = append(environment, name+"="+u.variables[name])
	}
	return environment
}

// write writes the files into a folder, for the owner only.
func (u userdata) write(folder string) error {
	for name, content := range u.files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}
